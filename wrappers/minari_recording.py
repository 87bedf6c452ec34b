"""Recorded episodes as a Minari dataset, the format in which offline learners share data, and back.

``RecordEpisodes`` writes JSON lines, :func:`episodes_to_minari` makes a dataset of such a file::

    env = RecordEpisodes(gym.make("art/Email-v0"), "episodes.jsonl")
    ...
    dataset = episodes_to_minari("episodes.jsonl", "mail/random-v0", author="me", algorithm_name="random")

Minari holds texts in Gymnasium's ``Text`` space, which wants a finite set of characters. The spaces of a
dataset have the characters that occur in it and the length of its longest text, so every text in it is a
member, and readers need Minari alone. Each recorded episode is also stored whole, as JSON in the
episode's metadata, because Minari has no place for ``score_terms``, calls, errors and the metrics at the end:
:func:`episodes_from_minari` returns it.

Minari is optional: ``pip install minari pyarrow pillow``. Its Arrow storage imports Pillow for texts too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from gymnasium.spaces import Text

_NEEDED = {"minari": "minari", "pyarrow": "pyarrow", "PIL": "pillow"}
_missing = [module for module in _NEEDED if find_spec(module) is None]
if _missing:
    raise ModuleNotFoundError(
        f"art_gym.wrappers.minari_recording needs {', '.join(_missing)}: pip install minari pyarrow pillow",
        name=_missing[0],
    )

import minari  # type: ignore[import-untyped]  # noqa: E402
from minari.data_collector.episode_buffer import EpisodeBuffer  # type: ignore[import-untyped]  # noqa: E402

Line = dict[str, Any]
"""An episode as ``RecordEpisodes`` writes it."""

_LINE = "recorded_episode"  # its key in an episode's metadata


def episodes_to_minari(
    episodes: str | PathLike[str] | Iterable[Mapping[str, Any]],
    dataset_id: str,
    *,
    data_format: Literal["arrow", "parquet"] = "arrow",
    **about: Any,
) -> minari.MinariDataset:
    """Make a Minari dataset of recorded episodes; it is stored where Minari keeps its datasets.

    Observations and actions are the texts. In a text that is no Unicode, as a model's reply may be, lone
    surrogates are replaced; ``episodes_from_minari`` knows the original. An episode that was abandoned is
    marked as truncated, as Minari's own collector does.

    Args:
        episodes: A file that ``RecordEpisodes`` wrote, or its lines as dictionaries.
        dataset_id: The new dataset's id, such as ``"mail/random-v0"``.
        data_format: Minari's name of the storage.
        about: Passed on to ``minari.create_dataset_from_buffers``: ``env``, ``author``, ``description`` …

    Raises:
        ValueError: If there is no episode, or episodes are of several environments.
    """
    lines = _read(episodes) if isinstance(episodes, str | PathLike) else [dict(line) for line in episodes]
    if not lines:
        raise ValueError("a dataset needs at least one episode, there is none in what was recorded")
    env_ids = sorted({str(line["env_id"]) for line in lines})
    if len(env_ids) > 1:
        raise ValueError(f"a dataset is of one environment, these episodes are of {', '.join(env_ids)}")
    buffers = [_buffer(number, line) for number, line in enumerate(lines)]
    dataset = minari.create_dataset_from_buffers(
        dataset_id,
        buffers,
        observation_space=_space(text for buffer in buffers for text in buffer.observations),
        action_space=_space(text for buffer in buffers for text in buffer.actions),
        data_format=data_format,
        **about,
    )
    dataset.storage.update_episode_metadata([{_LINE: json.dumps(line)} for line in lines])
    return dataset


def episodes_from_minari(dataset: minari.MinariDataset) -> Iterator[Line]:
    """The recorded episodes that a dataset was made of, equal to the lines of ``RecordEpisodes``.

    Args:
        dataset: What :func:`episodes_to_minari` returned, or ``minari.load_dataset`` of it.

    Raises:
        ValueError: For a dataset that was made otherwise.
    """
    metadata = dataset.storage.get_episode_metadata(dataset.episode_indices)
    for number, about in zip(dataset.episode_indices, metadata, strict=True):
        if _LINE not in about:
            raise ValueError(f"episode {number} of {dataset.id} was not made by episodes_to_minari")
        yield json.loads(about[_LINE])


def _read(path: str | PathLike[str]) -> list[Line]:
    with Path(path).open(encoding="utf-8") as file:
        return [json.loads(text) for text in file]


def _buffer(number: int, line: Mapping[str, Any]) -> EpisodeBuffer:
    """An episode as Minari takes it."""
    turns = line["turns"]
    ends = [False] * (len(turns) - 1)
    return EpisodeBuffer(
        id=number,
        seed=line["seed"],
        observations=[_unicode(seen["observation"]) for seen in (line, *turns)],
        actions=[_unicode(turn["reply"]) for turn in turns],
        rewards=[turn["reward"] for turn in turns],
        terminations=[*ends, line["terminated"]],
        truncations=[*ends, not line["terminated"]],
    )


def _unicode(text: str) -> str:
    return text.encode(errors="replace").decode()


def _space(texts: Iterable[str]) -> Text:
    """The smallest space that holds these texts."""
    characters: set[str] = set()
    longest = 1
    for text in texts:
        characters.update(text)
        longest = max(longest, len(text))
    # Gymnasium cannot batch a Text space without characters.
    return Text(longest, min_length=0, charset="".join(sorted(characters)) or " ")
