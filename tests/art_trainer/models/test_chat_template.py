"""Chat templates as their makers ship them: appended turns against rendering the whole conversation.

The templates are those TRL ships a copy of, to recognise models by; Kimi K2's is not among them, so a short
one stands here that writes the same format. Tokenizers are trained here, with each family's special tokens,
and split text as theirs do: marks take the line ends behind them along, so that tokens can span a seam.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

import art_gym  # noqa: F401 (registers the mailbox)
from art_gym.base import system_text
from art_trainer.models.chat_template import PROMPT_DATE, ChatFormat
from tests.art_trainer.tiny_models import CHATML, byte_tokenizer

KIMI = (
    "{% macro turn(kind, name, words) %}"
    "<|im_{{ kind }}|>{{ name }}<|im_middle|>{{ words }}<|im_end|>{% endmacro %}"
    "{% if tools %}{{ turn('system', 'tool_declare', tools | tojson(separators=(',', ':'))) }}{% endif %}"
    "{% if messages[0].role != 'system' %}{{ turn('system', 'system', 'You help.') }}{% endif %}"
    "{% for m in messages %}"
    "{% set kind = m.role if m.role in ('user', 'assistant') else 'system' %}"
    "{% set words = '## Return of ' + m.tool_call_id + '\n' + m.content if m.role == 'tool' else m.content %}"
    "{{ turn(kind, m.name or m.role, words) }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_assistant|>assistant<|im_middle|>{% endif %}"
)
HERMES_CALL = '<tool_call>\n{"name": "NAME", "arguments": ARGUMENTS}\n</tool_call>'
LLAMA_CALL = '{"name": "NAME", "parameters": ARGUMENTS}'
DEEPSEEK_CALL = (
    "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\nARGUMENTS\n```"
    "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
)
KIMI_CALL = (
    "<|tool_calls_section_begin|><|tool_call_begin|>functions.NAME:0<|tool_call_argument_begin|>ARGUMENTS"
    "<|tool_call_end|><|tool_calls_section_end|>"
)
SPECIAL_TOKEN = re.compile(r"<[|｜][^<>|｜\s]+[|｜]>|</?(?:think|tool_call|tool_response)>|\[[BE]OS\]")


@dataclass(frozen=True)
class Family:
    """A maker's template and tokens."""

    template: str
    """TRL's name of it."""
    bos: str | None
    eos: str
    end: str
    """What ends a turn."""
    call: str
    """A call of the tool NAME with the JSON ARGUMENTS."""
    trims: bool = False
    """Whether space around messages is dropped."""
    rewrites: str = "never"
    """Which replies make the next prompt begin otherwise: ``"never"``, ``"thinking"`` or ``"always"``."""


def _llama(template: str) -> Family:
    return Family(template, "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", LLAMA_CALL, trims=True)


def _qwen(template: str, rewrites: str = "never") -> Family:
    return Family(template, None, "<|im_end|>", "<|im_end|>", HERMES_CALL, rewrites=rewrites)


FAMILIES = {
    "qwen2.5": _qwen("qwen2_5"),
    "qwen3": _qwen("qwen3", rewrites="thinking"),
    "qwen3-2507": _qwen("qwen3_instruct_2507"),
    "llama3": _llama("llama3"),
    "llama3.1": _llama("llama3_1"),
    "llama3.2": _llama("llama3_2"),
    # Its generation prompt opens a thought, of which the past keeps nothing.
    "deepseek-v3": Family(
        "deepseekv3", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜end▁of▁sentence｜>",
        DEEPSEEK_CALL, rewrites="always",
    ),
    "kimi-k2": Family("", "[BOS]", "[EOS]", "<|im_end|>", KIMI_CALL),
}  # fmt: skip
PARAMETERS = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}
FUNCTION = {"name": "search", "description": "Find mails.", "parameters": PARAMETERS}
TOOLS = [{"type": "function", "function": FUNCTION}]


def template_of(family: Family) -> str:
    if not family.template:
        return KIMI
    spec = importlib.util.find_spec("trl")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("TRL, whose copies of the templates these tests read, is not installed")
    folder = Path(spec.submodule_search_locations[0]) / "chat_templates"
    return (folder / f"{family.template}.jinja").read_text(encoding="utf-8")


@cache
def core() -> str:
    """A tokenizer as JSON, trained on this file and on the mailbox's prompt."""
    tokenizer = Tokenizer(models.BPE())
    pieces = Regex(r" ?\p{L}+| ?\p{N}{1,3}| ?[^\s\p{L}\p{N}]+\n*|\s*\n+|\s+(?!\S)|\s+")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(pieces, "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    text = Path(__file__).read_text(encoding="utf-8")
    observation, info = gym.make("art/Email-v0", difficulty=1).reset(seed=0)
    texts = [text, observation, json.dumps(info["tools"]), "assistant\n\n", ">\n\n\n", "}\n\n", ".\n\n"]
    tokenizer.train_from_iterator(texts * 2, trainer)
    return str(tokenizer.to_str())


def tokenizer_of(name: str) -> PreTrainedTokenizerFast:
    family = FAMILIES[name]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(core()), bos_token=family.bos, eos_token=family.eos
    )
    tokenizer.chat_template = template_of(family)
    tokens = sorted({*SPECIAL_TOKEN.findall(tokenizer.chat_template + family.call), family.end})
    tokenizer.add_special_tokens({"additional_special_tokens": tokens})
    return tokenizer


@cache
def chat_of(name: str) -> ChatFormat:
    return ChatFormat(tokenizer_of(name))


@dataclass
class Context:
    """A conversation as the policy keeps it: what the template wrote, and replies as they were sampled."""

    chat: ChatFormat
    tools: Sequence[dict[str, Any]]
    trims: bool
    messages: list[dict[str, str]]
    ids: list[int] = field(default_factory=list)
    text: str = ""
    """What the ids say, with replies as the template writes them."""
    canonical: bool = True
    """Whether the replies' tokens are those a tokenizer finds in the whole text."""
    rewritten: bool = False
    histories: int = 1

    def __post_init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self.ids = self.chat.prompt(self.messages, self.tools)
        self.text = self._whole()
        self.canonical = True
        assert self.ids == self.chat.encode(self.text)
        assert self.chat.decode(self.ids) == self.text

    def _whole(self) -> str:
        return self.chat.render(self.messages, self.tools, add_generation_prompt=True)

    def play(self, reply: str, cuts: int, observation: str) -> None:
        """A turn: the reply is sampled (in so many pieces), the observation read."""
        chat = self.chat
        sampled = spelled(chat, reply, cuts)
        assert chat.decode(sampled) == reply
        written = reply.strip() if self.trims else reply
        end = chat.decode([chat.end_of_turn])
        self.canonical &= chat.encode(self.text + written + end) == [*self.ids, *sampled, chat.end_of_turn]
        self.ids += [*sampled, chat.end_of_turn]
        self.text += written + end
        self.messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": observation}]
        glue = chat.continuation(self.messages, self.tools, appended_only=not self.rewritten)
        assert glue == chat.continuation(self.messages, self.tools), "the shortcut says otherwise"
        whole = self._whole()
        if glue is None:
            # A thought that stands only until the next turn comes counts as rewritten at once.
            assert "</think>" in reply or not whole.startswith(self.text), "nothing was rewritten"
            self.rewritten = True
            self.histories += 1
            self._start()
            return
        self.ids += glue
        self.text += chat.decode(glue)
        assert self.text == whole
        if self.canonical:
            assert self.ids == chat.encode(whole)


def spelled(chat: ChatFormat, text: str, cuts: int) -> list[int]:
    """Tokens of a reply that ends at none of them: in one piece, or cut where no tokenizer would cut.

    A model that writes the end of a turn with its token has ended the turn; within a reply it is spelled out.
    """
    ends = {chat.decode([chat.end_of_turn]), str(chat.tokenizer.eos_token)}
    places = {len(text) * part // cuts for part in range(1, cuts)}
    places |= {found.start() + 2 for end in ends for found in re.finditer(re.escape(end), text)}
    borders = [0, *sorted(places), len(text)]
    return [token for a, b in itertools.pairwise(borders) for token in chat.encode(text[a:b])]


LOOK_ALIKES = sorted(set(SPECIAL_TOKEN.findall(Path(__file__).read_text(encoding="utf-8"))))
WORDS = st.lists(
    st.one_of(
        st.sampled_from(["search", "mail 17", " ", "\n", "\n\n", "  \n", "é漢字", "\t"]),
        st.sampled_from(["👩‍🚀", "{{ x }}", "{% if %}", "'\"\\"]),
        st.sampled_from(LOOK_ALIKES),
        st.text(max_size=4),
    ),
    max_size=5,
).map("".join)  # fmt: skip
SPACE = st.sampled_from(["", "", "", " ", "\n", "\n\n"])
ARGUMENTS = st.dictionaries(
    st.sampled_from(["query", "limit"]), st.one_of(st.integers(0, 99), st.text(max_size=6))
)


@st.composite
def replies(draw: Callable[[Any], Any], family: Family) -> str:
    """What a model says: nothing, words, thoughts, a call in its family's own syntax, space around them."""
    thought = draw(WORDS) if draw(st.integers(0, 3)) == 0 else None
    said = draw(WORDS)
    call = ""
    if draw(st.booleans()):
        arguments = json.dumps(draw(ARGUMENTS), ensure_ascii=False)
        call = family.call.replace("NAME", "search").replace("ARGUMENTS", arguments)
    opened = draw(st.sampled_from(["<think>\n", "<think>", ""]))
    thinking = "" if thought is None else f"{opened}{thought}\n</think>\n\n"
    return draw(SPACE) + thinking + said + call + draw(SPACE)


OBSERVATIONS = st.one_of(WORDS, WORDS.map("<tool_response>\n{}\n</tool_response>".format))
CUTS = st.sampled_from([1, 1, 1, 2, 5])


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=settings().max_examples // 4)
@given(data=st.data())
def test_appended_turns_are_the_whole_rendering_or_a_new_history(name: str, data: st.DataObject) -> None:
    family = FAMILIES[name]
    turns = data.draw(st.lists(st.tuples(replies(family), CUTS, OBSERVATIONS), min_size=1, max_size=12))
    system = data.draw(st.one_of(st.none(), WORDS))
    head = [] if system is None else [{"role": "system", "content": system}]
    tools = TOOLS if data.draw(st.booleans()) else []
    messages = [*head, {"role": "user", "content": data.draw(OBSERVATIONS)}]
    context = Context(chat_of(name), tools, family.trims, messages)
    for reply, cuts, observation in turns:
        context.play(reply, cuts, observation)
    if family.rewrites == "never":
        assert context.histories == 1
    if family.rewrites == "always":
        assert context.histories == 1 + len(turns)


@pytest.mark.parametrize("name", FAMILIES)
def test_long_conversations_split_only_where_the_template_rewrites_the_past(name: str) -> None:
    family = FAMILIES[name]
    call = family.call.replace("NAME", "search").replace("ARGUMENTS", '{"query": "a"}')
    replies = [call, "", f"<think>\nHm.\n</think>\n\n{call}", f" {call}\n", "No </thinking>.", call] * 3
    messages = [{"role": "system", "content": "Rules."}, {"role": "user", "content": "Ask."}]
    context = Context(chat_of(name), TOOLS, family.trims, messages)
    for turn, reply in enumerate(replies):
        context.play(reply, 1, f" Seen {turn}.\n")
    assert context.histories == {"never": 1, "thinking": 4, "always": 19}[family.rewrites]
    # Beside spaces that the template drops, every token is where the whole rendering has it.
    assert context.canonical != family.trims


@pytest.mark.parametrize("name", FAMILIES)
def test_a_beginning_is_written_once_and_turns_end_with_the_makers_token(name: str) -> None:
    family, chat = FAMILIES[name], chat_of(name)
    messages = [{"role": "user", "content": "Ask."}]
    prompt = chat.prompt(messages, TOOLS)
    bos = chat.tokenizer.bos_token_id
    writes_bos = name not in ("qwen2.5", "qwen3", "qwen3-2507", "kimi-k2")
    assert prompt.count(bos) == (1 if writes_bos else 0)
    assert writes_bos == (prompt[0] == bos)
    assert chat.decode([chat.end_of_turn]) == family.end
    # The first Llama 3 and DeepSeek-V3 have no place for tools: the standing instructions name them in words.
    lists_tools = name not in ("llama3", "deepseek-v3")
    assert ("search" in chat.decode(prompt)) == lists_tools
    system = system_text("Find the mail.", gym.make("art/Email-v0").unwrapped.tools)
    asked = chat.render([{"role": "system", "content": system}, *messages], TOOLS)
    assert "Find the mail." in asked
    assert ("Reply with one call" in asked) == (not lists_tools), "the tools are listed once"
    messages += [{"role": "assistant", "content": "said"}, {"role": "user", "content": "seen"}]
    more = chat.continuation(messages, TOOLS)
    assert (more is None) == (family.rewrites == "always")
    assert more is None or bos not in more
    if name in ("llama3.1", "llama3.2"):  # which write a date: not the clock's
        assert f"Today Date: {PROMPT_DATE}\n" in chat.render(messages)


@pytest.mark.parametrize("lists", ["{{ tools[0].function.name }}", "{{ raise_exception('no tools') }}"])
def test_tools_are_listed_once_without_a_place_for_a_system_message_or_for_tools(lists: str) -> None:
    tokenizer = byte_tokenizer()
    refuses = "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    tokenizer.chat_template = refuses + "{% if tools %}" + lists + "{% endif %}" + CHATML
    chat = ChatFormat(tokenizer)
    system = system_text("Find the mail.", gym.make("art/Email-v0").unwrapped.tools)
    messages = [{"role": "system", "content": system}, {"role": "user", "content": "Ask."}]
    if "raise" in lists:
        assert "Reply with one call" in chat.render(messages)
    else:
        assert "Reply with one call" not in chat.render(messages, TOOLS)
        assert "Find the mail.\n\nAsk." in chat.render(messages, TOOLS)


def test_a_thought_kept_by_an_observation_that_looks_like_a_tools_answer_goes_later() -> None:
    """Qwen 3 keeps the thoughts since the last question, and takes such an observation for no question."""
    chat = chat_of("qwen3")
    messages = [
        {"role": "user", "content": "Ask."},
        {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nFirst."},
        {"role": "user", "content": "<tool_response>\nseen\n</tool_response>"},
    ]
    assert chat.continuation(messages) is None
    assert "Hm." in chat.decode(chat.prompt(messages))
    messages += [{"role": "assistant", "content": "Second."}, {"role": "user", "content": "New question."}]
    assert chat.continuation(messages) is None
    assert "Hm." not in chat.decode(chat.prompt(messages))


# Templates of fewer words, for what no maker's template does.

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


def conversation(*contents: str, system: str | None = "Rules of <b>play</b>.") -> list[dict[str, str]]:
    roles = ["user", "assistant"] * len(contents)
    head = [] if system is None else [{"role": "system", "content": system}]
    return head + [{"role": r, "content": c} for r, c in zip(roles, contents, strict=False)]


def test_a_template_that_moves_the_tools_cannot_be_continued_with_tools():
    chat = ChatFormat(byte_tokenizer(TOOLS_LAST))
    messages = conversation("ask", "said", "seen")
    assert chat.continuation(messages, TOOLS) is None
    assert chat.continuation(messages) is not None


def test_a_prompt_asked_for_again_is_equal_and_its_own():
    chat = ChatFormat(byte_tokenizer(TOOLS_LAST))
    first = chat.prompt(conversation("ask"), TOOLS)
    kept = list(first)
    first.append(7)
    assert chat.prompt(conversation("ask"), TOOLS) == kept
    assert chat.prompt(conversation("other"), TOOLS) != kept
    assert chat.prompt(conversation("ask"), []) != kept


@pytest.mark.parametrize("system", [None, "Rules."])
def test_a_window_holds_the_instructions_and_the_newest_turns(system):
    whole = conversation("one", "a", "two", "b", "three", system=system)
    tokenizer = byte_tokenizer(CHATML)
    plain = ChatFormat(tokenizer)
    head = whole[:1] if system else []
    for window, kept in [(1, 1), (2, 3), (3, 5), (9, 5)]:
        chat = ChatFormat(tokenizer, history_window=window)
        assert chat.prompt(whole) == plain.prompt([*head, *whole[-kept:]])


@pytest.mark.parametrize("template", [None, GEMMA])
@pytest.mark.parametrize("system", [None, "Rules."])
def test_without_a_place_for_instructions_turns_are_appended(template, system):
    chat = ChatFormat(byte_tokenizer(template))
    words = ["Find it.", 'search("a")', "Two hits: é 漢", "It says\n\nno.", "right"]
    context = chat.prompt(conversation(words[0], system=system))
    for turn in range(1, len(words), 2):
        messages = conversation(*words[: turn + 2], system=system)
        more = chat.continuation(messages)
        assert more is not None
        context += [*chat.reply(words[turn]), *more]
        assert context == chat.prompt(messages)
    assert (system or "Find") in chat.decode(context)


def test_a_space_before_the_end_of_a_reply_does_not_end_it_and_a_base_model_gets_its_first_token():
    llama2 = "{% for m in messages %}{% if m.role == 'assistant' %} {{ m.content }} {{ eos_token }}{% else %}"
    llama2 += "{{ bos_token }}[INST] {{ m.content }} [/INST]{% endif %}{% endfor %}"
    for template, seen in ((llama2, "<bos>[INST] seen [/INST]"), (None, "\nuser: seen\nassistant: ")):
        tokenizer = byte_tokenizer(template)
        tokenizer.bos_token = "<bos>"
        chat = ChatFormat(tokenizer)
        assert chat.decode([chat.end_of_turn]) == "<|endoftext|>"
        assert chat.decode(chat.prompt(conversation("ask"))).startswith("<bos>")
        assert chat.decode(chat.continuation(conversation("ask", "said it", "seen"))) == seen


@pytest.mark.parametrize(
    ("template", "window", "words"),
    [("{{ messages[0]['role'] }}", None, "assistant"), (CHATML, 0, "history_window")],
)
def test_a_format_that_cannot_be_used_is_refused(template, window, words):
    with pytest.raises(ValueError, match=words):
        ChatFormat(byte_tokenizer(template), history_window=window)


def test_wrong_use_is_an_error():
    with pytest.raises(ValueError, match="'user', 'assistant'"):
        ChatFormat(byte_tokenizer()).continuation(conversation("ask", "said"))
    tokenizer = byte_tokenizer(None)
    tokenizer.eos_token = None
    with pytest.raises(ValueError, match="no chat template and no eos_token"):
        ChatFormat(tokenizer)
