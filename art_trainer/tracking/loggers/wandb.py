"""Weights & Biases: metrics, tables of episodes and actions, checkpoints as artifacts.

With a key the run is online, without one offline: everything is then in ``RUN/wandb``, and W&B's own
``wandb sync`` sends it.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import wandb
import wandb.errors

from art_trainer.tracking.callbacks import Outcome
from art_trainer.tracking.loggers.base import (
    LoggerError,
    RunLogger,
    dashboard_metrics,
    episode_id,
)
from art_trainer.tracking.loggers.redaction import redact
from art_trainer.tracking.run_dir import private_folder
from art_trainer.types import Episode, Group, Turn

_log = logging.getLogger(__name__)

_PROJECT = "art-gym"
_OFFLINE = "offline"
_BEGIN_SECONDS = 30
_END_SECONDS = 60
_EXIT_CODES = {"finished": 0, "interrupted": 130, "failed": 1}
_SHOWN = 128  # episodes of a step in the tables, whose rows are most of what this logger costs
_EXCERPT = 48  # characters of each end of a long state
_EPISODE_COLUMNS: dict[str, type] = {
    "step": int,
    "episode_id": str,
    "task_id": str,
    "reward": float,
    "success": bool,
    "turns": int,
    "invalid_actions": int,
    "ending": str,
}
_ACTION_COLUMNS: dict[str, type] = {
    "step": int,
    "episode_id": str,
    "turn": int,
    "action": str,
    "reward": float,
    "state": str,
}


class WandbLogger(RunLogger):
    """Logs into one W&B run, the same one when the training run is resumed: ``RUN/wandb/run_id`` has its id.

    W&B reads its settings from the environment: ``WANDB_API_KEY``, ``WANDB_PROJECT`` and its other variables.
    Without a key the run is offline, unless ``WANDB_MODE`` says otherwise, such as ``online`` if
    ``wandb login`` has left one. It is also offline if W&B does not answer, or refuses the key, as it begins.
    """

    name = "wandb"

    def on_begin(self, step: int) -> None:
        """Begin a W&B run, or resume that of an earlier process."""
        self._id = _run_id(self.run.folder / "wandb" / "run_id", resumed=step > 0)
        mode = os.environ.get("WANDB_MODE") or ("online" if os.environ.get("WANDB_API_KEY") else _OFFLINE)
        try:
            self._wandb_run = self._init(mode)
        except wandb.errors.Error as error:
            if mode == _OFFLINE:
                raise
            _log.warning("wandb: %s. The run is offline.", " ".join(redact(error).split()))
            wandb.teardown()  # the failed attempt holds the run's id
            self._wandb_run = self._init(_OFFLINE)

    def _init(self, mode: str) -> Any:
        """Begin or resume the W&B run; nothing is printed, and no code is sent."""
        folder, config = self.run.folder, self.run.config
        settings = wandb.Settings(
            silent=True,
            console="off",
            disable_git=True,
            disable_code=True,
            save_code=False,
            init_timeout=_BEGIN_SECONDS,
            finish_timeout=float(os.environ.get("WANDB_FINISH_TIMEOUT", _END_SECONDS)),
            finish_timeout_raises=True,
        )
        return wandb.init(
            mode=mode,  # type: ignore[arg-type]  # W&B checks it
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=folder.resolve().name,
            id=self._id,
            resume="allow",
            reinit="create_new",
            dir=str(folder),
            config=dict(config),
            tags=["ART", "GRPO", Path(config.get("model", "unknown")).name],
            settings=settings,
        )

    def on_logged(self, metrics: Mapping[str, float], groups: Sequence[Group] = ()) -> None:
        """Log a row: metrics, a table of the first episodes, and one of their actions."""
        step, episodes = int(metrics["step"]), [episode for group in groups for episode in group.episodes]
        if step < self._wandb_run.step:  # W&B has it from before the run was resumed, and would warn
            return
        row: dict[str, Any] = dashboard_metrics(metrics)
        if episodes:
            shown = {episode_id(step, index): one for index, one in enumerate(episodes[:_SHOWN])}
            row["episodes"] = _table(_EPISODE_COLUMNS, _episode_rows(step, shown))
            row["actions"] = _table(_ACTION_COLUMNS, _action_rows(step, shown))
        self._wandb_run.log(row, step=step, commit=True)

    def on_checkpoint(self, step: int, folder: Path, aliases: tuple[str, ...]) -> None:
        """Log a checkpoint's model as an artifact."""
        metadata = {"step": step, **{name: self.run.config.get(name, "unknown") for name in ("env", "model")}}
        name = self.run.folder.resolve().name
        artifact = wandb.Artifact(f"{name}-model", "model", metadata=metadata)
        weights = folder / "model"
        root = weights if weights.is_dir() else folder
        # W&B copies each file, so that it may be deleted afterwards; add_dir would print.
        for file in sorted(path for path in root.rglob("*") if path.is_file()):
            artifact.add_file(str(file), name=str(file.relative_to(root)))
        self._wandb_run.log_artifact(artifact, aliases=[*aliases, f"step-{step}"])

    def on_end(self, outcome: Outcome) -> None:
        """End the W&B run, and say how to send what W&B does not have.

        Raises:
            LoggerError: If not everything was uploaded in a minute, or ``WANDB_FINISH_TIMEOUT`` seconds.
        """
        folder = Path(self._wandb_run.dir).parent
        try:
            self._wandb_run.finish(exit_code=_EXIT_CODES[outcome])
        except TimeoutError as error:
            raise LoggerError(f"not everything was uploaded; to send it: wandb sync {folder}") from error
        if self._wandb_run.offline:
            _log.info("wandb was offline; to send the run: wandb sync %s/offline-run-*", folder.parent)


def _run_id(file: Path, *, resumed: bool) -> str:
    """The W&B run's id: that of the run that is resumed, or a new one."""
    if not (resumed and file.exists()):
        private_folder(file.parent)
        file.write_text(uuid.uuid4().hex[:12], encoding="utf-8")
    return file.read_text(encoding="utf-8")


def _table(columns: Mapping[str, type], rows: Iterable[list[Any]]) -> wandb.Table:
    """A table of the first rows, as many as W&B takes: it drops more without a word."""
    data = list(rows)[: wandb.Table.MAX_ROWS]
    return wandb.Table(columns=list(columns), data=data, dtype=list(columns.values()), optional=True)


def _episode_rows(step: int, episodes: Mapping[str, Episode]) -> Iterable[list[Any]]:
    for name, one in episodes.items():
        yield [
            *(step, name, one.task_id, one.reward, one.success),
            *(len(one.turns), one.invalid_actions, one.ending.value),
        ]


def _action_rows(step: int, episodes: Mapping[str, Episode]) -> Iterable[list[Any]]:
    """Yield a row for each reply: the tool it called, and the state that it answered."""
    for name, episode in episodes.items():
        state = episode.observation
        for number, turn in enumerate(episode.turns, 1):
            yield [step, name, number, _action(turn), turn.reward, _excerpt(state)]
            state = turn.observation


def _action(turn: Turn) -> str:
    """The tool that was called, ``invalid:`` and the kind of error, or ``text``."""
    if turn.error is not None:
        return f"invalid:{turn.error.get('kind', 'unknown')}"
    return str(turn.call["name"]) if turn.call is not None else "text"


def _excerpt(state: str) -> str:
    """A state in one line; of a long one the beginning and the end."""
    short = state if len(state) <= 2 * _EXCERPT else f"{state[:_EXCERPT]} … {state[-_EXCERPT:]}"
    return " ".join(short.split())
