"""Reads a run's records and metrics once, into sums whose number does not grow with the run.

Training is divided into at most 96 ranges of steps, which double in width as a run grows. Each range holds
:class:`Sums`, so ranges can be added up to thirds of the training or to all of it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from art_trainer.analysis.error_patterns import ErrorCollector
from art_trainer.analysis.task_rates import TaskCollector
from art_trainer.errors import RecordError
from art_trainer.tracking.episode_store import FILE, iter_steps
from art_trainer.tracking.run_dir import RunFolder, parse_line
from art_trainer.tracking.stalls import StallDetector
from art_trainer.types import CUT_OFF, Episode, Turn

REWARD: Final = "reward"
TERM: Final = "score/"
"""Prefix of the names of reward terms."""
JUDGE: Final = "judge/"
"""Prefix of the names of judges' scores."""
UNNAMED: Final = "(unnamed)"
"""The part of the reward that no term names."""
LATER_TURNS: Final = 10
"""This turn (from 0) and all after it are counted together."""

_SCRIPT_SHARE = "script_share"
_HIDDEN = ("step", "read_tokens", "reports_success")
_RANGES = 96
_TOOLS = 64
_NEGLIGIBLE = 1e-6
_MOST_WORDS = 300


class Sums(defaultdict[tuple[str | int, ...], float]):
    """Sums over episodes, or over lines of the log.

    A quantity, such as ``reward`` or ``score/TERM``, has the keys ``(name, part)`` with the parts ``count``,
    ``sum``, ``squares`` and ``positive``, and the reward and its terms ``won``, the sum over successful
    episodes, and four parts of how it varies with the length of replies. ``("grouped", part)`` are products
    of a group's wins and size, summed over groups. Other keys count: ``("episodes",)``,
    ``("faults",)``, ``("ending", ENDING)``, ``("tool", TURN, NAME)``, and the groups in which at least half
    of the attempts gave exactly the same replies, ``("script", DIGEST)``, of ``("compared",)``.
    """

    def __init__(self, parts: Iterable[Sums] = ()) -> None:
        super().__init__(float)
        for part in parts:
            self.merge(part)

    def merge(self, other: Sums) -> None:
        """Add all sums of another."""
        for key, value in other.items():
            self[key] += value

    def add(self, name: str, value: float) -> None:
        """Add one value of a quantity; one that is not finite is left out."""
        if math.isfinite(value):
            self[name, "count"] += 1
            self[name, "sum"] += value
            self[name, "squares"] += value * value
            self[name, "positive"] += value > 0

    def add_class(self, name: str, lengths: Sequence[float], values: Sequence[float]) -> None:
        """Add how a quantity varies with the length of replies within one class of episodes."""
        x, y = np.asarray(lengths) - np.mean(lengths), np.asarray(values) - np.mean(values)
        self[name, "xy"] += float(x @ y)
        self[name, "xx"] += float(x @ x)
        self[name, "yy"] += float(y @ y)
        self[name, "freedom"] += len(x) - 1

    @property
    def episodes(self) -> int:
        """Episodes without a fault."""
        return self.count("episodes")

    def count(self, *key: str | int) -> int:
        """A count."""
        return int(self.get(key, 0))

    def names(self, prefix: str = "") -> list[str]:
        """Names of the quantities, without the prefix that they must have."""
        found = (str(key[0]) for key in self if key[1:] == ("count",))
        return [name.removeprefix(prefix) for name in found if name.startswith(prefix)]

    def tally(self, kind: str) -> Counter[str]:
        """Counts of one kind."""
        return Counter({str(key[1]): int(value) for key, value in self.items() if key[0] == kind})

    def mean(self, name: str) -> float | None:
        """Mean over the episodes that have the quantity; ``None`` if none has.

        An episode that does not name a reward term counts as 0.
        """
        if name == _SCRIPT_SHARE:
            return self.script_share()
        count = self.get((REWARD if name.startswith(TERM) else name, "count"), 0)
        if not count or (name == "success" and self.get(("reports_success", "sum"), 1) == 0):
            return None
        return self.get((name, "sum"), 0.0) / count

    def std(self, name: str) -> float:
        """The sample standard deviation of a quantity; 0 for fewer than two values."""
        count, total = self.get((name, "count"), 0), self.get((name, "sum"), 0.0)
        if count < 2:
            return 0.0
        return math.sqrt(max(0.0, self[name, "squares"] - total * total / count) / (count - 1))

    def length_correlation(self, name: str) -> float | None:
        """Pearson's correlation with the length of replies within classes; ``None`` if one never varies."""
        xx, yy = self.get((name, "xx"), 0.0), self.get((name, "yy"), 0.0)
        # What rounding leaves of equal numbers is no variance.
        if min(xx, yy) < 1e-9 * max(1, self.get((name, "freedom"), 0)):
            return None
        return max(-1.0, min(1.0, self[name, "xy"] / math.sqrt(xx * yy)))

    def script_share(self) -> float | None:
        """Share of the groups with the most common replies; ``None`` for fewer than two groups."""
        groups, scripts = self.count("compared"), self.tally("script")
        return max(scripts.values()) / groups if groups > 1 and scripts else None


class Timeline:
    """Sums by range of steps; ranges double in width when there are too many."""

    def __init__(self) -> None:
        self.width = 1
        """Steps a range."""
        self._ranges: dict[int, Sums] = {}

    def at(self, step: int) -> Sums:
        """The sums of the range that a step is in."""
        while step // self.width not in self._ranges and len(self._ranges) >= _RANGES:
            self.width *= 2
            pairs: dict[int, list[Sums]] = {}
            for place, sums in sorted(self._ranges.items()):
                pairs.setdefault(place // 2, []).append(sums)
            self._ranges = {place: Sums(parts) for place, parts in pairs.items()}
        return self._ranges.setdefault(step // self.width, Sums())

    def ranges(self) -> list[tuple[int, Sums]]:
        """The first step of each range with its sums, in order."""
        return [(place * self.width, sums) for place, sums in sorted(self._ranges.items())]


@dataclass(frozen=True, slots=True)
class Curve:
    """One quantity over the training steps."""

    name: str
    steps: tuple[float, ...]
    values: tuple[float, ...]


@dataclass
class RunRecords:
    """Everything that one pass over a run's files leaves.

    Attributes:
        windows: Sums over the recorded episodes, by range of steps.
        metrics: Sums over the lines of ``metrics.jsonl``, by range of steps.
        errors: Error patterns.
        tasks: Success by task.
        broken_lines: Unreadable lines of ``metrics.jsonl``.
        damage: What was wrong with the records; of episodes nothing after it was read.
        stalls: What kept the run from learning.
        last_step: The last step that was logged or recorded.
        last_recorded: The last step with recorded episodes.
    """

    windows: Timeline = field(default_factory=Timeline)
    metrics: Timeline = field(default_factory=Timeline)
    errors: ErrorCollector = field(default_factory=ErrorCollector)
    tasks: TaskCollector = field(default_factory=TaskCollector)
    broken_lines: int = 0
    damage: list[str] = field(default_factory=list)
    stalls: StallDetector = field(default_factory=lambda: StallDetector({}))
    last_step: int = 0
    last_recorded: int = 0

    @cached_property
    def thirds(self) -> tuple[Sums, Sums]:
        """The first and the last third of the recorded training."""
        windows = [sums for _, sums in self.windows.ranges()]
        third = max(1, len(windows) // 3)
        return Sums(windows[:third]), Sums(windows[-third:])

    @cached_property
    def whole(self) -> Sums:
        """All recorded training."""
        return Sums(sums for _, sums in self.windows.ranges())

    def curve(self, name: str) -> Curve | None:
        """A quantity over the steps: as logged if it was logged, else from the recorded episodes."""
        for timeline in (self.metrics, self.windows):
            ranges = timeline.ranges()
            if name == _SCRIPT_SHARE or any((name, "count") in sums for _, sums in ranges):
                points = [(step, mean) for step, sums in ranges if (mean := sums.mean(name)) is not None]
                if points:
                    return Curve(name, tuple(float(s) for s, _ in points), tuple(v for _, v in points))
        return None

    def curves(self) -> list[Curve]:
        """All curves, logged ones first."""
        names = [*self.names(), _SCRIPT_SHARE]
        return [curve for name in names if name not in _HIDDEN and (curve := self.curve(name)) is not None]

    def names(self, prefix: str = "") -> list[str]:
        """Names of the quantities with a prefix, such as ``TERM``, without it; logged ones first."""
        sums = [sums for timeline in (self.metrics, self.windows) for _, sums in timeline.ranges()]
        return list(dict.fromkeys(name for one in sums for name in one.names(prefix)))


def read_run(run: Path) -> RunRecords:
    """Read a run's training records and metrics once, in bounded memory."""
    settings = RunFolder(run).settings()
    records = RunRecords(stalls=StallDetector(settings))
    tools: set[str] = set()
    for step, members in iter_groups(run, records.damage):
        _add_group(records.windows.at(step), members, tools)
        records.tasks.add([episode for episode in members if not episode.failed])
        for episode in members:
            records.errors.add(step, episode)
        records.last_recorded = max(records.last_recorded, step)
    whole = not records.damage and settings.get("log_episodes") != 0 and (run / FILE).exists()
    _read_metrics(RunFolder(run).metrics_file, records, alone=settings.get("num_generations") == 1)
    if whole and records.last_recorded < records.last_step:
        records.damage.append(
            f"{run / FILE} ends at step {records.last_recorded}, metrics.jsonl at step {records.last_step}"
        )
    records.last_step = max(records.last_step, records.last_recorded)
    return records


def _read_metrics(file: Path, records: RunRecords, *, alone: bool) -> None:
    if not file.exists():
        return
    place = garbage = 0
    with file.open(encoding="utf-8", errors="replace") as stream:
        for text in stream:
            line = parse_line(text)
            if line is None:
                records.broken_lines += 1
                garbage += text.endswith("\n")  # a killed run cuts its last line
                continue
            number = line.get("step")
            step = int(number) if isinstance(number, int | float) and 0 <= number < math.inf else place
            sums = records.metrics.at(step)
            # What was not measured is 0 in a step that trained no token, and 1 in groups of one.
            unknown = {"entropy", "kl", "sampling_kl"} if line.get("trained_tokens") == 0 else set[str]()
            unknown |= {"frac_reward_zero_std"} if alone else set()
            for name, value in line.items():
                if isinstance(value, int | float) and name not in unknown:
                    sums.add(name, value)
            records.stalls.add(step, line)
            records.last_step = max(records.last_step, step)
            place += 1
    if garbage:
        records.damage.append(f"{file} has {garbage} lines that cannot be read")


def iter_groups(run: Path, damage: list[str]) -> Iterator[tuple[int, Sequence[Episode]]]:
    """Iterate over the recorded training episodes by group, each with its step.

    Args:
        run: The run's folder.
        damage: A fault of the records is appended; the steps before it count.
    """
    try:
        for record in iter_steps(run):
            for group in (*record.groups, *record.replaced):
                yield record.step, group.episodes
    except RecordError as error:
        damage.append(str(error))


def measures(episode: Episode) -> dict[str, float]:
    """Quantities of an episode by name.

    ``reward`` and its terms ``score/TERM``; ``turns``; ``reply_length`` (mean characters of a reply);
    ``invalid_actions`` (share of replies); ``repeated_calls``; ``repeated_words``; ``cut_off`` (1 if a limit
    ended it); ``judge/NAME``; and if known ``success``, ``tokens`` (sampled), ``read_tokens`` (prompts and
    observations, each once) and ``independent_reward``.
    """
    turns = episode.turns
    found = {
        REWARD: float(episode.reward),
        "turns": float(len(turns)),
        "reply_length": sum(len(turn.reply) for turn in turns) / max(1, len(turns)),
        "invalid_actions": episode.invalid_actions / max(1, len(turns)),
        "repeated_calls": repeated_calls(turns),
        "repeated_words": repeated_words(turn.reply for turn in turns),
        "cut_off": float(episode.ending in CUT_OFF),
        **{TERM + name: float(value) for name, value in _reward_terms(episode).items()},
        **{JUDGE + name: float(judged.score) for name, judged in episode.judgements.items()},
    }
    if episode.success is not None:
        found["success"] = float(episode.success)
    if episode.histories:
        total = sum(len(span.token_ids) for history in episode.histories for span in history.spans)
        found["tokens"] = float(episode.sampled_tokens)
        found["read_tokens"] = total - found["tokens"]
    if episode.independent_reward is not None:
        found["independent_reward"] = episode.independent_reward
    return found


def _add_group(sums: Sums, members: Sequence[Episode], tools: set[str]) -> None:
    """Add the attempts at one task from one seed; ``tools`` are the names met so far."""
    played = [episode for episode in members if not episode.failed]
    sums["faults",] += len(members) - len(played)
    if not played:
        return
    values = [measures(episode) for episode in played]
    for episode, found in zip(played, values, strict=True):
        sums["episodes",] += 1
        sums["ending", str(episode.ending)] += 1
        # Who does not say that it succeeded has not.
        for name, value in {**found, "success": float(bool(episode.success))}.items():
            sums.add(name, value)
        sums.add("reports_success", "success" in found)
        for name in _paid(found) if episode.success else ():
            sums[name, "won"] += found[name]
        for place, turn in enumerate(episode.turns):
            sums["tool", min(place, LATER_TURNS), _tool_of(turn, tools)] += 1
    rewards = [found[REWARD] for found in values]
    if len(rewards) > 1:
        sums.add("frac_reward_zero_std", max(rewards) - min(rewards) < _NEGLIGIBLE)
        sums.add("reward_std", float(np.std(rewards, ddof=1)))
    _add_lengths(sums, values)
    wins = sum(bool(episode.success) for episode in played)
    for part, product in (("wins", wins * wins), ("both", wins * len(played)), ("sizes", len(played) ** 2)):
        sums["grouped", part] += product
    sums["compared",] += 1
    script, count = Counter(map(_replies_digest, played)).most_common(1)[0]
    if 2 * count >= len(played):
        sums["script", script] += 1


def _add_lengths(sums: Sums, values: Sequence[dict[str, float]]) -> None:
    """Add how pay varies with length, within the group and among attempts with the same success."""
    for success in (0.0, 1.0):
        inside = [found for found in values if found.get("success", 0.0) == success]
        if len(inside) > 1:
            lengths = [found["reply_length"] for found in inside]
            for name in {name for found in inside for name in _paid(found)}:
                sums.add_class(name, lengths, [found.get(name, 0.0) for found in inside])


def _paid(found: Iterable[str]) -> list[str]:
    return [name for name in found if name == REWARD or name.startswith(TERM)]


def _reward_terms(episode: Episode) -> dict[str, float]:
    """The terms of an episode's reward, and what they leave of it as ``(unnamed)``."""
    terms = episode.score_terms
    rest = episode.reward - sum(terms.values())
    if abs(rest) > _NEGLIGIBLE * max(1.0, abs(episode.reward)):
        terms[UNNAMED] = rest
    return terms


def repeated_calls(turns: Sequence[Turn]) -> float:
    """Share of an episode's turns that repeat an earlier turn exactly, in [0, 1]."""
    if len(turns) < 2:
        return 0.0
    actions = {
        turn.reply if turn.call is None else json.dumps(turn.call, sort_keys=True, default=str)
        for turn in turns
    }
    return 1 - len(actions) / len(turns)


def repeated_words(replies: Iterable[str]) -> float:
    """Share of three-word sequences that occurred before in the same reply, the highest of all replies.

    Only the first 300 words of a reply are read. Source: seq-rep-n of S. Welleck et al., "Neural Text
    Generation with Unlikelihood Training", ICLR 2020.
    """
    highest = 0.0
    for reply in replies:
        words = reply.split(None, _MOST_WORDS)[:_MOST_WORDS]
        if len(words) > 3:
            distinct = len(set(zip(words, words[1:], words[2:], strict=False)))
            highest = max(highest, 1 - distinct / (len(words) - 2))
    return highest


def _tool_of(turn: Turn, known: set[str]) -> str:
    """The tool that a turn called; from the 64th name on, new ones are counted together."""
    if turn.error is not None:
        return "(invalid)"
    name = "(no call)" if turn.call is None else str(turn.call.get("name", "(no call)"))
    if name not in known and len(known) >= _TOOLS:
        return "(other)"
    known.add(name)
    return name


def _replies_digest(episode: Episode) -> int:
    """A number that two episodes share exactly if all their replies are equal."""
    digest = hashlib.blake2b(digest_size=8)
    for turn in episode.turns:
        digest.update(turn.reply.encode("utf-8", "surrogatepass"))
        digest.update(b"\xff")
    return int.from_bytes(digest.digest(), "big")


def episode_records(runs: Iterable[Path]) -> Iterator[dict[str, Any]]:
    """Iterate over runs' recorded training episodes as flat records, for tables of pandas or polars.

    Each has ``run``, ``step``, ``group`` (from 0 in a run), ``task_id``, ``seed``, ``ending``, ``failed``,
    and of the quantities of :func:`measures` those that are known.

    Args:
        runs: The runs' folders.
    """
    for run in runs:
        for number, (step, members) in enumerate(iter_groups(run, [])):
            for episode in members:
                yield {
                    "run": str(run),
                    "step": step,
                    "group": number,
                    "task_id": episode.task_id,
                    "seed": episode.seed,
                    "ending": str(episode.ending),
                    "failed": episode.failed,
                    **measures(episode),
                }
