"""Parse a model's whole reply into one typed tool call, or into an error message that says what is wrong.

Before reading, ``<think>…</think>`` and special tokens at both ends are dropped. Then the families of formats
are tried in this order, and the first that has a call decides; what looks like a call in an earlier family
but cannot be read is an error and does not fall through to a later one:

1. A bare word, if it is the whole reply: ``left``, ``move left``, ``7``, ``submit``. If the only tool has one
   argument, a required text, any single word is a call.
2. A model family's own markup: Hermes and Qwen ``<tool_call>``, ``<function=…>`` (Qwen3-Coder, Llama),
   Llama's ``<|python_tag|>``, the section tokens of Kimi K2 and DeepSeek, Mistral's ``[TOOL_CALLS]``.
3. A fenced block, if a tool takes code; unless a call in text or JSON stands before it, or is all that
   the block holds. The first block counts that follows a line naming such a tool, else the first block.
4. JSON and calls in text, ``search("budget", sender="ann")``, whichever stands first.
5. XML tags named after a tool: ``<move>left</move>``.

Of several calls in one family the first counts; ``Call.extra_calls`` is the number of the others.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from art_gym.parsing.binding import Call, ParseError, ToolIndex, bind, index_of, invalid
from art_gym.parsing.formats import read_json_call, read_markup
from art_gym.parsing.text_calls import ANY_CALL, ErrorKind, Problem, RawCall, read_tag_call, read_text_call
from art_gym.tools import Tool

__all__ = ["Call", "ErrorKind", "ParseError", "parse"]


def parse(reply: str, tools: Mapping[str, Tool]) -> Call | ParseError:
    """Read the one tool call in a model's reply.

    Never raises, whatever the reply is, and takes time linear in its length.

    Args:
        reply: The whole reply.
        tools: The tools at hand, by name.
    """
    index = index_of(tools)
    meant = index.bare_words.get(reply)
    if meant is not None:
        return _call(meant)
    text, thinking = _without_thinking(reply) if "think" in reply else (reply, "")
    text = _without_special_tokens(text)
    call = _bare_word(text, index) if len(text) <= _LONGEST_WORD else None
    if call is not None:
        return call
    if not text:
        return _empty(thinking, index)
    found = _find(text, index)
    if found is None:
        return _no_call(text, thinking, index)
    if isinstance(found, Problem):
        tool = index.tools.get(found.tool)
        return invalid(found.kind, found.message, tool.example() if tool else index.example)
    return bind(found, index)


# --- dropping what is not the action --------------------------------------------------------------------

_THINK = re.compile(r"<(/?)think(?:ing)?>")


def _without_thinking(reply: str) -> tuple[str, str]:
    """Split a reply into the answer and the thinking.

    A chat template may have opened the block already: a closing tag alone makes all before it thought.
    """
    answer: list[str] = []
    thought: list[str] = []
    at, thinking = 0, False
    for mark in _THINK.finditer(reply):
        piece = reply[at : mark.start()]
        at = mark.end()
        if mark.group(1) and not thinking:
            thought += answer
            answer = []
        (thought if thinking or mark.group(1) else answer).append(piece)
        thinking = not mark.group(1)
    (thought if thinking else answer).append(reply[at:])
    return "".join(answer), "".join(thought)


_AT_END = frozenset(
    "<|im_end|> <|eot_id|> <|eom_id|> <|end_of_text|> <|endoftext|> <|end|> <|return|> <|call|> </s> <eos> "
    "<end_of_turn> <pad> <|pad|> <｜end▁of▁sentence｜> <|finetune_right_pad_id|> [EOS] [PAD]".split()
)
_AT_START = re.compile(
    r"(?:\s*+(?:<s>|<bos>|<\|begin_of_text\|>|<｜begin▁of▁sentence｜>|<start_of_turn>model\s"
    r"|<\|im_start\|>assistant\s|<\|start_header_id\|>assistant<\|end_header_id\|>))++"
)


def _without_special_tokens(text: str) -> str:
    """Drop white space and the tokens that frame a turn from both ends."""
    text = text.strip()
    end = len(text)
    while end and text[end - 1] in ">]":
        begin = max(text.rfind("<", 0, end), text.rfind("[", max(0, end - 6), end))
        if begin < 0 or text[begin:end] not in _AT_END:
            break
        end = begin
        while end and text[end - 1].isspace():
            end -= 1
    begin = 0
    if text.startswith("<"):
        frame = _AT_START.match(text)
        begin = frame.end() if frame else 0
    return text[begin:end].strip() if begin or end < len(text) else text


# --- finding the call -----------------------------------------------------------------------------------

_LONGEST_WORD = 64
_AROUND_WORD = " .!*_`\"'\n"
_WORD = re.compile(r"\w+(?:[-'’]\w+)*")
_NUMBER = re.compile(r"(?:([^\W\d]\w*)[ :]+)?([-+]?\d{1,20})")


def _bare_word(text: str, index: ToolIndex) -> Call | None:
    """A call made of nothing but a word or two."""
    said = text.strip(_AROUND_WORD)
    word = said.lower()
    meant = index.bare_words.get(said) or index.bare_words.get(word)
    if meant is not None:
        return _call(meant)
    if index.numbers:
        number = _NUMBER.fullmatch(word)
        tool = index.numbers.get(number.group(1) or "") if number else None
        if number and tool:
            return Call(tool[0], {tool[1]: int(number.group(2))})
    if index.word_tool:
        name, parameter = index.word_tool
        # The tool's name alone is a call without its argument.
        if word != name.lower() and _WORD.fullmatch(said):
            return Call(name, {parameter: said})
    return None


def _call(meant: tuple[str, str, Any]) -> Call:
    """The call that a word stands for."""
    name, parameter, value = meant
    return Call(name, {parameter: value} if parameter else {})


def _find(text: str, index: ToolIndex) -> RawCall | Problem | None:
    """The first call in the text, by the order of the module's docstring."""
    if "<" in text or "[TOOL_CALLS]" in text:
        found = read_markup(text, index.calls)
        if found is not None:
            return found
    in_json = read_json_call(text) if "{" in text else None
    in_text = read_text_call(text, index.calls) if "(" in text else None
    readable = [c for c in (in_json, in_text) if isinstance(c, RawCall) and not c.bare]
    first = min(readable, key=lambda call: call.start) if readable else None
    if index.code and ("```" in text or "~~~" in text):
        in_block = _code_call(text, first, index)
        if in_block is not None:
            return in_block
    if isinstance(in_json, Problem) and (first is None or in_json.start < first.start):
        return in_json
    if first is not None:
        return first
    in_tag = read_tag_call(text, index.tags) if "<" in text else None
    return in_tag if isinstance(in_tag, RawCall) else in_text or in_tag


_FENCE = re.compile(r"^[ \t]*+(`{3,}+|~{3,}+)[ \t]*+([^\n`]*+)$", re.MULTILINE)


@dataclass(slots=True)
class _Block:
    """A fenced block: where it begins and ends, the word after the fence, its text, whether it is closed."""

    start: int
    end: int
    label: str
    body: str
    closed: bool = True


def _blocks(text: str) -> Iterator[_Block]:
    opening: re.Match[str] | None = None
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = fence
        elif fence.group(1).startswith(opening.group(1)) and not fence.group(2).strip():
            body = text[opening.end() + 1 : max(opening.end() + 1, fence.start() - 1)]
            yield _Block(opening.start(), fence.end(), opening.group(2).strip(), body)
            opening = None
    if opening is not None:
        label = opening.group(2).strip()
        yield _Block(opening.start(), len(text), label, text[opening.end() + 1 :], closed=False)


_MOST_BLOCKS = 64


def _code_call(text: str, first: RawCall | None, index: ToolIndex) -> RawCall | Problem | None:
    """A fenced block as the code of a tool, or ``None`` if the call is elsewhere.

    Args:
        text: The reply.
        first: The first readable call in JSON or text.
        index: About the tools.
    """
    blocks = list(islice(_blocks(text), _MOST_BLOCKS))
    if not blocks:
        return None
    names = [_named(text, block, index) for block in blocks]
    which = next((i for i, name in enumerate(names) if name), 0)
    block, name = blocks[which], names[which] or (next(iter(index.code)) if len(index.code) == 1 else "")
    call = RawCall(name, {}, start=block.start, end=block.end, extra=len(blocks) - which - 1)
    if first is not None:
        if _is_all_of(block, first, text):
            return None
        if first.start < block.start:
            if not _lacks_code(first, index):
                return None
            call.name, call.keywords, call.positional = first.name, dict(first.keywords), first.positional
        elif first.start >= block.end:
            call.extra += 1 + first.extra
    if not call.name:
        tools = ", ".join(f"`{tool}`" for tool in index.code)
        message = f"several tools take code ({tools}): write the name of one on the line before the block"
        return Problem(ErrorKind.NO_CALL, message)
    if not block.closed:
        message = "the code block is cut off: close it with ```"
        return Problem(ErrorKind.INCOMPLETE, message, tool=call.name)
    call.keywords[index.code[call.name]] = block.body
    return call


def _is_all_of(block: _Block, call: RawCall, text: str) -> bool:
    """Whether the block holds the call and, but for brackets around it, nothing else."""
    if not (block.start < call.start and call.end <= block.end):
        return False
    before = text[block.start : call.start].strip("`~ \t").removeprefix(block.label)
    return not before.strip("[{ \n\t") and not text[call.end : block.end].strip("]}; `~\n\t")


def _lacks_code(call: RawCall, index: ToolIndex) -> bool:
    """Whether a call before a block, such as ``write("a.py")``, leaves its code to the block."""
    code = index.code.get(call.name)
    full = len(call.positional) == len(index.parameters.get(call.name, ()))
    return code is not None and code not in call.keywords and not full


def _named(text: str, block: _Block, index: ToolIndex) -> str:
    """The tool that the fence's label or the line before the block names, or ``""``."""
    if block.label in index.code:
        return block.label
    before = text[max(0, block.start - 300) : block.start].rstrip()
    tokens = re.findall(r"\w+", before[before.rfind("\n") + 1 :])
    return next((word for word in reversed(tokens) if word in index.code), "")


def _empty(thinking: str, index: ToolIndex) -> ParseError:
    """Return the error for a reply without an answer."""
    if not thinking.strip():
        return invalid(ErrorKind.EMPTY, "the reply is empty; call one tool", index.example)
    call = "the call is inside" if isinstance(_find(thinking, index), RawCall) else "it is all"
    message = f"{call} the think block, which does not count; close it with </think> and then call a tool"
    return invalid(ErrorKind.ONLY_THINKING, message, index.example)


def _no_call(text: str, thinking: str, index: ToolIndex) -> Call | ParseError:
    """Return the error, or a near call, for an answer without a call of a known tool."""
    word = text.strip(_AROUND_WORD)
    if word in index.tools:
        return bind(RawCall(word, {}), index)
    if index.choice_tool and len(word) <= _LONGEST_WORD:
        parameter = index.parameters[index.choice_tool][index.required[index.choice_tool][0]]
        if difflib.get_close_matches(word.lower(), map(str, parameter.choices), 1, 0.6):
            return bind(RawCall(index.choice_tool, {parameter.name: word}), index)
    unknown = read_text_call(text, ANY_CALL) if "(" in text else None
    if isinstance(unknown, RawCall) and not unknown.bare:
        alone = not (text[: unknown.start] + text[unknown.end :]).strip("`*. \n")
        if alone or difflib.get_close_matches(unknown.name[:100], index.tools, 1, 0.6):
            return bind(unknown, index)
    if thinking and isinstance(_find(thinking, index), RawCall):
        message = "the call is inside the think block, which does not count; call after </think>"
        return invalid(ErrorKind.ONLY_THINKING, message, index.example)
    names = ", ".join(f"`{name}`" for name in list(index.tools)[:10])
    message = f"there is no tool call in the reply; call one of {names}"
    return invalid(ErrorKind.NO_CALL, message, index.example)
