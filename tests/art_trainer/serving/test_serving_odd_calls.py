"""Arguments of calls in a client's messages that are no JSON that Python reads: texts like any other."""

import pytest

from art_trainer.agent_server.fingerprints import extended
from art_trainer.serving.messages import ChatMessage


@pytest.mark.parametrize(
    "arguments", ['{"x": ' + "9" * 5_000 + "}", '{"x": ' * 50_000, "{", "NaN", "[1]"], ids=len
)
def test_arguments_that_cannot_be_read_are_kept_as_they_were_said(arguments: str) -> None:
    call = {"id": "c", "function": {"name": "f", "arguments": arguments}}
    message = ChatMessage.read({"role": "assistant", "tool_calls": [call]}, "messages[0]")
    (written,) = message.for_template()["tool_calls"]
    assert written["function"]["arguments"] == arguments
    other = ChatMessage.read({"role": "assistant", "tool_calls": [{**call, "function": {"name": "f"}}]}, "m")
    assert extended(b"", message) == extended(b"", message) != extended(b"", other)
