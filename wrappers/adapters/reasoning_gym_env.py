"""``reasoning-gym/Task-v0``: the generated tasks of reasoning-gym, one reply each, with splits.

An item of a reasoning-gym dataset is made of a seed and a place alone. Each split has seeds of its own, so an
item of one split is in no other unless the generator happens to draw the same question twice.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from art_gym.baselines import Act, Baseline
from art_gym.wrappers.adapters.common import FreeTextEnv, import_optional, require_known, split_tasks
from art_gym.wrappers.text_adapter import TextAdapter

SIZES = {"train": 10_000, "validation": 200, "test": 500}
"""How many items each split has."""

EVALUATES = frozenset({
    "binary_matrix", "countdown", "intermediate_integration", "n_queens", "polynomial_multiplication",
    "puzzle24", "simple_integration", "spiral_matrix", "string_insertion",
})  # fmt: skip
"""Datasets that score a reply with Python's ``eval``, directly or through SymPy (reasoning-gym 0.1.25)."""
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


class ReasoningGymEnv(FreeTextEnv):
    """A reasoning-gym dataset with Gymnasium's interface: ``options={"item": i}`` asks item ``i``.

    Args:
        dataset: The dataset.
        exact: Pay 1 for a right answer and 0 for any other.
    """

    def __init__(self, dataset: Any, *, exact: bool = False) -> None:
        super().__init__()
        self.dataset = dataset
        self.exact = exact
        self.item: dict[str, Any] = {}

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Ask an item; without ``options`` one drawn by the seed."""
        super().reset(seed=seed)
        place = int(self.np_random.integers(len(self.dataset))) if options is None else options["item"]
        self.item = self.dataset[place]
        return self.item["question"], {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Score the answer: what stands in the last ``<answer>`` tags, or the whole reply."""
        tagged = _ANSWER.findall(action)
        answer = (tagged[-1] if tagged else action).strip()
        try:
            score = float(self.dataset.score_answer(answer=answer, entry=self.item))
        except Exception:  # some datasets raise whatever they like at a reply that they cannot read
            score = 0.0
        text = "Right." if score >= 1 else f"The answer was: {self.answer}"
        paid = float(score >= 1) if self.exact else score
        return text, paid, True, False, {"success": score >= 1}

    @property
    def answer(self) -> str:
        """A right answer: the item's, or an example where many are right."""
        example = self.item["metadata"].get("example_answer")
        return str(example if self.item["answer"] is None else self.item["answer"])


def _right_answer(env: ReasoningGymTextEnv, rng: np.random.Generator) -> Act:
    return lambda observation: str(env.env.answer)


def _number(env: ReasoningGymTextEnv, rng: np.random.Generator) -> Act:
    return lambda observation: str(int(rng.integers(100)))


class ReasoningGymTextEnv(TextAdapter):
    """Answer one question of a reasoning-gym dataset.

    The reward is the dataset's score, from 0 to 1. Many datasets pay a little for an answer that is not
    right but holds it, or has its form; ``exact`` pays for right answers alone.

    Args:
        dataset: The dataset's name, such as ``"chain_sum"``.
        exact: Pay 1 for a right answer and 0 for any other.
        allow_eval: Take a dataset of :data:`EVALUATES` too: what a model replies then runs as code in this
            process, and can do all that you can.
        split: ``"train"``, ``"validation"`` or ``"test"``.
        render_mode: As in every ``TextEnv``.
        arguments: The dataset's own, such as ``max_terms=3``.

    Raises:
        ModuleNotFoundError: If reasoning-gym is missing.
        ValueError: If it has no such dataset, or the dataset evaluates replies.
    """

    instructions: ClassVar[str] = "Answer the question. Put the final answer between <answer> and </answer>."
    baselines: ClassVar[Mapping[str, Baseline]] = {"random": _number}
    teachers: ClassVar[Mapping[str, Baseline]] = {"answer": _right_answer}

    def __init__(
        self,
        dataset: str = "chain_sum",
        *,
        exact: bool = False,
        allow_eval: bool = False,
        split: str = "train",
        render_mode: str | None = None,
        **arguments: Any,
    ) -> None:
        library = import_optional("reasoning_gym", "reasoning-gym")
        known = import_optional("reasoning_gym.factory", "reasoning-gym").DATASETS
        require_known("reasoning-gym", "dataset", dataset, known)
        if dataset in EVALUATES and not allow_eval:
            raise ValueError(
                f"the dataset `{dataset}` runs a model's reply as Python code in this process: take another, "
                "or set allow_eval=True on a machine that holds nothing else"
            )
        items = library.create_dataset(dataset, seed=0, size=sum(SIZES.values()), **arguments)
        super().__init__(
            ReasoningGymEnv(items, exact=exact),
            instructions=self.instructions,
            tasks=split_tasks(SIZES, lambda item: {"options": {"item": item}}),
            split=split,
            max_turns=1,
            render_mode=render_mode,
        )
