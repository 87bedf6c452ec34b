"""One recorded episode for the page: turn by turn, with rewards and the log-probs of its tokens."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art_trainer.errors import RecordError
from art_trainer.formatting import finite
from art_trainer.tracking.episode_schema import episode_from_json
from art_trainer.tracking.frame_file import Frame
from art_trainer.types import Episode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_TOKENS = 20_000
"""Tokens of a reply; a longer one is shown without the texts of its tokens."""
_SPACE = re.compile(r"\s*")


def episode_view(run: Path, frame: Frame, place: int) -> dict[str, Any] | None:
    """Return an episode with its place among the attempts of its group.

    Args:
        run: The run folder.
        frame: The frame of its step.
        place: Its number in the frame, from 0.

    Returns:
        The episode's fields without its tokens; each turn with ``logprobs``, ``texts`` of its tokens and
        ``versions`` of the weights; and ``attempts``, a summary of its group. ``None`` if the frame holds
        fewer episodes. Numbers that are not finite are ``None``.

    Raises:
        RecordError: The records are damaged.
    """
    try:
        lines = [json.loads(line) for line in frame.lines()]
        if place >= len(lines):
            return None
        data = lines[place]
        group = {
            at: episode_from_json(line)
            for at, line in enumerate(lines)
            if (line["group"], line["replaced"]) == (data["group"], data["replaced"])
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise RecordError(f"{frame}: not an episode ({error!r})") from error
    episode = group[place]
    copied = (
        "env_id", "task_id", "seed", "observation", "success", "reward", "independent_reward", "score_terms",
        "metrics", "error", "unjudged", "tools", "facts",
    )  # fmt: skip
    view: dict[str, Any] = finite(
        {
            **{name: data[name] for name in ("step", "group", "replaced", "judgements")},
            **{name: getattr(episode, name) for name in copied},
            "place": place,
            "ending": str(episode.ending),
            "turns": _turns(run, episode),
            "attempts": [{"place": at, **_summary(one)} for at, one in group.items()],
        }
    )
    return view


def _turns(run: Path, episode: Episode) -> list[dict[str, Any]]:
    tokens: list[list[int]] = [[] for _ in episode.turns]
    logprobs: list[list[float]] = [[] for _ in episode.turns]
    versions: list[set[int]] = [set() for _ in episode.turns]
    for history in episode.histories:
        for span in history.spans:
            if span.turn is not None and span.turn < len(tokens):
                tokens[span.turn] += span.token_ids
                logprobs[span.turn] += span.logprobs
                versions[span.turn].add(span.policy_version)
    tokenizer = _newest_tokenizer(run)
    copied = ("reply", "observation", "reward", "score_terms", "call", "error", "cut")
    return [
        {
            **{name: getattr(turn, name) for name in copied},
            "logprobs": [round(v, 4) + 0.0 if math.isfinite(v) else None for v in logprobs[number]],
            "texts": token_texts(tokenizer, tokens[number], turn.reply),
            "versions": sorted(versions[number]),
        }
        for number, turn in enumerate(episode.turns)
    ]


def _summary(episode: Episode) -> dict[str, Any]:
    return {
        "reward": episode.reward,
        "success": episode.success,
        "ending": str(episode.ending),
        "failed": episode.failed,
        "turns": len(episode.turns),
    }


def _newest_tokenizer(run: Path) -> Tokenizer | None:
    """The tokenizer of the newest checkpoint. Only ``tokenizer.json`` is read: no code of its author runs."""
    found = max((run / "checkpoints").glob("*/model/tokenizer.json"), default=None)
    return None if found is None else _load_tokenizer(str(found), found.stat().st_mtime_ns)


@lru_cache(maxsize=2)
def _load_tokenizer(file: str, changed: int) -> Tokenizer | None:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(file)
    except Exception:  # the library raises nothing more specific
        return None


def token_texts(tokenizer: Tokenizer | None, tokens: Sequence[int], text: str) -> list[str] | None:
    """Return the text of each token of a reply; ``None`` if its tokens have no text.

    A token whose character ends in the next token has an empty text.
    """
    from tokenizers.decoders import DecodeStream

    if tokenizer is None or not tokens or len(tokens) > MAX_TOKENS:
        return None
    if max(tokens) >= tokenizer.get_vocab_size():
        return None
    stream = DecodeStream(skip_special_tokens=False)
    return align_pieces([stream.step(tokenizer, token) or "" for token in tokens], text)


def align_pieces(pieces: Sequence[str], text: str) -> list[str]:
    """Cut a text between the tokens' pieces, even if the decoder added or removed spaces between them.

    Pieces after the end of the text, such as a stop token, stay as they are. If the pieces do not match the
    text, all do.
    """
    cuts: list[str] = []
    place = 0
    for number, piece in enumerate(pieces):
        word, space = piece.strip(), _SPACE.match(text, place)
        start = space.end() if space and piece else place
        if word and not text.startswith(word, start):
            return [*cuts, *pieces[number:]] if start == len(text) else list(pieces)
        cuts.append(text[place : start + len(word)])
        place = start + len(word)
    return cuts
