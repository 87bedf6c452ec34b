"""How an answer's form is asked for: by schema, as JSON of any shape, or in words alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from art_gym.wrappers.judging.errors import JudgeFailed
from art_gym.wrappers.judging.llm_client import ChatClient, RequestRefused
from art_gym.wrappers.judging.llm_wire import Answer

Structured = Literal["json_schema", "json_object", "text"]

FORMATS: tuple[Structured, ...] = ("json_schema", "json_object", "text")
"""From the strictest to the one that every server has."""


class FormatChoice:
    """Finds the strictest form that a server takes, and remembers it.

    A server says that it lacks a form by refusing the request (400 or 422), and it refuses other requests
    likewise; so a form counts as lacking only once a weaker one was taken for the same question.

    Args:
        structured: The only form to try, or ``"auto"``.
    """

    def __init__(self, structured: Literal["auto"] | Structured) -> None:
        self._to_try: tuple[Structured, ...] = FORMATS if structured == "auto" else (structured,)

    def ask(
        self, client: ChatClient, messages: Sequence[Mapping[str, str]], schema: Mapping[str, Any]
    ) -> Answer:
        """Send a question in the strictest form that the server takes.

        Raises:
            TooLong: Where the question is too long for the model.
            JudgeFailed: As :meth:`.ChatClient.ask`, and with reason ``"refused"`` where no form was taken.
        """
        refusals = []
        for place, form in enumerate(to_try := self._to_try):
            try:
                answer = client.ask(messages, _response_format(form, schema))
            except RequestRefused as fault:
                refusals.append(str(fault))
            else:
                if place:
                    self._to_try = to_try[place:]
                return answer
        raise JudgeFailed("refused", refusals[0])


def _response_format(form: Structured, schema: Mapping[str, Any]) -> dict[str, Any] | None:
    if form == "json_schema":
        return {"type": form, "json_schema": {"name": "scores", "strict": True, "schema": schema}}
    return {"type": form} if form == "json_object" else None
