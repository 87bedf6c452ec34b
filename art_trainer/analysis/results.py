"""What an analysis finds, as frozen data that can be printed, drawn and saved as JSON."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from art_trainer.statistics import Interval

if TYPE_CHECKING:
    import polars


class Confidence(enum.StrEnum):
    """How sure a sign is; each sign's ``threshold`` says what makes it which."""

    UNKNOWN = "not measured"
    NONE = "no sign"
    POSSIBLE = "possible"
    LIKELY = "likely"
    STRONG = "strong"

    @property
    def rank(self) -> int:
        """The order of the words, from 0."""
        return list(Confidence).index(self)


@dataclass(frozen=True, slots=True)
class Change:
    """A number at the beginning and at the end of training.

    Attributes:
        early: Its mean over the first third of the steps.
        late: Its mean over the last third.
        difference: Late minus early with its 99% interval; ``count`` is how many steps (or stretches) it
            rests on.
    """

    early: float
    late: float
    difference: Interval

    @property
    def rises(self) -> bool:
        """Whether it rose by more than luck."""
        return self.difference.low > 0

    @property
    def falls(self) -> bool:
        """Whether it fell by more than luck."""
        return self.difference.high < 0


@dataclass(frozen=True, slots=True)
class Curve:
    """One quantity over the steps."""

    name: str
    steps: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WindowRow:
    """A stretch of training steps; lengths are characters a reply, shares lie in [0, 1]."""

    first_step: int
    last_step: int
    episodes: int
    success: Interval | None
    reward: float
    turns: float
    reply_length: float
    tokens: float | None
    invalid: float
    cut_off: float
    terms: Mapping[str, float]

    @property
    def steps(self) -> str:
        """The stretch in words: ``5–6``, or ``9``."""
        return "–".join(str(step) for step in dict.fromkeys((self.first_step, self.last_step)))


@dataclass(frozen=True, slots=True)
class TermGain:
    """What a part of the reward brought between the first and the last third of training.

    Attributes:
        name: The part's name.
        early: Its mean at the beginning.
        late: Its mean at the end.
        explained: As much of the change as the change of success would bring.
        share: The change as a share of the reward's; ``None`` where the reward did not change.
        penalty: Whether it only ever takes away: a penalty that fades is no income.
    """

    name: str
    early: float
    late: float
    explained: float
    share: float | None
    penalty: bool

    @property
    def change(self) -> float:
        """Late minus early."""
        return self.late - self.early

    @property
    def unexplained(self) -> float:
        """The change beyond what success brings."""
        return self.change - self.explained


@dataclass(frozen=True, slots=True)
class ToolShare:
    """How often a tool was called in a turn.

    Attributes:
        turn: The turn, from 1; with ``later`` this turn and all after it.
        later: Whether later turns are counted here too.
        tool: The tool's name, ``(invalid)`` for a reply without a valid call.
        count: Calls.
        share: Of the turn's replies.
        early: The share in the first third of training.
        late: The share in the last third.
    """

    turn: int
    later: bool
    tool: str
    count: int
    share: float
    early: float
    late: float


@dataclass(frozen=True, slots=True)
class ErrorPattern:
    """Errors that are the same but for names and numbers, with the first of them as an example."""

    kind: str
    message: str
    count: int
    share: float
    first_step: int
    last_step: int
    where: str
    example_reply: str
    example_message: str


@dataclass(frozen=True, slots=True)
class TaskRate:
    """How one task was solved."""

    task_id: str
    episodes: int
    successes: int
    reward: float

    @property
    def rate(self) -> float:
        """The share of its episodes that succeeded."""
        return self.successes / self.episodes


@dataclass(frozen=True, slots=True)
class TaskRates:
    """How many tasks were solved always, sometimes and never, and the hardest.

    Attributes:
        of: Which episodes these are.
        tasks: How many tasks are counted.
        share: The share of all tasks that are counted, 1 unless there were very many.
        always: Tasks solved in every episode.
        sometimes: Tasks solved in some.
        never: Tasks solved in none.
        hardest: Tasks by their win rate, lowest first; of equals those with more episodes first.
        families: The same by kind of task, where the ids name kinds: an id without its digits.
        seen_again: Mean change of a task's win rate from the first time it was met in training to the last.
    """

    of: str
    tasks: int
    share: float
    always: int
    sometimes: int
    never: int
    hardest: tuple[TaskRate, ...]
    families: tuple[TaskRate, ...] = ()
    seen_again: Interval | None = None


@dataclass(frozen=True, slots=True)
class EvaluationChange:
    """What is different between two evaluations.

    Attributes:
        first: The first one's name.
        second: The second one's name.
        paired: Whether both met the same starts; else the counts of pairs are 0.
        success: Difference of the success rates, second minus first; ``None`` where there are none.
        reward: Difference of the mean rewards; ``None`` for evaluations that are not paired.
        first_success: The first success rate.
        second_success: The second.
        won: Starts that only the second solved; ``lost`` only the first, ``both`` and ``neither``.
        won_tasks: Some of the tasks won, with ``lost_tasks`` in the order of the starts.
        p_value: McNemar's exact test of won against lost; ``None`` where a task was played more than once.
        note: What a reader must know.
    """

    first: str
    second: str
    paired: bool
    success: Interval | None
    reward: Interval | None
    first_success: Interval | None
    second_success: Interval | None
    won: int = 0
    lost: int = 0
    both: int = 0
    neither: int = 0
    won_tasks: tuple[str, ...] = ()
    lost_tasks: tuple[str, ...] = ()
    p_value: float | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens and money.

    Attributes:
        sampled: Tokens sampled in training; ``None`` where nothing tells.
        read: Tokens read (prompts and observations, each once), where the records hold tokens.
        evaluated: Tokens sampled by the model's evaluations.
        per_episode: Sampled tokens an episode of training.
        cost: What these would cost at the prices given.
    """

    sampled: float | None
    read: float | None
    evaluated: float
    per_episode: float | None
    cost: float | None


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing that would show a reward that pays for something else than success, or a run gone wrong.

    Attributes:
        name: A name for programs.
        title: A name for readers.
        confidence: How sure it is.
        evidence: What was measured, in a sentence with its numbers.
        threshold: What makes it possible, likely and strong.
        cheating: Whether it is one of cheating; else of a run that has stopped to learn.
        numbers: The evidence for programs.
    """

    name: str
    title: str
    confidence: Confidence
    evidence: str
    threshold: str
    cheating: bool
    numbers: Mapping[str, float] = field(default_factory=dict)

    @property
    def seen(self) -> bool:
        """Whether it is there at all."""
        return self.confidence.rank >= Confidence.POSSIBLE.rank


@dataclass(frozen=True, slots=True)
class Verdict:
    """The analysis in three sentences, and as reasons the evidence of the surest signs of cheating."""

    learned: str
    fails: str
    cheats: str
    cheating: Confidence
    """The surest sign of cheating."""
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JudgeScores:
    """What a judge gave over training."""

    judge: str
    episodes: int
    mean: float
    curve: Curve


@dataclass(frozen=True, slots=True)
class RunAnalysis:
    """What one run did.

    Attributes:
        path: The run's folder.
        env: The environment's id.
        model: The model's name.
        steps: The last step that was logged or recorded.
        episodes: Recorded training episodes that no fault ended; ``faults`` the others.
        recorded_share: The share of the training episodes on record; ``None`` where it cannot be told.
        broken_lines: Lines of the metrics that could not be read.
        damage: What was wrong with the records, after which no more of them were read.
        success: Success over all recorded training episodes.
        windows: The training in a few stretches of steps.
        curves: Every quantity over the steps.
        gains: What each part of the reward brought, largest gain first.
        tools: Actions by turn.
        errors: Patterns of errors, most frequent first; ``error_share`` is the share of invalid replies.
        endings: Share of the recorded episodes by how they ended.
        tasks: Win rates by task, of the last evaluation and of training, where success is told.
        change: What is different between two evaluations.
        usage: Tokens and cost.
        judges: What judges gave.
        signs: Signs of cheating and of standstill, the surest first.
        verdict: Three sentences.
    """

    path: str
    env: str
    model: str
    steps: int
    episodes: int
    faults: int
    recorded_share: float | None
    broken_lines: int
    damage: tuple[str, ...]
    success: Interval | None
    windows: tuple[WindowRow, ...]
    curves: tuple[Curve, ...]
    gains: tuple[TermGain, ...]
    tools: tuple[ToolShare, ...]
    errors: tuple[ErrorPattern, ...]
    error_share: float
    endings: Mapping[str, float]
    tasks: tuple[TaskRates, ...]
    change: EvaluationChange | None
    usage: Usage
    judges: tuple[JudgeScores, ...]
    signs: tuple[Sign, ...]
    verdict: Verdict

    @property
    def name(self) -> str:
        """The folder's own name."""
        return Path(self.path).name


@dataclass(frozen=True, slots=True)
class Analysis:
    """What one or more runs did.

    Attributes:
        runs: One analysis a run, in the order asked for.
        comparisons: The last evaluation of each later run beside that of the first, where asked for.
    """

    runs: tuple[RunAnalysis, ...]
    comparisons: tuple[EvaluationChange, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON-able copy; a number that is not finite becomes ``None``."""
        copied: dict[str, Any] = _plain(dataclasses.asdict(self))
        return copied

    def episodes_frame(self) -> polars.DataFrame:
        """One row a recorded training episode of all runs, read from their folders now.

        Raises:
            ImportError: Where polars is not installed.
        """
        from art_trainer.analysis.frame import episodes_frame

        return episodes_frame([Path(run.path) for run in self.runs])


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
