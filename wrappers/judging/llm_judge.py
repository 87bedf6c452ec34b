"""A language model as a judge, on any server that speaks OpenAI's chat protocol."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from art_gym.base import without_tool_list
from art_gym.closing import CloseOnExit
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


class LLMJudge(CloseOnExit):
    """Has a model compare the attempts of a group; implements :class:`.Judge`.

    One question holds the whole group: the task, the tools and the steps that all attempts share once, then
    each different attempt under a random label, in shuffled order, delimited as data. Labels and order
    follow from ``seed`` and the group's content alone: neither the order nor the ids that the group came
    with make a difference, nor does a second attempt that reads the same. The judge sees what agents and
    environments wrote; it sees no rewards, no ``success`` and no ``facts``. Nothing a model does yields a
    made-up number: there is a score in [0, 1] for each attempt, or :class:`.JudgeFailedError`.

    If a group exceeds ``max_context_tokens``, the longest attempts are shown without their middle, with a
    note. Ollama does not refuse what exceeds its context but silently drops the beginning: set
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
        max_answer_tokens: Most tokens of an answer. Each attempt takes about 80, with the parts of a rubric
            twice as many; a model that thinks first needs more.
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
        self._max_repairs = max_repairs
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
        digest = digest_group(group)
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
        """Requests, tokens, cost and failures so far."""
        return self._counters.statistics

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _judge(self, digest: GroupDigest, rubric: Rubric) -> dict[int, Score]:
        """Score the digest's attempts, by place; with less material at a time until the server takes it."""
        empty = build_prompt((), (), rubric, seed=0).messages
        fixed = sum(estimated_tokens(message["content"]) for message in empty)
        room = self._max_context_tokens - fixed - self._max_answer_tokens - _REPAIR_TOKENS
        while True:
            shared, attempts = fit(digest, room)
            prompt = build_prompt(shared, attempts, rubric, seed=self.seed)
            try:
                scores = self._cached_scores(prompt, rubric.names if len(rubric.names) > 1 else ())
            except ContextLengthError:
                self._counters.add(cuts=1)
                room = _tokens([*attempts, *(text for _, text in shared)]) // 2
            else:
                ids = {
                    label: "/".join(sorted(found))
                    for label, found in zip(prompt.labels, digest.ids, strict=True)
                }
                return {place: _with_ids(scores[label], ids) for place, label in enumerate(prompt.labels)}

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
                cut = "; it was cut off at the most tokens allowed, so be brief" if answer.cut else ""
                problem = f"{error}{cut}"
            if repairs == self._max_repairs:
                raise JudgeFailedError(
                    "malformed",
                    f"{self._client.where} gave no proper scores in {repairs + 1} answers: {problem}; the "
                    f"last answer begins {answer.text[:200]!r}",
                )
            repairs += 1
            self._counters.add(repairs=1)
            messages = repair_messages(prompt, answer.text[:_QUOTED_CHARACTERS], problem)


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
_LEAST = 60
"""The fewest tokens of an attempt that are worth showing."""


def fit(digest: GroupDigest, room: int) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    """What all attempts share, by name, and each attempt, as texts that fit into one question.

    What is too long is cut in the middle, with a note. What all share gets at most half of the room, and
    what a short attempt leaves of its part of the rest goes to the longer ones.

    Args:
        digest: The group.
        room: Tokens for the material.
    """
    shared = _shared(digest, room // 2)
    rest = room - _tokens([text for _, text in shared])
    attempts = tuple(shown(sections, rest) for sections in digest.attempts)
    if _tokens(attempts) <= rest:
        return shared, attempts
    limit = _limit([_tokens([text]) for text in attempts], rest) - 2 * _MARKS  # for the marks and the note
    if limit < _LEAST:
        raise JudgeFailedError(
            "too_long",
            f"{len(attempts)} attempts do not fit into a question with about {max(room, 0)} tokens for "
            "material: raise max_context_tokens, lower max_answer_tokens, or take another judge",
        )
    return shared, tuple(shown(sections, limit) for sections in digest.attempts)


def _tokens(texts: Sequence[str]) -> int:
    """Tokens of texts in a question, their marks included."""
    return sum(estimated_tokens(text) + _MARKS for text in texts)


def _limit(sizes: Sequence[int], room: int) -> int:
    """The size to which the longest are cut, so that all together fit into ``room``."""
    left = len(sizes)
    for size in sorted(sizes):
        if size * left > room:
            break
        room, left = room - size, left - 1
    return room // left


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
