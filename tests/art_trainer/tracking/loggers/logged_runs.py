"""Episodes of every kind, and runs that loggers show."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from art_trainer.tracking.loggers.base import LoggerCallback, RunInfo, RunLogger, make_logger
from art_trainer.types import Ending, Episode, Group, Judgement, Span, TokenHistory, Turn

SETTINGS = {
    "env": "art/Email-v0", "model": "art-tiny", "temperature": 0.7, "max_completion_length": 4, "seed": 3,
}  # fmt: skip
TOOLS = (
    {"type": "function", "function": {"name": "search", "parameters": {"type": "object", "properties": {}}}},
)


def solved() -> Episode:
    """Two calls, judged and measured, with the tokens of both replies."""
    history = TokenHistory(
        (
            Span((1, 2, 3, 4, 5)),
            Span((6, 7, 8), 0, (-0.1, -0.2, -0.3), 11),
            Span((9, 10)),
            Span((11, 12, 13, 14), 1, (-0.1, -0.2, -0.3, -0.4), 11),
        )
    )
    search = {"name": "search", "arguments": {"query": "bücher"}}
    answer = {"name": "answer", "arguments": {"text": "5 €"}}
    turns = (
        Turn('I look.\nsearch("bücher")', "Nothing found. ☃", -0.1, {"cost": -0.1}, search),
        Turn('answer("5 €")', "Right.", 1.0, {"correct": 1.0, "cost": 0.0}, answer),
    )
    return Episode(
        "art/Email-v0", "task-7", 41, "What did the books cost?", turns, (history,), Ending.TERMINATED,
        success=True, metrics={"searches": 1.0}, tools=TOOLS,
        judgements={"clarity": Judgement(0.75, "short and clear", {"tone": 0.5})}, independent_reward=0.8,
    )  # fmt: skip


def invalid() -> Episode:
    """A reply without a call, then the end; no tokens. Half a surrogate pair is in what was seen."""
    fault = {"kind": "no_call", "message": "no call was found"}
    turns = (Turn("hello", "No call was found. \ud83d", -0.5, {"invalid": -0.5}, None, fault),)
    return Episode("art/Email-v0", "task-8", 42, "Find it.", turns, (), Ending.TRUNCATED, success=False)


def broken() -> Episode:
    """The environment raised at once."""
    return Episode("art/Email-v0", "task-9", 43, "", (), (), Ending.ENV_ERROR, error="KeyError: 'inbox'")


def metrics(step: int) -> dict[str, float]:
    """A line of ``metrics.jsonl``."""
    return {"step": float(step), "reward": step / 2, "eval_success": 0.25, "time/update": 1.5}


def groups() -> list[Group]:
    """The groups of a step, of one episode each: the three kinds."""
    return [Group((episode,)) for episode in (solved(), invalid(), broken())]


def log_run(folder: Path, loggers: Iterable[str | RunLogger], *, first: int = 1, last: int = 2) -> None:
    """Do some steps of a run, the last of which saves a checkpoint; they follow those before ``first``."""
    run = RunInfo(folder, SETTINGS)
    made = [make_logger(one, run) if isinstance(one, str) else one for one in loggers]
    callback = LoggerCallback(run, made)
    callback.on_begin(first - 1)
    for step in range(first, last + 1):
        callback.on_logged(metrics(step), groups())
    checkpoint = folder / "checkpoints" / f"step-{last:06d}"
    (checkpoint / "model").mkdir(parents=True, exist_ok=True)
    (checkpoint / "model" / "weights").write_text(f"weights {last}")
    callback.on_checkpoint(last, checkpoint, ("latest",))
    callback.on_end("finished")
