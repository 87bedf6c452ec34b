"""Decode steps replayed as CUDA graphs: a GPU is asked once for a step, not once for each of its kernels.

A decode step of a 0.5B model with an adapter starts two thousand kernels; asking for them one by one takes
many times as long as they run. A graph is recorded once for each number of rows and kind of step, and works
on the same memory each time: it is valid as long as weights and cache stay where they are.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from art_trainer.models.memory import is_out_of_memory

_log = logging.getLogger(__name__)


def padded_height(rows: int) -> int:
    """Return the number of rows to compute for so many, of few sizes: 8, 12, 16, 24, 32, 48 and so on."""
    size = 8
    while size < rows:
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    return size


@dataclass(frozen=True, slots=True, eq=False)
class _Recorded:
    graph: torch.cuda.CUDAGraph
    given: Tensor
    result: Tensor


class StepGraphs:
    """Recorded steps of a model, by the shape of their numbers.

    Args:
        model: The model; when its weights have moved, all is recorded again.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = list(model.parameters())
        self._recorded: dict[torch.Size, _Recorded] = {}
        self._places: tuple[int, ...] = ()
        self._works = True

    def run(self, version: int, given: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Compute a step, by its graph if there is one; else record it.

        Args:
            version: Of all memory but the weights that the step works on.
            given: All its numbers, on the device.
            compute: The step as a function of them and their shape. It must not wait for the device.

        Returns:
            What ``compute`` returns; the next step may overwrite it.
        """
        if not self._works:
            return compute(given)
        places = (version, *(parameter.data_ptr() for parameter in self._parameters))
        if places != self._places:
            self._recorded.clear()
            self._places = places
        recorded = self._recorded.get(given.shape)
        if recorded is not None:
            recorded.given.copy_(given)
            recorded.graph.replay()
            return recorded.result
        result = compute(given)
        try:
            self._recorded[given.shape] = self._record(given, compute)
        except RuntimeError as error:
            if is_out_of_memory(error):
                raise
            self._works = False
            self._recorded.clear()
            _log.warning("Decode steps start their kernels one by one: %s", str(error).splitlines()[0])
        return result

    def _record(self, given: Tensor, compute: Callable[[Tensor], Tensor]) -> _Recorded:
        pool = next((one.graph.pool() for one in self._recorded.values()), None)
        graph, kept = torch.cuda.CUDAGraph(), given.clone()
        # Other threads may use the GPU meanwhile.
        with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
            result = compute(kept)
        return _Recorded(graph, kept, result)
