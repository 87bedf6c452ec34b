"""Export of recorded episodes as a dataset for supervised fine-tuning.

The format is TRL's conversational one (https://huggingface.co/docs/trl/dataset_formats)::

    {"prompt": [{"role": "user", "content": …}, …], "completion": [message], "tools": "[…]"}

For TRL ``tools`` is JSON text: Arrow would merge the schemas of different tools into one structure. An
assistant's message is the reply as it was sampled, tool calls included.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Container, Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from art_trainer.errors import ConfigError
from art_trainer.rollout.episodes import first_messages
from art_trainer.tracking.episode_store import iter_steps, require_observations
from art_trainer.tracking.run_dir import require_writable
from art_trainer.types import Episode

Row = dict[str, Any]


def selected_episodes(
    run: Path | str,
    *,
    min_reward: float | None = None,
    steps: Container[int] | None = None,
    duplicates: bool = False,
) -> Iterator[Episode]:
    """Yield each episode good enough to learn from.

    Such an episode has a turn and no fault. One step is in memory at a time.

    Args:
        run: The run folder.
        min_reward: The lowest reward; ``None`` for any.
        steps: The training steps; ``None`` for all.
        duplicates: Whether an episode with the same text as an earlier one is taken again.

    Raises:
        RecordError: If a record is damaged.
    """
    seen: set[bytes] = set()
    for group in (group for step in iter_steps(run, steps) for group in (*step.groups, *step.replaced)):
        for episode in group.episodes:
            texts = [episode.env_id, episode.observation, *(turn.reply for turn in episode.turns)]
            digest = hashlib.blake2b(json.dumps(texts).encode(), digest_size=16).digest()
            good = min_reward is None or episode.reward >= min_reward
            if good and episode.turns and not episode.failed and (duplicates or digest not in seen):
                seen.add(digest)
                yield episode


def sft_rows(episode: Episode, systems: Iterable[str] = ()) -> Iterator[Row]:
    """Yield a row for each reply: what the policy had read is the prompt, on which TRL does not train.

    Whole conversations would need a chat template that marks replies; most have no marks, and TRL then
    trains on the observations too.

    Args:
        episode: An episode with a turn.
        systems: Instructions that its first observation may begin with; they become the system message, as
            they were for the policy.
    """
    system = next((one for one in systems if episode.observation.startswith(one)), "")
    messages = first_messages(episode.observation, system)
    tools = {"tools": json.dumps(episode.tools)} if episode.tools else {}
    for turn in episode.turns:
        reply = {"role": "assistant", "content": turn.reply}
        yield {"prompt": list(messages), "completion": [reply], **tools}
        messages += [reply, {"role": "user", "content": turn.observation}]


def export_data(
    run: Path | str,
    target: Path | str,
    *,
    systems: Sequence[str] = (),
    **selection: Any,
) -> int:
    """Write a run's episodes as a dataset. An existing file is replaced once everything is written.

    Args:
        run: The run folder.
        target: The file, ``….jsonl``.
        systems: Instructions that first observations begin with: one, or one a seat of a game.
        selection: Which episodes, as for :func:`selected_episodes`; by default all.

    Returns:
        The rows written.

    Raises:
        ConfigError: For another file type, or a folder that cannot be written.
        RecordError: If a record is damaged, or lacks observations.
    """
    target = Path(target)
    if target.suffix != ".jsonl":
        raise ConfigError(f"unknown file type {target}: use .jsonl")
    require_writable(target)
    require_observations(run)
    rows = (row for episode in selected_episodes(run, **selection) for row in sft_rows(episode, systems))
    target.parent.mkdir(parents=True, exist_ok=True)
    count = 0
    with TemporaryDirectory(dir=target.parent) as folder:
        partial = Path(folder) / "rows"
        with partial.open("w", encoding="utf-8") as stream:
            for row in rows:
                stream.write(json.dumps(row) + "\n")
                count += 1
        partial.chmod(0o600)
        os.replace(partial, target)
    return count
