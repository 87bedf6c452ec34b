import pytest

from art_trainer.chat import ChatFormat
from tests.art_trainer.tiny_models import CHATML, byte_tokenizer

QWEN = (
    "{% if tools %}<|im_start|>system\n"
    "{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] }}\n\n{% endif %}"
    "# Tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m['role'] != 'system' or not tools %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
QWEN_THINKING = CHATML.replace(
    "{{ m['content'] }}",
    "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1] }}"
    "{% else %}{{ m['content'] }}{% endif %}",
)
LLAMA = (
    "<bos>{% for m in messages %}<|start_header_id|>{{ m['role'] }}<|end_header_id|>\n\n"
    "{{ m['content'] | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
DEEPSEEK = (
    "<bos>{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] }}"
    "{% elif m['role'] == 'user' %}<｜User｜>{{ m['content'] }}"
    "{% else %}<｜Assistant｜>{{ m['content'].split('</think>')[-1] }}<｜end▁of▁sentence｜>{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
)
GEMMA = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
TOOLS_LAST = (
    "{% for m in messages %}{% if loop.last and tools %}{{ tools | tojson }}{% endif %}"
    "<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEMPLATES = {
    "chatml": CHATML,
    "qwen": QWEN,
    "qwen-thinking": QWEN_THINKING,
    "llama": LLAMA,
    "deepseek": DEEPSEEK,
    "gemma": GEMMA,
    "plain": None,
}
TOOLS = [{"type": "function", "function": {"name": "search", "description": "Find.", "parameters": {}}}]


def conversation(*contents: str, system: str | None = "Rules of <b>play</b>.") -> list[dict[str, str]]:
    roles = ["user", "assistant"] * len(contents)
    head = [] if system is None else [{"role": "system", "content": system}]
    return head + [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]


@pytest.fixture(params=list(TEMPLATES))
def chat(request) -> ChatFormat:
    return ChatFormat(byte_tokenizer(TEMPLATES[request.param]))


@pytest.mark.parametrize("system", [None, "Rules."])
@pytest.mark.parametrize("tools", [[], TOOLS])
def test_appended_tokens_are_those_of_the_whole_conversation(chat, system, tools):
    words = ["Find it.", 'search("a")', "Two hits: é 漢", "read(2)", "It says\n\nno.", "answer", "right"]
    context = chat.prompt(conversation(words[0], system=system), tools)
    for turn in range(1, len(words), 2):
        messages = conversation(*words[: turn + 2], system=system)
        glue = chat.continuation(messages, tools)
        assert glue is not None
        context += [*chat.reply(words[turn]), *glue]
        assert context == chat.prompt(messages, tools)


def test_the_end_of_turn_token_is_the_templates():
    ends = {name: ChatFormat(byte_tokenizer(t)) for name, t in TEMPLATES.items()}
    texts = {name: chat.decode([chat.end_of_turn]) for name, chat in ends.items()}
    assert texts == {
        "chatml": "<|im_end|>",
        "qwen": "<|im_end|>",
        "qwen-thinking": "<|im_end|>",
        "llama": "<|eot_id|>",
        "deepseek": "<｜end▁of▁sentence｜>",
        "gemma": "<|im_end|>",
        "plain": "<|endoftext|>",
    }


@pytest.mark.parametrize("template", ["qwen-thinking", "deepseek"])
def test_a_template_that_drops_thinking_cannot_be_continued_after_thinking(template):
    chat = ChatFormat(byte_tokenizer(TEMPLATES[template]))
    thought = conversation("ask", "<think>hm</think>search(1)", "seen")
    assert chat.continuation(thought) is None
    assert chat.continuation(conversation("ask", "search(1)", "seen")) is not None
    assert "hm" not in chat.render(thought)


def test_a_template_that_keeps_thinking_is_continued():
    chat = ChatFormat(byte_tokenizer(CHATML))
    assert chat.continuation(conversation("ask", "<think>hm</think>search(1)", "seen")) is not None


def test_a_template_that_moves_the_tools_cannot_be_continued_with_tools():
    chat = ChatFormat(byte_tokenizer(TOOLS_LAST))
    messages = conversation("ask", "said", "seen")
    assert chat.continuation(messages, TOOLS) is None
    assert chat.continuation(messages) is not None


def test_a_generation_prompt_that_opens_thinking_is_not_part_of_the_past():
    opening = DEEPSEEK.replace("<｜Assistant｜>{% endif %}", "<｜Assistant｜><think>\n{% endif %}")
    chat = ChatFormat(byte_tokenizer(opening))
    assert chat.continuation(conversation("ask", "said", "seen")) is None


def test_space_around_a_reply_does_not_count_as_rewriting():
    chat = ChatFormat(byte_tokenizer(LLAMA))
    plain = chat.continuation(conversation("ask", "said", "seen"))
    assert chat.continuation(conversation("ask", " said\n", "  seen ")) == plain


def test_replies_with_the_templates_own_tokens_stay_as_they_are():
    chat = ChatFormat(byte_tokenizer(CHATML))
    reply = '<tool_call>{"name": "x"}</tool_call><|im_start|>user'
    assert chat.decode(chat.encode(reply)) == reply
    assert chat.continuation(conversation("ask", reply, "seen")) is not None


def test_a_template_without_a_system_role_gets_the_instructions_in_the_first_message():
    chat = ChatFormat(byte_tokenizer(GEMMA))
    assert chat.render(conversation("ask", system="Rules.")) == "<|im_start|>user\nRules.\n\nask<|im_end|>\n"


def test_tools_and_instructions_are_in_the_prompt():
    chat = ChatFormat(byte_tokenizer(QWEN))
    text = chat.decode(chat.prompt(conversation("ask"), TOOLS))
    assert '"name": "search"' in text
    assert "Rules of <b>play</b>." in text
    assert text.endswith("<|im_start|>user\nask<|im_end|>\n<|im_start|>assistant\n")


def test_a_prompt_asked_for_again_is_equal_and_its_own():
    chat = ChatFormat(byte_tokenizer(QWEN))
    first = chat.prompt(conversation("ask"), TOOLS)
    kept = list(first)
    first.append(7)
    assert chat.prompt(conversation("ask"), TOOLS) == kept
    assert chat.prompt(conversation("other"), TOOLS) != kept
    assert chat.prompt(conversation("ask"), []) != kept


def test_a_tokenizer_that_can_end_no_reply_is_refused():
    tokenizer = byte_tokenizer(None)
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no chat template and no eos_token"):
        ChatFormat(tokenizer)


def test_a_template_that_hides_replies_is_refused():
    with pytest.raises(ValueError, match="does not write an assistant message"):
        ChatFormat(byte_tokenizer("{% for m in messages %}{{ m['role'] }}{% endfor %}"))


def test_a_continuation_needs_a_reply_and_an_observation():
    chat = ChatFormat(byte_tokenizer(CHATML))
    with pytest.raises(ValueError, match=r"\['user', 'assistant'\]"):
        chat.continuation(conversation("ask", "said"))


@pytest.mark.parametrize("system", [None, "Rules."])
def test_a_window_holds_the_instructions_and_the_newest_turns(system):
    whole = conversation("one", "a", "two", "b", "three", system=system)
    tokenizer = byte_tokenizer(CHATML)
    plain = ChatFormat(tokenizer)
    head = whole[:1] if system else []
    assert ChatFormat(tokenizer, history_window=1).prompt(whole) == plain.prompt([*head, *whole[-1:]])
    assert ChatFormat(tokenizer, history_window=2).prompt(whole) == plain.prompt([*head, *whole[-3:]])
    assert ChatFormat(tokenizer, history_window=3).prompt(whole) == plain.prompt(whole)
    assert ChatFormat(tokenizer, history_window=9).prompt(whole) == plain.prompt(whole)


def test_with_a_window_every_turn_is_a_context_of_its_own():
    whole = conversation("one", "a", "two")
    assert ChatFormat(byte_tokenizer(CHATML), history_window=2).continuation(whole) is None


def test_a_window_of_no_turns_is_refused():
    with pytest.raises(ValueError, match="history_window is at least 1, got 0"):
        ChatFormat(byte_tokenizer(CHATML), history_window=0)
