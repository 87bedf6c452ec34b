import random
from typing import Any

import pytest

from art_trainer.inference.sampling import SamplingParams
from art_trainer.serving.agents.recording import Recording, Reply
from art_trainer.serving.dialects.batch_scheduler import GenerationOutput, TokenRun
from art_trainer.serving.dialects.chat import AgentChat
from art_trainer.serving.dialects.chat_completions import ChatRequest, ChatWriter
from art_trainer.serving.dialects.conversation import ChatMessage
from art_trainer.serving.http.middleware import ApiError
from tests.art_trainer.serving.helpers import TOOL_CHATML, WEATHER, user
from tests.art_trainer.tiny_models import CHATML, byte_tokenizer

# Drops what was thought before the last question, as Qwen 3 does.
FORGETFUL = CHATML.replace(
    "{{ m['content'] }}",
    "{{ m['content'].split('</think>')[-1] if m['role'] == 'assistant' else m['content'] }}",
)


class Talk:
    """A recording, and a client that keeps its own messages."""

    def __init__(self, template: str = TOOL_CHATML) -> None:
        self.chat = AgentChat(byte_tokenizer(template))
        self.recording = Recording(self.chat, None)

    def ask(self, messages: list[dict[str, Any]], says: str, tools: tuple[Any, ...] = ()) -> Reply:
        read = [ChatMessage.model_validate(message) for message in messages]
        opened = self.recording.open(read, tools, reply_length=50, version=7)
        token_ids = [*self.chat.encode(says), self.chat.end_of_turn]
        self.context = opened.history.context
        run = TokenRun(token_ids, [-0.5] * len(token_ids), [])
        output = GenerationOutput(run, stopped=True, hit_stop_string=False, version=7)
        request = ChatRequest.model_validate({"messages": messages, "tools": list(tools)})
        writer = ChatWriter(
            request,
            request.generation(SamplingParams()),
            "m",
            [self.context],
            self.chat,
            response_id=opened.id,
        )
        reply = self.recording.close(opened, output, writer.read(output))
        reply.delivered = True
        return reply

    def text(self, token_ids: Any) -> str:
        return self.chat.decode(token_ids)


def sent_back(reply: Reply) -> dict[str, Any]:
    """The reply as a client sends it back."""
    message = reply.message
    calls = [call.model_dump() for call in message.tool_calls]
    return {"role": "assistant", "content": message.content or None} | (
        {"tool_calls": calls} if calls else {}
    )


def sampled_text(talk: Talk) -> list[str]:
    """The text that is trained on in each history."""
    return [
        "|".join(talk.text(span.token_ids) for span in history.spans if span.turn is not None)
        for history in talk.recording.histories()
    ]


def test_a_conversation_is_one_history_as_the_template_writes_it() -> None:
    talk = Talk()
    messages = [user("one")]
    messages += [sent_back(talk.ask(messages, "first ")), user("two")]
    messages += [sent_back(talk.ask(messages, "second")), user("three")]
    talk.ask(messages, "third")
    (history,) = talk.recording.histories()
    assert talk.text(history.token_ids) == talk.chat.render(messages[:1]) + (
        "<|im_start|>assistant\nfirst <|im_end|>\n<|im_start|>user\ntwo<|im_end|>\n"
        "<|im_start|>assistant\nsecond<|im_end|>\n<|im_start|>user\nthree<|im_end|>\n"
        "<|im_start|>assistant\nthird<|im_end|>"
    )
    assert sampled_text(talk) == ["first <|im_end|>|second<|im_end|>|third<|im_end|>"]
    assert set(history.turns) == {0, 1, 2}


def test_a_tool_call_stays_as_it_was_sampled_whatever_the_client_makes_of_its_json() -> None:
    talk = Talk()
    odd = 'Hm.<tool_call>{ "arguments":{"town":   "K\\u00f6ln"},"name":"weather"}</tool_call>'
    reply = talk.ask([user("rain?")], odd, (WEATHER,))
    back = sent_back(reply)
    assert back["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"town": "Köln"}'}
    answer = {"role": "tool", "content": "no", "tool_call_id": back["tool_calls"][0]["id"]}
    talk.ask([user("rain?"), back, answer, user("and snow?")], "None.", (WEATHER,))
    (history,) = talk.recording.histories()
    assert odd + "<|im_end|>" in talk.text(history.token_ids)
    assert "<tool_response>\nno\n</tool_response>" in talk.text(history.token_ids)
    first, second = talk.recording.turns(2.5)
    assert (first.call, first.observation) == (
        {"name": "weather", "arguments": '{"town": "Köln"}'},
        "no\n\nand snow?",
    )
    assert (first.reward, second.reward, second.call) == (0.0, 2.5, None)


def test_branches_share_what_they_begin_with_and_each_reply_is_trained_on_once() -> None:
    talk = Talk()
    start = [user("one")]
    start.append(sent_back(talk.ask(start, "root")))
    talk.ask([*start, user("left")], "L")
    prompt = talk.context
    talk.ask([*start, user("right")], "R")
    assert talk.text(talk.context) == talk.text(prompt).replace("left", "right")
    assert sampled_text(talk) == ["root<|im_end|>|L<|im_end|>", "R<|im_end|>"]
    left, right = talk.recording.histories()
    assert left.turns[-1] == 1
    assert set(right.turns) == {2}
    assert right.prompt_length == len(talk.context)  # the root is read there, not sampled again


def test_a_rewritten_history_starts_a_new_context() -> None:
    talk = Talk()
    first = sent_back(talk.ask([user("one")], "root"))
    talk.ask([user("one"), first | {"content": "something else"}, user("two")], "next")
    assert sampled_text(talk) == ["root<|im_end|>", "next<|im_end|>"]
    assert "something else" in talk.text(talk.recording.histories()[1].token_ids)
    assert "root" not in talk.text(talk.recording.histories()[1].token_ids)
    others = {"role": "assistant", "content": "made up"}  # not trained on
    talk.ask([user("one"), first, user("two"), others, user("three")], "last")
    assert sampled_text(talk) == ["root<|im_end|>", "next<|im_end|>", "last<|im_end|>"]


def test_other_tools_start_a_new_context() -> None:
    talk = Talk()
    first = sent_back(talk.ask([user("one")], "root", (WEATHER,)))
    talk.ask([user("one"), first, user("two")], "next")
    assert len(talk.recording.histories()) == 2


def test_only_thoughts_that_the_template_drops_begin_a_context_in_200_episodes() -> None:
    rng = random.Random(0)
    for _ in range(200):
        talk, messages, replies = Talk(FORGETFUL), [user("start")], []
        for turn in range(rng.randint(1, 5)):
            thought = "<think>hm</think>" if rng.random() < 0.5 else ""
            replies.append(f"{thought}reply {turn}")
            back = sent_back(talk.ask(messages, replies[-1]))
            spaced = rng.choice([back["content"], f" {back['content']}\n"])  # clients strip, or do not
            messages += [back | {"content": spaced}, user(f"turn {turn}")]
        forks = sum(reply.startswith("<think>") for reply in replies[:-1])
        histories = talk.recording.histories()
        assert len(histories) == 1 + forks
        assert "<think>" not in talk.text(talk.context)
        trained = [
            talk.text(s.token_ids) for history in histories for s in history.spans if s.turn is not None
        ]
        assert trained == [f"{reply}<|im_end|>" for reply in replies]


def test_of_equal_conversations_the_ids_of_the_calls_tell_which_one_goes_on() -> None:
    talk = Talk()
    plain = '<tool_call>{"name": "weather", "arguments": {"town": "Bonn"}}</tool_call>'
    spaced = plain.replace(": ", ":  ")
    first = sent_back(talk.ask([user("one")], plain, (WEATHER,)))
    second = sent_back(talk.ask([user("one")], spaced, (WEATHER,)))
    assert first["tool_calls"][0]["id"] != second["tool_calls"][0]["id"]
    answer = {"role": "tool", "content": "dry", "tool_call_id": "x"}
    talk.ask([user("one"), first, answer], "a", (WEATHER,))
    assert plain in talk.text(talk.context)
    talk.ask([user("one"), second, answer], "b", (WEATHER,))
    assert spaced in talk.text(talk.context)


def test_a_template_without_tools_has_the_user_say_what_they_answered(caplog: Any) -> None:
    template = (
        "{% for m in messages %}{% if m['role'] in ('user', 'assistant') %}<|im_start|>{{ m['role'] }}\n"
        "{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    talk = Talk(template)
    call = '<tool_call>{"name": "weather", "arguments": {}}</tool_call>'
    first = sent_back(talk.ask([user("one")], call, (WEATHER,)))
    answers = [{"role": "tool", "content": text, "tool_call_id": "x"} for text in ("dry", "warm")]
    talk.ask([user("one"), first, *answers], "good", (WEATHER,))
    assert "<|im_start|>user\ndry\nwarm<|im_end|>" in talk.text(talk.context)
    assert len(talk.recording.histories()) == 1
    # A call that was not sampled here is written as words.
    shot = {"id": "x", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Bonn"}'}}
    example = [user("x"), {"role": "assistant", "content": None, "tool_calls": [shot]}, answers[0], user("y")]
    talk.ask(example, "z", (WEATHER,))
    written = '<tool_call>\n{"name": "weather", "arguments": {"town": "Bonn"}}\n</tool_call>'
    assert written in talk.text(talk.context)
    assert caplog.text.count("lists no tools") == 1


def test_a_template_may_want_arguments_of_another_type() -> None:
    call = {"id": "x", "type": "function", "function": {"name": "weather", "arguments": "no JSON"}}
    messages = [user("x"), {"role": "assistant", "content": None, "tool_calls": [call]}, user("y")]
    written = ("'with ' + call.function.arguments", "call.function.arguments | items | list")
    text, items = (Talk(TOOL_CHATML.replace("call.function.arguments | tojson", way)) for way in written)
    text.ask(messages, "")
    with pytest.raises(ApiError, match="refuses these messages: Can only get item pairs"):
        items.ask(messages, "")


def test_a_reply_that_was_not_delivered_is_not_trained_on() -> None:
    talk = Talk()
    talk.ask([user("one")], "lost").delivered = False
    talk.ask([user("one")], "got")
    talk.recording.end()
    talk.recording._replies[0].delivered = True  # too late
    assert sampled_text(talk) == ["got<|im_end|>"]
    assert [turn.reply for turn in talk.recording.turns(1.0)] == ["got"]
    assert set(talk.recording.histories()[0].turns) == {0}
