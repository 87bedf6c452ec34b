"""Accuracy where nobody knows what was expected: guessed from the transcript, by the type of the task.

These are signs of good work, not proof of it. They read what the agent and the environment said, the
environment's closing words included, and never its reward or ``success``, so each can be had without solving
the task; each says how. Prefer an environment that tells what was expected.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from art_gym.wrappers.judging.attempts import Attempt, Step
from art_gym.wrappers.judging.criteria_agreement import plain
from art_gym.wrappers.judging.criteria_findings import Finding, ended_itself, valid_share, valid_steps

_LONGEST_ANSWER = 60  # words
_WORD = re.compile(r"\w+")
_REPORT = re.compile(
    r"\b(?P<passed>\d{1,9})\s*(?:of|/|out of)\s*(?P<total>\d{1,9})\b[^.\n]{0,40}?\bpass(?:ed|es)?\b"
)
_ALL_PASS = re.compile(r"\ball\b[^.\n]{0,40}\bpass(?:ed|es)?\b", re.IGNORECASE)
_FAULT = re.compile(
    r"\bTraceback\b|\b[A-Z]\w*(?:Error|Exception)\b|\[exit code [^0\]]|cannot be loaded|took too long"
)
_NO_ANSWER = re.compile(
    r"\b(?:do not|don't|cannot|can't|could not|couldn't) (?:know|tell|say|find|answer)\b|\bno idea\b"
)


def email_search(attempt: Attempt) -> Finding:
    """Half for ending by a call of one's own, half for what that call names having been seen before.

    The second half is the share of the words in the ending call's arguments (an id, an answer) that occur in
    observations after the first. An attempt that was cut off gets 0.

    Gamed by: searching for anything and selecting the first result.
    """
    if not ended_itself(attempt):
        return Finding(0.0, "it did not come to an end by itself")
    seen = _share_seen(_strings(attempt.steps[-1]), attempt.steps[:-1])
    return Finding(0.5 + 0.5 * seen, f"it ended by itself; {seen:.0%} of what it gave had been seen before")


def question_answering(attempt: Attempt) -> Finding:
    """Half for ending with an answer, half for its words having been read before.

    An answer of more than 60 words, or one that says it does not know, gets 0; so does an attempt that was
    cut off. Where there was nothing to read (one step), the second half is given for any answer.

    Gamed by: copying any few words from an observation; a confident invention where there is nothing to read.
    """
    if not ended_itself(attempt):
        return Finding(0.0, "it did not come to an end by itself")
    texts = _strings(attempt.steps[-1])
    words = [word for text in texts for word in _WORD.findall(text)]
    if not words:
        return Finding(0.0, "it ended without an answer")
    if len(words) > _LONGEST_ANSWER:
        return Finding(0.0, f"its answer has {len(words)} words, more than {_LONGEST_ANSWER}")
    if any(_NO_ANSWER.search(plain(text.replace("’", "'"))) for text in texts):
        return Finding(0.0, "it says that it does not know")
    seen = _share_seen(texts, attempt.steps[:-1]) if len(attempt.steps) > 1 else 1.0
    return Finding(0.5 + 0.5 * seen, f"it answered; {seen:.0%} of its answer had been read before")


def code_generation(attempt: Attempt) -> Finding:
    """Signs that the code works: 0.2 for handing it in, 0.3 for no fault shown, 0.5 for tests that pass.

    Handing in is ending by a call of one's own. A fault is a traceback, an error's name or a failing exit
    code in the latest observation after a valid call. The tests are the latest report of the form
    ``3 of 5 … pass`` or ``All … pass``, in any observation; their share is what counts.

    Gamed by: code that prints such a report, or that swallows its errors; code for the examples alone.
    """
    steps = valid_steps(attempt)
    if not steps:
        return Finding(0.0, "it has no valid call")
    handed_in = ended_itself(attempt)
    faultless = not _FAULT.search(steps[-1].observation)
    passed, tests = _latest_report([step.observation for step in steps])
    words = (
        f"{'handed in' if handed_in else 'not handed in'}, {'no' if faultless else 'a'} fault shown, {tests}"
    )
    return Finding(0.2 * handed_in + 0.3 * faultless + 0.5 * passed, words)


def game(attempt: Attempt) -> Finding:
    """Half the share of valid moves: of how well a game went, a transcript of any game tells no more.

    Gamed by: any legal play.
    """
    share = valid_share(attempt)
    return Finding(0.5 * share, f"{share:.0%} of the moves were valid; how good they were is not known")


def general(attempt: Attempt) -> Finding:
    """The share of valid replies, halved for an attempt that did not end by itself.

    Gamed by: one valid call that ends the attempt.
    """
    share = valid_share(attempt)
    if ended_itself(attempt):
        return Finding(share, f"it ended by itself with {share:.0%} valid replies")
    return Finding(0.5 * share, f"it did not end by itself; {share:.0%} of its replies were valid")


HEURISTICS: Final[Mapping[str, Callable[[Attempt], Finding]]] = {
    "email_search": email_search,
    "question_answering": question_answering,
    "code_generation": code_generation,
    "game": game,
}
"""How accuracy is guessed, by ``facts["task_type"]``; any other type is judged as `general`."""


def _strings(step: Step) -> list[str]:
    """The texts that a reply gives: its call's arguments, or the reply itself where no call is known."""
    if step.call is None:
        return [step.reply]
    return list(_leaves(step.call.get("arguments", {})))


def _leaves(value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from _leaves(part)
    elif value is not None:
        yield str(value)


def _share_seen(texts: Iterable[str], steps: Iterable[Step]) -> float:
    """The share of the texts' words that the steps' observations hold; 0 without words."""
    words = [word for text in texts for word in _WORD.findall(plain(text))]
    seen = {word for step in steps for word in _WORD.findall(plain(step.observation))}
    return sum(word in seen for word in words) / len(words) if words else 0.0


def _latest_report(observations: Sequence[str]) -> tuple[float, str]:
    """The share of tests that the latest report says pass, and that report in words."""
    for text in reversed(observations):
        matches = [*_REPORT.finditer(text), *_ALL_PASS.finditer(text)]
        if not matches:
            continue
        latest = max(matches, key=lambda match: match.start())
        if latest.re is _ALL_PASS:
            return 1.0, "all tests pass"
        passed, total = int(latest["passed"]), int(latest["total"])
        return min(1.0, passed / total) if total else 0.0, f"{passed} of {total} tests pass"
    return 0.0, "no tests were seen"
