"""A language model as a judge, on any server that speaks OpenAI's chat protocol."""

from __future__ import annotations

import copy
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from art_gym.errors import did_you_mean
from art_gym.wrappers.judging.attempts import Attempt, check_group
from art_gym.wrappers.judging.errors import JudgeFailed, JudgingError
from art_gym.wrappers.judging.judge_budget import JudgeBudget
from art_gym.wrappers.judging.judge_cache import CachedAnswer, JudgeCache, canonical_json
from art_gym.wrappers.judging.llm_answer import AnswerProblem, read_answer
from art_gym.wrappers.judging.llm_blocks import Layout, anchors_of, lay_out, on_scale
from art_gym.wrappers.judging.llm_client import ChatClient, TooLong
from art_gym.wrappers.judging.llm_formats import FORMATS, FormatChoice, Structured
from art_gym.wrappers.judging.llm_material import Material, read_group
from art_gym.wrappers.judging.llm_prompt import (
    PROMPT_VERSION,
    Prompt,
    build_prompt,
    overhead,
    repair_messages,
)
from art_gym.wrappers.judging.llm_rubric import RULER_RUBRIC
from art_gym.wrappers.judging.llm_statistics import Counters, JudgeStatistics
from art_gym.wrappers.judging.llm_text import estimated_tokens
from art_gym.wrappers.judging.llm_wire import Answer
from art_gym.wrappers.judging.rubrics import Rubric, Score

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
    made-up number: there is a score in [0, 1] for each attempt, or :class:`.JudgeFailed`.

    A group that exceeds ``max_context_tokens`` is judged in blocks that share two attempts, see
    :mod:`.llm_blocks`. Ollama does not refuse what exceeds its context but drops the beginning without a
    word: set its ``num_ctx`` to at least ``max_context_tokens``.

    Args:
        model: The model's name on the server. With a cache, one name is one model.
        base_url: Such as ``http://localhost:8000/v1``; by default OpenAI's, or ``OPENAI_BASE_URL``.
        api_key: By default ``OPENAI_API_KEY``; most local servers take any.
        rubric: What to look for where a call names no rubric.
        seed: Of labels, order and pauses.
        temperature: Of sampling; ``None`` leaves it to the server, as some models insist.
        structured: How the answer's form is asked for: by ``"json_schema"``, by ``"json_object"``, in words
            alone (``"text"``), or by the first of these that the server takes (``"auto"``).
        max_context_tokens: Most tokens of question and answer together, estimated without a tokenizer.
        max_answer_tokens: Most tokens of an answer; a model that thinks first needs more.
        timeout: Most seconds until an answer begins, and as many until it ends.
        max_retries: Most times that a request is sent again, where the server is busy, broken or silent.
        max_concurrency: Most requests under way at a time, from all threads.
        max_repairs: Most times that a model is told what was wrong with its answer, and asked again.
        longest_wait: Most seconds that a server may ask to be left alone (``Retry-After``).
        budget: What judging may cost; several judges may share one.
        cache: Where answers are kept, or a path for it; ``None`` for nowhere.
        extra_body: More fields of the request, as some servers have them.
        sleep: Waits so many seconds; for tests.

    Raises:
        JudgingError: For an argument out of range, or where no key is to be found.
        ImportError: Where the extra ``openai`` is not installed.
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
        structured: Literal["auto"] | Structured = "auto",
        max_context_tokens: int = 32_000,
        max_answer_tokens: int = 4_096,
        timeout: float = 60.0,
        max_retries: int = 4,
        max_concurrency: int = 8,
        max_repairs: int = 2,
        longest_wait: float = 120.0,
        budget: JudgeBudget | None = None,
        cache: JudgeCache | str | os.PathLike[str] | None = None,
        extra_body: Mapping[str, Any] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        _check_bounds(
            least_one={
                "max_context_tokens": max_context_tokens,
                "max_answer_tokens": max_answer_tokens,
                "max_concurrency": max_concurrency,
            },
            least_zero={"max_retries": max_retries, "max_repairs": max_repairs},
        )
        _check_choices(structured, timeout, max_context_tokens, max_answer_tokens)
        self.model, self.rubric, self.seed = model, rubric, seed
        self._max_context_tokens, self._max_answer_tokens = max_context_tokens, max_answer_tokens
        self._max_repairs, self._keep_order = max_repairs, False
        options: dict[str, Any] = {} if temperature is None else {"temperature": temperature}
        if extra_body:
            options["extra_body"] = dict(extra_body)
        self._cache = cache if isinstance(cache, JudgeCache) or cache is None else JudgeCache(cache)
        self._settings = canonical_json([PROMPT_VERSION, model, structured, max_answer_tokens, options])
        self._counters = Counters()
        self._formats = FormatChoice(structured)
        self._client = ChatClient(
            model,
            base_url,
            api_key=api_key,
            options=options,
            max_answer_tokens=max_answer_tokens,
            timeout=timeout,
            max_retries=max_retries,
            max_concurrency=max_concurrency,
            longest_wait=longest_wait,
            budget=budget or JudgeBudget(),
            counters=self._counters,
            sleep=sleep,
            rng=np.random.default_rng(seed),
        )

    def __call__(self, group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        """Return a score for each attempt, by its id.

        Args:
            group: Attempts at one task, each with an id of its own.
            rubric: What to look for; ``None``: the judge's own rubric.

        Raises:
            JudgingError: For a group that cannot be judged, a closed judge or a cache that is damaged.
            JudgeFailed: Where no usable answer was had. Its reason is one of ``"timeout"``, ``"connection"``,
                ``"rate_limited"``, ``"server_error"``, ``"garbled"`` (no chat completion), ``"malformed"``
                (no proper scores), ``"refused"``, ``"too_long"`` and ``"budget"``.
        """
        check_group(group)
        material = read_group(group, keep_order=self._keep_order)
        self._counters.add(groups=1)
        try:
            scores = self._judge(material, rubric or self.rubric)
        except JudgeFailed as fault:
            self._counters.fail(fault.reason)
            raise
        by_id = {id_: scores[place] for place, ids in enumerate(material.ids) for id_ in ids}
        return {attempt.id: by_id[attempt.id] for attempt in group}

    @property
    def statistics(self) -> JudgeStatistics:
        """What was asked and had so far, by this judge and those made from it."""
        return self._counters.snapshot()

    def with_seed(self, seed: int) -> LLMJudge:
        """The same judge with other labels and another order; connections, cache and counts are shared."""
        judge = copy.copy(self)
        judge.seed = seed
        return judge

    def in_given_order(self) -> LLMJudge:
        """The same judge, but attempts are shown in the order in which the group lists them."""
        judge = copy.copy(self)
        judge._keep_order = True
        return judge

    def close(self) -> None:
        """Give up the connections, also those of judges made from this one."""
        self._client.close()

    def __enter__(self) -> LLMJudge:
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()

    def _judge(self, material: Material, rubric: Rubric) -> dict[int, Score]:
        """Score the material's attempts, by place; with less of it at a time until the server takes it."""
        fixed = estimated_tokens(overhead(rubric)) + self._max_answer_tokens + _REPAIR_TOKENS
        room = self._max_context_tokens - fixed
        most = self._max_answer_tokens // (_ENTRY_TOKENS * (1 if len(rubric.criteria) == 1 else 2))
        while True:
            layout = lay_out(material, room, most)
            try:
                return self._in_blocks(layout, material, rubric)
            except TooLong:
                self._counters.add(cuts=1)
                room = layout.longest // 2

    def _in_blocks(self, layout: Layout, material: Material, rubric: Rubric) -> dict[int, Score]:
        waiting = list(range(len(layout.attempts)))
        scores = self._ask_about(layout.block(waiting), layout, material, rubric)
        anchors = anchors_of(scores)
        while waiting := [place for place in waiting if place not in scores]:
            block = layout.block(waiting, anchors)
            scores |= on_scale(self._ask_about(block, layout, material, rubric), scores)
        return scores

    def _ask_about(
        self, block: Sequence[int], layout: Layout, material: Material, rubric: Rubric
    ) -> dict[int, Score]:
        """Have the attempts at some places judged together."""
        texts = [layout.attempts[place] for place in block]
        prompt = build_prompt(layout.shared, texts, rubric, seed=self.seed, keep_order=self._keep_order)
        scores = self._answered(prompt, rubric.names if len(rubric.names) > 1 else ())
        places = dict(zip(prompt.labels, block, strict=True))
        ids = {label: "/".join(sorted(material.ids[place])) for label, place in places.items()}
        return {place: _with_ids(scores[label], ids) for label, place in places.items()}

    def _answered(self, prompt: Prompt, criteria: Sequence[str]) -> dict[str, Score]:
        """Scores by label, from the cache where the question was asked before."""
        if self._cache is None:
            return self._converse(prompt, criteria)[1]
        question = {"settings": self._settings, "messages": prompt.messages, "schema": prompt.schema}
        key = JudgeCache.key(question)
        found = self._cache.get(key)
        if found is not None:
            self._counters.add(cache_hits=1)
            return _reread(found, prompt, criteria)
        try:
            answer, _ = self._converse(prompt, criteria)
        except TooLong as fault:
            self._cache.put(key, CachedAnswer(self.model, "too_long", str(fault)))
            raise
        fresh = CachedAnswer(
            self.model, "answered", answer.text, answer.prompt_tokens or 0, answer.completion_tokens or 0
        )
        # Another thread or process may have been first; then its answer is everybody's.
        return _reread(self._cache.put(key, fresh), prompt, criteria)

    def _converse(self, prompt: Prompt, criteria: Sequence[str]) -> tuple[Answer, dict[str, Score]]:
        """Ask until the answer holds proper scores, telling what was wrong, a bounded number of times."""
        messages = prompt.messages
        problems: list[str] = []
        while True:
            answer = self._formats.ask(self._client, messages, prompt.schema)
            try:
                return answer, read_answer(answer.text, prompt.labels, criteria)
            except AnswerProblem as fault:
                cut = "; it was cut off at the most tokens allowed, so be brief" if answer.cut else ""
                problems.append(f"{fault}{cut}")
            if len(problems) > self._max_repairs:
                raise JudgeFailed(
                    "malformed",
                    f"{self._client.where} gave no proper scores in {len(problems)} answers: {problems[-1]}; "
                    f"the last answer begins {answer.text[:200]!r}",
                )
            self._counters.add(repairs=1)
            messages = repair_messages(prompt, answer.text[:_QUOTED_CHARACTERS], problems[-1])


def _reread(found: CachedAnswer, prompt: Prompt, criteria: Sequence[str]) -> dict[str, Score]:
    if found.outcome == "too_long":
        raise TooLong(found.answer)
    try:
        return read_answer(found.answer, prompt.labels, criteria)
    except AnswerProblem as fault:
        raise JudgingError(
            f"the judge cache holds an answer that does not fit its question: {fault}"
        ) from fault


def _with_ids(score: Score, ids: Mapping[str, str]) -> Score:
    """A score whose explanation calls the attempts by the ids that the caller knows."""
    words = re.sub("|".join(ids), lambda found: ids[found[0]], score.explanation)
    return Score(score.value, words, score.parts)


def _check_bounds(least_one: Mapping[str, int], least_zero: Mapping[str, int]) -> None:
    for least, values in ((1, least_one), (0, least_zero)):
        for name, value in values.items():
            if value < least:
                raise JudgingError(f"{name} is at least {least}, got {value}")


def _check_choices(structured: str, timeout: float, max_context_tokens: int, max_answer_tokens: int) -> None:
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
