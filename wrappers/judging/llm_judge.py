"""A language model as a judge, on any server that speaks OpenAI's chat protocol.

Attempts that do not fit into one question are judged in batches. Two anchors, the best and the worst attempt
of the first batch, are shown in every later batch too; through their two scores in both, the later batch is
put on the first one's scale (linear linking through common items, as tests of different years are made
comparable: Kolen & Brennan, *Test Equating, Scaling, and Linking*, 2014, chapter 4).
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from art_gym.base import without_tool_list
from art_gym.errors import did_you_mean
from art_gym.wrappers.judging.base import (
    Attempt,
    Criterion,
    JudgeFailedError,
    JudgingError,
    Rubric,
    Score,
    check_group,
)
from art_gym.wrappers.judging.budget import Counters, JudgeBudget, JudgeStatistics
from art_gym.wrappers.judging.cache import CachedAnswer, JudgeCache, canonical_json
from art_gym.wrappers.judging.http_client import FORMATS, ChatClient, ContextLengthError, Structured
from art_gym.wrappers.judging.prompt import (
    PROMPT_VERSION,
    AnswerFormatError,
    GroupDigest,
    Prompt,
    Section,
    build_prompt,
    digest_group,
    estimated_tokens,
    read_answer,
    repair_messages,
    shown,
)

RULER_RUBRIC = Rubric(
    (
        Criterion(
            "quality",
            1.0,
            "How far the attempt got towards what the task asks for, and how directly it got there.",
        ),
    ),
    guidance=(
        "Reaching the goal counts far more than anything else: an attempt that reached it scores well above "
        "every attempt that did not, however tidy that one was. Among attempts that got equally far, the one "
        "that wasted less effort is a little better. An attempt that got part of the way earns part of the "
        "score. Let the gap between two scores show how much better the one attempt is: near equals lie "
        "close together, a clear difference is a wide gap."
    ),
)
"""RULER's idea (OpenPipe, "RULER: Relative Universal LLM-Elicited Rewards", 2025) in our own words."""

_REPAIR_TOKENS = 1_000  # room for a wrong answer and what was wrong with it
_QUOTED_CHARACTERS = 2_000  # of a wrong answer
_ENTRY_TOKENS = 80  # of an answer: an id, an explanation and a score


class LLMJudge:
    """Has a model compare the attempts of a group; implements :class:`.Judge`.

    One question holds the whole group: the task, the tools and the steps that all attempts share once, then
    each different attempt under a random label, in shuffled order, delimited as data. Labels and order
    follow from ``seed`` and the group's content alone: neither the order nor the ids that the group came
    with make a difference, nor does a second attempt that reads the same. The judge sees what agents and
    environments wrote; it sees no rewards, no ``success`` and no ``facts``. Nothing a model does yields a
    made-up number: there is a score in [0, 1] for each attempt, or :class:`.JudgeFailedError`.

    A group that exceeds ``max_context_tokens`` is judged in batches that share two attempts, see
    :mod:`.batching`. Ollama does not refuse what exceeds its context but silently drops the beginning: set
    its ``num_ctx`` to at least ``max_context_tokens``.

    Args:
        model: The model's name on the server. With a cache, one name is one model.
        base_url: Such as ``http://localhost:8000/v1``; by default OpenAI's, or ``OPENAI_BASE_URL``.
        api_key: By default ``OPENAI_API_KEY``; most local servers take any.
        rubric: What to look for, if a call gives no rubric.
        seed: Of labels and order.
        temperature: Of sampling; ``None`` leaves it to the server, as some models insist.
        structured: How the form of the answer is requested: by ``"json_schema"``, by ``"json_object"``, in
            the prompt alone (``"text"``), or by the first of these that the server takes (``"auto"``).
        max_context_tokens: Most tokens of question and answer together, estimated without a tokenizer.
        max_answer_tokens: Most tokens of an answer; a model that thinks first needs more.
        timeout: Most seconds that the server may take for an answer.
        max_retries: Most times that a request is sent again, if the server is busy, broken or silent.
        max_concurrency: Most requests in progress at a time, from all threads.
        max_repairs: Most times that a question is asked again with the error in the last answer.
        budget: What judging may cost; several judges may share one.
        cache: Where answers are stored, or a path for it; ``None`` for nowhere.
        extra_body: More fields of the request, as some servers have them.

    Raises:
        JudgingError: For an argument out of range, or if no key is found.
        ImportError: If the extra ``openai`` is not installed.
    """

    def __init__(
        self,
        model: str,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        rubric: Rubric = RULER_RUBRIC,
        seed: int = 0,
        temperature: float | None = 0.0,
        structured: Structured = "auto",
        max_context_tokens: int = 32_000,
        max_answer_tokens: int = 4_096,
        timeout: float = 60.0,
        max_retries: int = 4,
        max_concurrency: int = 8,
        max_repairs: int = 2,
        budget: JudgeBudget | None = None,
        cache: JudgeCache | str | os.PathLike[str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
    ) -> None:
        _check_at_least(
            1, max_context_tokens=max_context_tokens, max_answer_tokens=max_answer_tokens,
            max_concurrency=max_concurrency,
        )  # fmt: skip
        _check_at_least(0, max_retries=max_retries, max_repairs=max_repairs)
        if structured not in ("auto", *FORMATS):
            hint = did_you_mean(structured, ("auto", *FORMATS))
            raise JudgingError(f"unknown structured={structured!r}{hint}")
        if not timeout > 0:
            raise JudgingError(f"timeout is more than 0 seconds, got {timeout}")
        if max_answer_tokens > max_context_tokens // 2:
            raise JudgingError(
                f"max_answer_tokens={max_answer_tokens} leaves too little of max_context_tokens="
                f"{max_context_tokens} to read: set at most half of it"
            )
        self.model, self.rubric, self.seed = model, rubric, seed
        self._max_context_tokens, self._max_answer_tokens = max_context_tokens, max_answer_tokens
        self._max_repairs, self._keep_order = max_repairs, False
        options: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
        if extra_body:
            options["extra_body"] = dict(extra_body)
        self._cache = cache if isinstance(cache, JudgeCache) or cache is None else JudgeCache(cache)
        self._settings = canonical_json([PROMPT_VERSION, model, structured, max_answer_tokens, options])
        self._counters = Counters()
        self._client = ChatClient(
            model,
            base_url,
            api_key=api_key,
            options=options,
            structured=structured,
            max_answer_tokens=max_answer_tokens,
            timeout=timeout,
            max_retries=max_retries,
            max_concurrency=max_concurrency,
            budget=budget or JudgeBudget(),
            counters=self._counters,
        )

    def __call__(self, group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        """Return a score for each attempt, by its id.

        Args:
            group: Attempts at one task, each with an id of its own.
            rubric: What to look for; ``None``: the judge's own rubric.

        Raises:
            JudgingError: For a group that cannot be judged, a closed judge or a cache that is damaged.
            JudgeFailedError: If there is no usable answer. ``reason`` is ``"timeout"``, ``"connection"``,
                ``"rate_limited"``, ``"server_error"``, ``"garbled"`` (no chat completion), ``"malformed"``
                (no proper scores), ``"refused"``, ``"too_long"`` and ``"budget"``.
        """
        check_group(group)
        digest = digest_group(group, keep_order=self._keep_order)
        self._counters.add(groups=1)
        try:
            scores = self._judge(digest, rubric or self.rubric)
        except JudgeFailedError as error:
            self._counters.add(failure=error.reason)
            raise
        by_id = {id_: scores[place] for place, ids in enumerate(digest.ids) for id_ in ids}
        return {attempt.id: by_id[attempt.id] for attempt in group}

    @property
    def statistics(self) -> JudgeStatistics:
        """Requests, tokens, cost and failures so far, of this judge and those made from it."""
        return self._counters.statistics

    def in_given_order(self) -> LLMJudge:
        """The same judge, but attempts are shown in the order in which the group lists them."""
        judge = copy.copy(self)
        judge._keep_order = True
        return judge

    def close(self) -> None:
        """Close the connections, also those of judges made from this one."""
        self._client.close()

    def __enter__(self) -> LLMJudge:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _judge(self, digest: GroupDigest, rubric: Rubric) -> dict[int, Score]:
        """Score the digest's attempts, by place; with less material at a time until the server takes it."""
        empty = build_prompt((), (), rubric, seed=0).messages
        fixed = sum(estimated_tokens(message["content"]) for message in empty)
        room = self._max_context_tokens - fixed - self._max_answer_tokens - _REPAIR_TOKENS
        most = self._max_answer_tokens // (_ENTRY_TOKENS * (1 if len(rubric.criteria) == 1 else 2))
        while True:
            batches = plan_batches(digest, room, most)
            try:
                return self._score_in_batches(batches, digest, rubric)
            except ContextLengthError:
                self._counters.add(cuts=1)
                room = batches.longest // 2

    def _score_in_batches(self, batches: Batches, digest: GroupDigest, rubric: Rubric) -> dict[int, Score]:
        waiting = list(range(len(batches.attempts)))
        scores = self._score_batch(batches.batch(waiting), batches, digest, rubric)
        anchors = anchors_of(scores)
        while waiting := [place for place in waiting if place not in scores]:
            batch = batches.batch(waiting, anchors)
            scores |= on_scale(self._score_batch(batch, batches, digest, rubric), scores)
        return scores

    def _score_batch(
        self, batch: Sequence[int], batches: Batches, digest: GroupDigest, rubric: Rubric
    ) -> dict[int, Score]:
        """Have the attempts at some places judged together."""
        texts = [batches.attempts[place] for place in batch]
        prompt = build_prompt(batches.shared, texts, rubric, seed=self.seed, keep_order=self._keep_order)
        scores = self._cached_scores(prompt, rubric.names if len(rubric.names) > 1 else ())
        places = dict(zip(prompt.labels, batch, strict=True))
        ids = {label: "/".join(sorted(digest.ids[place])) for label, place in places.items()}
        return {place: _with_ids(scores[label], ids) for label, place in places.items()}

    def _cached_scores(self, prompt: Prompt, criteria: Sequence[str]) -> dict[str, Score]:
        """Scores by label, from the cache if the question was asked before."""
        if self._cache is None:
            return self._converse(prompt, criteria)[1]
        question = {"settings": self._settings, "messages": prompt.messages, "schema": prompt.schema}
        key = JudgeCache.key(question)
        found = self._cache.get(key)
        if found is not None:
            self._counters.add(cache_hits=1)
            return _reread(found, prompt, criteria)
        try:
            text, _ = self._converse(prompt, criteria)
        except ContextLengthError as error:
            self._cache.put(key, CachedAnswer("too_long", str(error)))
            raise
        # Another thread or process may have been first; then its answer is everybody's.
        return _reread(self._cache.put(key, CachedAnswer("answered", text)), prompt, criteria)

    def _converse(self, prompt: Prompt, criteria: Sequence[str]) -> tuple[str, dict[str, Score]]:
        """Ask until the answer holds proper scores, with the last error, a bounded number of times."""
        messages = prompt.messages
        repairs = 0
        while True:
            answer = self._client.ask(messages, prompt.schema)
            try:
                return answer.text, read_answer(answer.text, prompt.labels, criteria)
            except AnswerFormatError as error:
                problem = f"{error}{_CUT if answer.cut else ''}"
            if repairs == self._max_repairs:
                raise JudgeFailedError(
                    "malformed",
                    f"{self._client.where} gave no proper scores in {repairs + 1} answers: {problem}; the "
                    f"last answer begins {answer.text[:200]!r}",
                )
            repairs += 1
            self._counters.add(repairs=1)
            messages = repair_messages(prompt, answer.text[:_QUOTED_CHARACTERS], problem)


_CUT = "; it was cut off at the most tokens allowed, so be brief"


def _reread(found: CachedAnswer, prompt: Prompt, criteria: Sequence[str]) -> dict[str, Score]:
    if found.outcome == "too_long":
        raise ContextLengthError(found.answer)
    try:
        return read_answer(found.answer, prompt.labels, criteria)
    except AnswerFormatError as error:
        raise JudgingError(
            f"the judge cache holds an answer that does not fit its question: {error}"
        ) from error


def _with_ids(score: Score, ids: Mapping[str, str]) -> Score:
    """A score whose explanation calls the attempts by the ids that the caller knows."""
    explanation = re.sub("|".join(ids), lambda found: ids[found[0]], score.explanation)
    return Score(score.value, explanation, score.parts)


def _check_at_least(least: int, **values: int) -> None:
    for name, value in values.items():
        if value < least:
            raise JudgingError(f"{name} is at least {least}, got {value}")


_MARKS = 40
"""Tokens that an attempt's marks take."""
_AT_ONCE = 3
"""A question holds at least so many attempts (or all there are): two anchors and one more."""
_LEAST = 60
"""The fewest tokens of an attempt that are worth showing."""
_LEAST_SPREAD, _SLOPES = 0.1, (0.5, 2.0)
_VALUE = ""  # the value beside the parts, whose names are not empty


@dataclass(frozen=True, slots=True)
class Batches:
    """What fits into questions of some size.

    Attributes:
        shared: Name and text of what every question begins with.
        attempts: Each attempt's text.
        sizes: Each attempt's tokens, its marks included.
        room: Tokens for attempts in one question.
        most: Most attempts in one question, so that the answer fits too.
    """

    shared: tuple[tuple[str, str], ...]
    attempts: tuple[str, ...]
    sizes: tuple[int, ...]
    room: int
    most: int

    @property
    def longest(self) -> int:
        """Tokens of the material in the longest question, about."""
        shared = sum(estimated_tokens(text) + _MARKS for _, text in self.shared)
        return shared + min(sum(self.sizes), self.room)

    def batch(self, waiting: Sequence[int], anchors: Sequence[int] = ()) -> list[int]:
        """The anchors, and as many of the waiting attempts, in order, as fit beside them; at least one."""
        chosen, used = list(anchors), sum(self.sizes[place] for place in anchors)
        for place in waiting:
            full = len(chosen) >= self.most or used + self.sizes[place] > self.room
            if full and len(chosen) > len(anchors):
                break
            chosen.append(place)
            used += self.sizes[place]
        return sorted(chosen)


def plan_batches(digest: GroupDigest, room: int, most: int) -> Batches:
    """Fit a group's material into questions; what is too long is cut in the middle, with a note.

    What all attempts share gets at most half of the room. An attempt is cut only if it would not fit
    beside two others of its length.

    Args:
        digest: The group.
        room: Tokens for material in one question.
        most: Most attempts in one question.
    """
    shared = _shared(digest, room // 2)
    rest = room - sum(estimated_tokens(text) + _MARKS for _, text in shared)
    attempts = [shown(sections, rest) for sections in digest.attempts]
    if sum(estimated_tokens(text) + _MARKS for text in attempts) > rest:
        limit = rest // min(len(attempts), _AT_ONCE) - 2 * _MARKS  # once for the marks, once for the note
        if limit < _LEAST:
            raise JudgeFailedError(
                "too_long",
                f"{len(attempts)} attempts do not fit into a question with about {max(room, 0)} tokens for "
                "material: raise max_context_tokens, lower max_answer_tokens, or take another judge",
            )
        attempts = [shown(sections, limit) for sections in digest.attempts]
    sizes = tuple(estimated_tokens(text) + _MARKS for text in attempts)
    return Batches(shared, tuple(attempts), sizes, rest, max(most, _AT_ONCE))


def _shared(digest: GroupDigest, room: int) -> tuple[tuple[str, str], ...]:
    parts: list[tuple[str, tuple[Section, ...]]] = [("task", (digest.task,))]
    lists_tools = without_tool_list(digest.task.text) != digest.task.text
    if digest.tools.text and not lists_tools:
        parts.append(("tools", (digest.tools,)))
    if digest.shared:
        parts.append(("beginning, the same in all attempts", digest.shared))
    whole = [(name, shown(sections, room)) for name, sections in parts]
    if sum(estimated_tokens(text) for _, text in whole) <= room:
        return tuple(whole)
    return tuple((name, shown(sections, room // len(parts))) for name, sections in parts)


def anchors_of(scores: Mapping[int, Score]) -> tuple[int, int]:
    """The best and the worst of the attempts scored, for the widest base that a scale can have."""
    ranked = sorted(scores, key=lambda place: (scores[place].value, place))
    return ranked[-1], ranked[0]


def on_scale(scores: Mapping[int, Score], reference: Mapping[int, Score]) -> dict[int, Score]:
    """Put a batch's scores on the scale of the reference, through the attempts that both hold.

    Args:
        scores: A later batch's, by place.
        reference: The first batch's; two of its attempts, the anchors, are in ``scores`` too.
    """
    anchors = [place for place in scores if place in reference]
    here, there = ([_numbers(one[anchor]) for anchor in anchors] for one in (scores, reference))
    found = {}
    for place, score in scores.items():
        if place not in reference:
            linked = {
                name: _link(number, [one[name] for one in here], [one[name] for one in there])
                for name, number in _numbers(score).items()
                if all(name in one for one in (*here, *there))
            }
            found[place] = Score(linked.pop(_VALUE), score.explanation, linked)
    return found


def _numbers(score: Score) -> dict[str, float]:
    return {_VALUE: score.value, **score.parts}


def _link(value: float, here: Sequence[float], there: Sequence[float]) -> float:
    """``value`` on the straight line through the anchors' scores here and there, clamped to [0, 1].

    If they lie close together here, two noisy scores say nothing about a slope: then it is 1, and the
    line a shift. A slope is held between 0.5 and 2 for the same reason; the line then goes through the
    anchors' middle.
    """
    spread, slope = here[0] - here[-1], 1.0
    if abs(spread) >= _LEAST_SPREAD:
        slope = min(max((there[0] - there[-1]) / spread, _SLOPES[0]), _SLOPES[1])
    linked = sum(there) / len(there) + slope * (value - sum(here) / len(here))
    return min(max(linked, 0.0), 1.0)
