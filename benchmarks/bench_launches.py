"""How often does a decode step start a kernel, wait for a GPU or copy to one, and does all run on one device?

Without a GPU: tensors say that they are on a device of their own and hold CPU data; each operation on them is
checked and counted. Attention counts as the operations of PyTorch's plain one, and a GPU fuses them. A tiny
model plays, learns, is saved, loaded, published and served there. Needs PyTorch 2.13.

    python benchmarks/bench_launches.py            # a Qwen2 in bfloat16, with and without an adapter
    python benchmarks/bench_launches.py --check    # exits 1 if a count is above MOST
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import harness
import numpy as np
import torch
from bench_memory import Talk
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend
from transformers import AutoModelForCausalLM, Qwen2Config

from art_trainer.config import GRPOConfig
from art_trainer.distributed.weights import WeightStore, apply_weights
from art_trainer.inference.generation import TokenSequence, sampling_mode
from art_trainer.inference.sampling import SamplingParams, StopStrings
from art_trainer.inference.slot_decoder import SlotDecoder
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models import art_tiny
from art_trainer.models.loading import add_lora_adapter, load_tokenizer
from art_trainer.serving.dialects.batch_scheduler import BatchScheduler, GenerationJob
from art_trainer.serving.dialects.served_policy import ServedPolicy
from art_trainer.training.trainer import GRPOTrainer

MOST = {
    "operations on two devices": 0, "waits a step": 1, "copies a step": 1, "launches a layer": 50,
    "launches a layer, with an adapter": 64, "launches besides": 36,
}  # fmt: skip
NAME, DEVICE = "standin", torch.device("privateuseone", 0)
NO_KERNEL = {"_unsafe_view", "_reshape_alias", "lift_fresh", "set_"}
WAITS = {"_local_scalar_dense", "is_nonzero", "nonzero", "equal", "masked_select", "_unique2"}
counts, mixed = Counter[str](), Counter[str]()


def dispatch(self: object, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
    """Run an operation on what the tensors hold; the result is on the device unless it is fetched."""
    kwargs = kwargs or {}
    tensors = [x for x in pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    own = [x for x in tensors if isinstance(x, OnDevice)]
    name, target = func._schema.name.split("::")[1], torch.device(kwargs.get("device") or "meta").type
    if not own and target != NAME:
        return func(*args, **kwargs)
    if func._can_decompose():
        with Mode():
            result = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
    if name == "_fused_sdp_choice":
        return 0
    others = any(x.dim() and not isinstance(x, OnDevice) for x in tensors)
    fetched = target == "cpu" or (name == "copy_" and not isinstance(args[0], OnDevice))
    by_mask = name == "index" and any(getattr(i, "dtype", None) == torch.bool for i in args[1])
    copies = name in ("copy_", "_to_copy")
    counts["waits"] += fetched or name in WAITS or by_mask
    counts["copies"] += copies and others and not fetched
    counts["launches"] += bool(own) and not (func.is_view or name in NO_KERNEL or "empty" in name)
    mixed[name] += bool(own) and others and not copies and name != "set_"
    there = {"device": torch.device("cpu"), "pin_memory": False}
    plain = kwargs | {key: x for key, x in there.items() if key in kwargs}
    bare = pytree.tree_map(lambda x: x.inner if isinstance(x, OnDevice) else x, (args, plain))
    out = func(*bare[0], **bare[1])
    if fetched or name in ("_local_scalar_dense", "is_nonzero", "equal"):
        return args[0] if name == "copy_" else out
    known = {id(x.inner): x for x in own}

    def wrap(x: Any) -> Any:
        plain = isinstance(x, torch.Tensor) and not isinstance(x, OnDevice)
        return x if not plain else known[id(x)] if id(x) in known else OnDevice(x)

    wrapped = pytree.tree_map(wrap, out)
    if func._schema.is_mutable or any(r.alias_info is not None for r in func._schema.returns):
        return return_and_correct_aliasing(func, args, kwargs, wrapped)
    return wrapped


class OnDevice(torch.Tensor):
    """A tensor that says it is on the device."""

    __torch_function__ = torch._C._disabled_torch_function_impl
    __torch_dispatch__ = classmethod(dispatch)

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> OnDevice:
        """Wrap a CPU tensor."""
        made: Any = torch.Tensor._make_wrapper_subclass(
            cls, inner.size(), strides=inner.stride(), storage_offset=inner.storage_offset(),
            dtype=inner.dtype, layout=inner.layout, device=DEVICE, requires_grad=False,
        )  # fmt: skip
        made.inner = inner
        made.storage, made.untyped_storage = inner.storage, inner.untyped_storage
        return made

    def tolist(self) -> Any:
        """Fetch it, which waits."""
        counts["waits"] += 1
        return self.inner.tolist()

    def __deepcopy__(self, memo: dict[int, Any]) -> OnDevice:
        """Copy it on the device."""
        return memo.setdefault(id(self), OnDevice(self.inner.clone()))


class Mode(TorchDispatchMode):
    """Within, in this thread, tensors can be made on the device."""

    __torch_dispatch__ = dispatch

    def __enter__(self) -> Any:
        """Begin."""
        torch._C._set_only_lift_cpu_tensors(True)
        return super().__enter__()


def make_model(layers: int, *, adapter: bool) -> Any:
    """A tiny Qwen2 on the device."""
    shape: Any = Qwen2Config(
        vocab_size=4096, hidden_size=32, intermediate_size=64, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model: Any = AutoModelForCausalLM.from_config(shape, dtype=torch.bfloat16)
    return (add_lora_adapter(model, 2) if adapter else model).to(DEVICE)


def step_counts(layers: int, *, adapter: bool) -> Counter[str]:
    """Count one decode step of four sequences of unequal length."""
    model = make_model(layers, adapter=adapter)
    decoder = SlotDecoder(model, SamplingParams(), read_tokens=4096)
    sequences = [TokenSequence(list(range(9 + place))) for place in range(4)]
    for sequence in sequences:
        sequence.begin_turn(np.random.default_rng(0).random(8, np.float32))
    with sampling_mode(model):
        decoder.start(sequences)
        before = counts.copy()
        decoder.step(sequences)
    return counts - before


def train_and_serve(folder: str) -> None:
    """Play, learn, save, load, publish weights and serve on the device."""
    config = GRPOConfig(
        output_dir=folder, max_completion_length=4, groups_per_step=2, num_generations=3, max_steps=2,
        save_steps=1, eval_episodes=2, beta=0.1, top_p=0.9, importance_sampling_correction=True,
        drop_zero_variance_groups=False,
    )  # fmt: skip
    tokenizer = load_tokenizer(str(art_tiny.path()))
    policies = [TransformersPolicy(make_model(2, adapter=True), tokenizer) for _ in range(2)]
    first, resumed = (GRPOTrainer(policy, lambda: Talk(words=5), config) for policy in policies)
    first.train()
    resumed.load_checkpoint(first.save_checkpoint(f"{folder}/saved"))
    resumed.update_policy(resumed.collect_episodes())
    store = WeightStore(Path(folder, "weights"), resumed.policy)
    manifest = store.publish(1)
    apply_weights(first.policy.model, store.path(1), manifest)
    serve = BatchScheduler._run

    def in_thread(self: BatchScheduler) -> None:
        with Mode():
            serve(self)

    BatchScheduler._run = in_thread  # type: ignore[method-assign]
    with ServedPolicy(resumed.policy) as served:
        job = GenerationJob([1, 2, 3], np.zeros(4, np.float32), StopStrings((), str), served.sampling, 2)
        served.scheduler.submit([job])
        job.result.result(60)
        served.update(7)


def main() -> int:
    """Count, and compare with the most allowed."""
    options = harness.parser(__doc__, quick="the same").parse_args()
    device = SimpleNamespace(
        is_initialized=lambda: True, is_available=lambda: True, current_device=lambda: 0,
        device_count=lambda: 1, _is_in_bad_fork=lambda: False, manual_seed_all=lambda seed: None,
    )  # fmt: skip
    _setup_privateuseone_for_python_backend(rename=NAME, backend_module=device)
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    with Mode(), tempfile.TemporaryDirectory() as folder:
        two, three = step_counts(2, adapter=False), step_counts(3, adapter=False)
        adapted = [step_counts(layers, adapter=True)["launches"] for layers in (2, 3)]
        train_and_serve(folder)
    found = {
        "operations on two devices": mixed.total(),
        "waits a step": two["waits"],
        "copies a step": two["copies"],
        "launches a layer": three["launches"] - two["launches"],
        "launches a layer, with an adapter": adapted[1] - adapted[0],
        "launches besides": 3 * two["launches"] - 2 * three["launches"],
    }
    rows = [[name, str(n), str(MOST[name])] for name, n in found.items()]
    harness.show("Counts", ["", "found", "most"], rows)
    failures = [f"{name}: {n} {dict(mixed)}" for name, n in found.items() if n > MOST[name]]
    return harness.finish(options, {"counts": found}, failures)


if __name__ == "__main__":
    sys.exit(main())
