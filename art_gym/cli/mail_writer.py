"""``art-gym mail questions --writer``: questions that a language model writes."""

import json
import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer

from art_gym.cli.common import progress
from art_gym.envs.mail.questions.writer import AT_A_TIME, DroppedError, QuestionWriter
from art_gym.envs.mail.store.store import MailStore
from art_gym.wrappers.judging.base import JudgeFailedError
from art_gym.wrappers.judging.budget import Counters, JudgeBudget
from art_gym.wrappers.judging.cache import CachedAnswer, JudgeCache
from art_gym.wrappers.judging.http_client import ChatClient, ContextLengthError, parse_openai
from art_gym.wrappers.judging.prompt import json_values, object_schema, without_control_tokens

_MOST_TOKENS = 4_096  # of an answer; a model may think first
_MOST_FAILURES = 5  # requests in a row without an answer


def write_questions(store: MailStore, writer: str, out: Path, count: int, seed: int) -> None:
    """Write each question to ``out`` once it is kept, and say at the end why others were dropped.

    Raises:
        JudgingError: If the writer's name, its key or the file of its answers is wrong.
        JudgeFailedError: If the server cannot be reached, does not take the key or the model, or does not
            answer several times in a row.
        ImportError: If the extra ``openai`` is not installed.
    """
    made = QuestionWriter(store, CachedModel(writer, out.with_name(f"{out.name}.answers")).ask, seed)
    dropped: Counter[str] = Counter()
    kept = 0
    out.touch(0o600)
    try:
        with out.open("w", encoding="utf-8") as file, progress() as bar:
            task = bar.add_task("writing questions", total=count, amount="")
            for found in made.questions(count):
                if isinstance(found, DroppedError):
                    dropped[str(found)] += 1
                else:
                    kept += 1
                    file.write(json.dumps(found.to_json(), ensure_ascii=False) + "\n")
                    file.flush()
                bar.update(task, completed=kept, amount=f"{kept} kept, {dropped.total()} dropped")
    except KeyboardInterrupt:
        print("interrupted: the same command goes on from here", file=sys.stderr)
        raise typer.Exit(130) from None
    finally:
        print(f"{kept} questions kept, {dropped.total()} dropped; written to {out}")
        for reason, number in dropped.most_common():
            print(f"  {number:,} dropped: {reason}")


class CachedModel:
    """A model on a server, whose answers are kept in a file: no question is asked twice."""

    def __init__(self, name: str, cache: Path) -> None:
        model, url = parse_openai(name)
        self._cache, self._failures = JudgeCache(cache), 0
        self._client = ChatClient(
            model,
            url,
            api_key=os.environ.get("OPENAI_API_KEY") or None,
            options={},  # some models take no other temperature than their own
            structured="auto",
            max_answer_tokens=_MOST_TOKENS,
            timeout=120.0,
            max_retries=4,
            max_concurrency=AT_A_TIME,
            budget=JudgeBudget(),
            counters=Counters(),
        )

    def ask(self, rules: str, text: str, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The JSON object with these fields that the model answers; a DroppedError if it does not."""
        roles = {"system": rules, "user": without_control_tokens(text)}
        key = JudgeCache.key({"where": self._client.where, "fields": fields, **roles})
        answer = self._cache.get(key) or self._cache.put(key, self._answer(roles, fields))
        if answer.outcome == "too_long":
            raise DroppedError("too long for the model")
        for value in json_values(answer.answer):
            if isinstance(value, dict) and value.keys() >= fields.keys():
                return value
        raise DroppedError("the model's answer is not the JSON asked for")

    def _answer(self, roles: Mapping[str, str], fields: Mapping[str, Any]) -> CachedAnswer:
        messages = [{"role": role, "content": text} for role, text in roles.items()]
        try:
            answer = CachedAnswer("answered", self._client.ask(messages, object_schema(dict(fields))).text)
        except ContextLengthError as error:
            answer = CachedAnswer("too_long", str(error))
        except JudgeFailedError as error:
            self._failures += 1
            # No server, or no such key or model: it would be the same for every mail.
            fatal = error.reason == "connection" or (error.reason == "refused" and error.__cause__)
            if fatal or self._failures >= _MOST_FAILURES:
                raise
            raise DroppedError("no answer from the model") from error
        self._failures = 0
        return answer
