"""The analysis in three sentences: did it learn, where does it fail, does it cheat?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from art_trainer.analysis.evidence import Evidence
from art_trainer.analysis.results import Confidence, ErrorPattern, Sign, TaskRates, Verdict
from art_trainer.analysis.signs import went
from art_trainer.analysis.windows import REWARD
from art_trainer.evaluation import Evaluation

_CHEATING = {
    Confidence.STRONG: "Yes, by strong signs",
    Confidence.LIKELY: "Likely",
    Confidence.POSSIBLE: "Not clearly, but look at this",
}
_ARGUED = 3
"""So many signs are told with their evidence, the others by name alone."""
_HOW_ENDED = {
    "terminated": "ended by its own last action",
    "truncated": "reached the turn limit",
    "context_full": "filled the context",
}


def verdict_of(
    evidence: Evidence,
    signs: Sequence[Sign],
    last: Evaluation | None,
    tasks: Sequence[TaskRates],
    errors: Sequence[ErrorPattern],
) -> Verdict:
    """Say what the numbers say.

    Args:
        evidence: What was measured.
        signs: All signs.
        last: The evaluation after training, where there is one.
        tasks: Win rates by task, of that evaluation and of training.
        errors: The most frequent errors in training.
    """
    found = [sign for sign in signs if sign.cheating and sign.confidence.rank >= Confidence.POSSIBLE.rank]
    found.sort(key=lambda sign: -sign.confidence.rank)
    measured = [sign for sign in signs if sign.cheating and sign.confidence is not Confidence.UNKNOWN]
    # Without a trend of the reward there is nothing that could have been bought.
    told = evidence.change(REWARD) is not None
    surest = found[0].confidence if found else Confidence.NONE if told else Confidence.UNKNOWN
    shown = [sign for sign in found if sign.confidence is surest]
    return Verdict(
        learned=_learned(evidence),
        fails=_fails(evidence, last, tasks, errors),
        cheats=_cheats(shown, len(measured), surest),
        cheating=surest,
        reasons=tuple(_sentence(sign.evidence.partition("; ")[0]) for sign in shown[:_ARGUED]),
    )


def _learned(evidence: Evidence) -> str:
    reward, success = evidence.change(REWARD), evidence.success
    earned = "" if reward is None else f" The training reward went {went(reward)}."
    if success is not None and success.telling:
        if success.rises:
            return f"Yes: {success.words}.{earned}"
        if success.high < 0:
            return f"No, it got worse: {success.words}.{earned}"
        return f"Not by more than luck: {success.words}.{earned}"
    evaluated = evidence.evaluated.reward if evidence.evaluated is not None else None
    if evaluated is not None:
        verb = (
            "Not by more than luck" if not evaluated.excludes_zero else "Yes" if evaluated.value > 0 else "No"
        )
        return (
            f"{verb}: {_untold(evidence)}the held-out reward changed by {evaluated.value:+.3g} "
            f"({evaluated.low:+.3g} to {evaluated.high:+.3g}).{earned}"
        )
    if reward is not None:
        verb = (
            "Its reward rose"
            if reward.rises
            else "Its reward fell"
            if reward.falls
            else "Not by more than luck"
        )
        return f"{verb}: {_untold(evidence)}in training it went {went(reward)}."
    return "That cannot be told yet: there are neither two evaluations nor six steps."


def _untold(evidence: Evidence) -> str:
    """Why the reward must tell, in words."""
    if evidence.success is None:
        return ""
    return f"success stays at {100 * evidence.success.second:.0f}%, and "


def _fails(
    evidence: Evidence, last: Evaluation | None, tasks: Sequence[TaskRates], errors: Sequence[ErrorPattern]
) -> str:
    words = [_failed_share(evidence, last)]
    kinds = next((rates for rates in tasks if rates.families), None)
    if kinds is not None:
        worst = kinds.families[0]
        words.append(
            f"worst are tasks of the kind `{worst.task_id}` ({worst.successes} of {worst.episodes} solved in "
            f"{kinds.of})"
        )
    if errors:
        first = errors[0]
        words.append(
            f"the most frequent error is {first.kind.replace('_', ' ')} ({first.count} times, "
            f"{100 * first.share:.0f}% of all in training)"
        )
    told = [part for part in words if part]
    if not told:
        return "Nothing is on record that tells."
    return _sentence("; ".join(told))


def _failed_share(evidence: Evidence, last: Evaluation | None) -> str:
    """How many attempts failed, and how these ended."""
    if last is not None and last.tells_success:
        failed = [result for result in last.counted if not result.success]
        if not failed:
            return f"every one of the {len(last.counted)} evaluated attempts succeeded"
        share, of = len(failed) / len(last.counted), f"the {len(last.counted)} evaluated attempts"
        return f"{100 * share:.0f}% of {of} fail{_ended(Counter(str(result.ending) for result in failed))}"
    _, late = evidence.thirds
    if not late.episodes:
        return ""
    if evidence.late_success is not None:
        return f"{100 * (1 - evidence.late_success):.0f}% of the late training attempts fail"
    return f"of the late training attempts{_ended(late.endings)}"


def _ended(endings: Mapping[str, int]) -> str:
    total = sum(endings.values())
    parts = [
        f"{100 * count / total:.0f}% {_HOW_ENDED.get(ending, ending.replace('_', ' '))}"
        for ending, count in Counter(endings).most_common(2)
    ]
    return f": {' and '.join(parts)}"


def _cheats(shown: Sequence[Sign], measured: int, surest: Confidence) -> str:
    if not shown:
        if surest is Confidence.UNKNOWN:
            return "That cannot be told: there are too few steps (6 are needed)."
        return f"No sign of it: none of the {measured} signs that could be measured passes its threshold."
    return f"{_CHEATING[surest]}: {'; '.join(sign.title.lower() for sign in shown)}."


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
