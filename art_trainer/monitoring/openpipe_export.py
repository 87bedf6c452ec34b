"""Episodes as lines of OpenPipe's fine-tuning files, which are OpenAI's chat format with fields of its own.

Format: https://docs.openpipe.ai/features/datasets/uploading-data. Each line has ``messages`` that end with an
assistant's, ``tools``, and optionally ``split`` and ``metadata`` with strings only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from art_trainer.episodes import Episode, Turn
from art_trainer.rollout import first_messages

Split = Literal["TRAIN", "TEST"]
Unit = Literal["conversation", "turn"]


def openpipe_rows(
    episode: Episode,
    *,
    unit: Unit = "conversation",
    system: str = "",
    native_calls: bool = False,
    split: Split | None = None,
    metadata: Mapping[str, object] | None = None,
) -> Iterator[dict[str, Any]]:
    """Write an episode as rows, each of them one line of a JSONL file.

    Args:
        episode: The episode; one without turns has no rows.
        unit: ``"conversation"``: one row, all the episode up to its last reply. ``"turn"``: one row a reply,
            with what came before it; replies without a valid call are no examples and get none.
        system: The standing instructions that the first observation begins with, where they are to become
            the system message.
        native_calls: Write calls as ``tool_calls`` and their observations as the tool's messages, instead of
            the reply's own words, which are what the policy sampled.
        split: Whether the rows are to train or to test on; ``None`` leaves it to OpenPipe.
        metadata: More of it, such as the run's name.

    Yields:
        Rows that ``json.dumps`` takes.
    """
    messages: list[dict[str, Any]] = first_messages(episode.observation, system)
    last = len(episode.turns) - 1
    for number, turn in enumerate(episode.turns):
        call_id = f"call_{number}"
        native = native_calls and turn.call is not None
        messages.append(_native_reply(turn, call_id) if native else _said(turn))
        if (number == last) if unit == "conversation" else (turn.error is None):
            facts = _facts(episode, None if unit == "conversation" else number) | dict(metadata or {})
            yield {
                "messages": list(messages),
                **({"tools": [dict(tool) for tool in episode.tools]} if episode.tools else {}),
                **({} if split is None else {"split": split}),
                "metadata": {name: _word(value) for name, value in facts.items() if value is not None},
            }
        seen = {"role": "user", "content": turn.observation}
        if native:
            seen = {"role": "tool", "tool_call_id": call_id, "content": turn.observation}
        messages.append(seen)


def _facts(episode: Episode, turn: int | None) -> dict[str, object]:
    return {
        "env_id": episode.env_id,
        "task_id": episode.task_id,
        "seed": episode.seed,
        "ending": episode.ending.value,
        "success": episode.success,
        "reward": episode.reward,
        "turn": turn,
        "turn_reward": None if turn is None else episode.turns[turn].reward,
    }


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _said(turn: Turn) -> dict[str, Any]:
    return {"role": "assistant", "content": turn.reply}


def _native_reply(turn: Turn, call_id: str) -> dict[str, Any]:
    """A reply as OpenAI's models give it: what was said before the call, and the call apart from it."""
    call = turn.call or {}
    name = str(call.get("name", ""))
    starts = [turn.reply.find(mark) for mark in ("<tool_call>", f"{name}(", f"<{name}>")]
    # Where the call stands is not recorded; without a known beginning the words cannot be told from it.
    place = min((start for start in starts if start >= 0), default=0)
    function = {"name": name, "arguments": json.dumps(call.get("arguments") or {}, ensure_ascii=False)}
    return {
        "role": "assistant",
        "content": turn.reply[:place].strip() or None,
        "tool_calls": [{"id": call_id, "type": "function", "function": function}],
    }
