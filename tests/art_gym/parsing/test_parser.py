"""Real replies, in every family's format, become the same typed call; everything else becomes words."""

from __future__ import annotations

import time
import tomllib
from datetime import date
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from art_gym.parameters import Code
from art_gym.parsing.parser import Call, ErrorKind, ParseError, parse
from art_gym.tools import collect_tools, tool


class _Mail:
    @tool
    def search(
        self,
        query: str,
        sender: str | None = None,
        after: date | None = None,
        limit: int = 5,
        labels: list[str] | None = None,
    ) -> str:
        """Search the mailbox.

        Args:
            query: Words.
            sender: Who wrote it.
            after: Sent after this day.
            limit: Most results.
            labels: Labels it carries.
        """
        return ""

    @tool
    def read(self, email_id: str) -> str:
        """Read a message.

        Args:
            email_id: Its id.
        """
        return ""

    @tool
    def sort(self, key: Literal["date", "sender"], descending: bool = True) -> str:
        """Sort the results.

        Args:
            key: By what.
            descending: Whether the last comes first.
        """
        return ""

    @tool(ends=True)
    def give_up(self) -> str:
        """Give up."""
        return ""


class _Slide:
    @tool
    def move(self, direction: Literal["left", "right", "up", "down"]) -> str:
        """Slide all tiles.

        Args:
            direction: Which way.
        """
        return ""


class _Guess:
    @tool
    def guess(self, number: int) -> str:
        """Guess the number.

        Args:
            number: It.
        """
        return ""


class _Program:
    @tool
    def run(self, code: Code) -> str:
        """Run a program.

        Args:
            code: The program.
        """
        return ""

    @tool(ends=True)
    def submit(self) -> str:
        """Hand in."""
        return ""


class _Files:
    @tool
    def write(self, path: str, code: Code) -> str:
        """Write a file.

        Args:
            path: Its path.
            code: Its text.
        """
        return ""

    @tool
    def execute(self, code: Code) -> str:
        """Run a program.

        Args:
            code: The program.
        """
        return ""

    @tool
    def view(self, path: str) -> str:
        """Show a file.

        Args:
            path: Its path.
        """
        return ""


MAIL, SLIDE, GUESS, PROGRAM, FILES = map(collect_tools, (_Mail, _Slide, _Guess, _Program, _Files))

SEARCH = {"query": "budget report", "sender": "ann"}
JSON = '{"name": "search", "arguments": {"query": "budget report", "sender": "ann"}}'
LLAMA = '{"name": "search", "parameters": {"query": "budget report", "sender": "ann"}}'
ARGUMENTS = '{"query": "budget report", "sender": "ann"}'
CODER = (
    "<function=search>\n<parameter=query>\nbudget report\n</parameter>\n"
    "<parameter=sender>\nann\n</parameter>\n</function>"
)
KIMI = "<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>" + ARGUMENTS + "<|tool_call_end|>"
TEXT = 'search("budget report", sender="ann")'

CASES = tomllib.loads(Path(__file__).with_name("replies.toml").read_text(encoding="utf-8"))
SAME_CALL: dict[str, str] = CASES["same_call"]


@pytest.mark.parametrize("reply", SAME_CALL.values(), ids=SAME_CALL)
def test_every_family_gives_the_same_call(reply: str) -> None:
    call = parse(reply, MAIL)
    assert isinstance(call, Call), call
    assert (call.name, call.arguments, call.extra_calls) == ("search", SEARCH, 0)


@pytest.mark.parametrize(
    "reply",
    [
        f"<tool_call>\n{JSON}\n</tool_call>\n" * 3,
        f"<tool_calls>\n{'<tool_call>' + JSON + '</tool_call>'}\n{'<tool_call>' + JSON + '</tool_call>'}\n"
        + f"<tool_call>{JSON}</tool_call></tool_calls>",
        f"[{JSON}, {LLAMA}, {JSON}]",
        f"{LLAMA}; {LLAMA}; {LLAMA}",
        f'[{TEXT}, read("m1"), give_up()]',
        f'First {TEXT}. Then read("m1") and give_up().',
        f"<|tool_calls_section_begin|>{KIMI}{KIMI}{KIMI}<|tool_calls_section_end|>",
        f"<|tool_call|>[{JSON}, {JSON}, {JSON}]<|/tool_call|>",
        CODER * 3,
        f'{{"tool_calls": [{JSON}, {JSON}, {JSON}]}}',
    ],
)
def test_of_several_calls_the_first_counts_and_the_others_are_counted(reply: str) -> None:
    assert parse(reply, MAIL) == Call("search", SEARCH, extra_calls=2)


@pytest.mark.parametrize(
    ("written", "typed"),
    [
        ('limit="7"', {"limit": 7}),
        ("limit=7.0", {"limit": 7}),
        ("limit=-2", {"limit": -2}),
        ('after="2024-03-01"', {"after": date(2024, 3, 1)}),
        ('after="2024-03-01T10:30:00Z"', {"after": date(2024, 3, 1)}),
        ("after=2024-03-01", {"after": date(2024, 3, 1)}),
        ("after=None", {"after": None}),
        ("after=null", {"after": None}),
        ('labels=["a", "b, c"]', {"labels": ["a", "b, c"]}),
        ('labels="a"', {"labels": ["a"]}),
        ('labels=\'["a", "b, c"]\'', {"labels": ["a", "b, c"]}),
        ("labels=[work, home]", {"labels": ["work", "home"]}),
        ("labels=[]", {"labels": []}),
        (r'sender="a\nb\t\"c\" \u00e9 \ud83d\ude00 \d"', {"sender": 'a\nb\t"c" é 😀 \\d'}),
        (r"sender='it\'s'", {"sender": "it's"}),
        ('sender="(a, b) = [c]"', {"sender": "(a, b) = [c]"}),
    ],
)
def test_values_get_their_types(written: str, typed: dict[str, object]) -> None:
    assert parse(f'search("x", {written})', MAIL) == Call("search", {"query": "x", **typed})


def test_a_null_for_an_argument_with_a_default_leaves_the_default_and_says_so() -> None:
    call = parse('{"name": "search", "parameters": {"query": "x", "limit": null}}', MAIL)
    assert call == Call("search", {"query": "x"}, notes=("`limit` was left at its default",))


def test_of_duplicate_keys_in_json_the_last_counts() -> None:
    assert parse('{"name": "read", "arguments": {"email_id": "a", "email_id": "b"}}', MAIL) == Call(
        "read", {"email_id": "b"}
    )


@pytest.mark.parametrize(
    "reply",
    [
        "left", "Left.", " LEFT\n", "**left**", "`left`", '"left"', "move left", "move: left", "Move Left!",
        "left<|im_end|>", "<think>up?</think>left", "<move>left</move>", "I go <move> left </move> now",
        "move(left)", 'move("LEFT")', "move ( left )", "move(direction=left)",
    ],
)  # fmt: skip
def test_a_bare_word_is_a_call_where_only_one_tool_could_be_meant(reply: str) -> None:
    assert parse(reply, SLIDE) == Call("move", {"direction": "left"})


@pytest.mark.parametrize(
    "reply", ["7", " 7.", "+7", "guess 7", "guess: 7", "guess(7)", "guess (7)", "<guess>7</guess>", "`7`"]
)
def test_a_bare_number_is_a_call_where_one_tool_takes_one(reply: str) -> None:
    assert parse(reply, GUESS) == Call("guess", {"number": 7})


@pytest.mark.parametrize(
    "reply", ["give_up", "give_up()", "`give_up()`", "<give_up/>", "<give_up></give_up>"]
)
def test_a_tool_without_arguments_needs_no_more_than_its_name(reply: str) -> None:
    assert parse(reply, MAIL) == Call("give_up", {})


def test_a_bare_word_is_no_call_where_two_tools_could_be_meant() -> None:
    both = {**SLIDE, **GUESS, **{"sort": MAIL["sort"]}}
    found = parse("left", both)
    assert isinstance(found, ParseError)
    assert found.kind == ErrorKind.NO_CALL
    assert parse("move left", both) == Call("move", {"direction": "left"})
    assert parse("guess 3", both) == Call("guess", {"number": 3})


PROGRAM_TEXT = 'def f(x):\n    return {"name": x}\n\nprint(f(submit))'


@pytest.mark.parametrize(
    ("reply", "extra"),
    [
        (f"```python\n{PROGRAM_TEXT}\n```", 0),
        (f"I will run this:\n\n```py\n{PROGRAM_TEXT}\n```\nIt prints a dict.", 0),
        (f"run()\n```\n{PROGRAM_TEXT}\n```", 0),
        (f"I'd call `run(code)` with\n~~~\n{PROGRAM_TEXT}\n~~~", 0),
        (f"````\n{PROGRAM_TEXT}\n````<|im_end|>", 0),
        (f"```\n{PROGRAM_TEXT}\n```\nThen submit().", 1),
        (f"```\n{PROGRAM_TEXT}\n```\nOutput:\n```\n5\n```", 1),
        (f"A sketch:\n```\nx = 1\n```\nNow run:\n```\n{PROGRAM_TEXT}\n```", 0),
        (f'run("""{PROGRAM_TEXT}""")', 0),
    ],
)
def test_a_fenced_block_fills_the_argument_that_takes_code(reply: str, extra: int) -> None:
    assert parse(reply, PROGRAM) == Call("run", {"code": PROGRAM_TEXT}, extra_calls=extra)


@pytest.mark.parametrize("reply", ["```\nsubmit()\n```", "```python\nsubmit()\n```", "submit()\n```\nx\n```"])
def test_a_block_that_only_calls_a_tool_and_a_call_before_a_block_are_calls(reply: str) -> None:
    assert parse(reply, PROGRAM) == Call("submit", {})


def test_the_line_before_a_block_chooses_among_tools_that_take_code() -> None:
    assert parse("execute:\n```\nx = 1\n```", FILES) == Call("execute", {"code": "x = 1"})
    assert parse("```execute\nx = 1\n```", FILES) == Call("execute", {"code": "x = 1"})
    assert parse('write("a.py")\n```\nx = 1\n```', FILES) == Call("write", {"path": "a.py", "code": "x = 1"})
    assert parse('view("a.py")\n```\nx = 1\n```', FILES) == Call("view", {"path": "a.py"})
    unnamed = parse("```\nx = 1\n```", FILES)
    assert isinstance(unnamed, ParseError)
    assert "several tools take code (`write`, `execute`)" in unnamed.message.lower()


ERRORS = {
    **{name: (case["reply"], case["kind"], case["message"]) for name, case in CASES["errors"].items()},
    "a long choice": (f'sort("{"x" * 300}")', "wrong_type", "known: `date`, `sender`"),
    "huge": (f'search("a", limit={"9" * 5000})', "wrong_type", "a number of 5000 digits is too long"),
    "huge in json": (
        f'{{"name": "search", "arguments": {{"limit": {"9" * 5000}}}}}', "wrong_type", "5000 digits"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("reply", "kind", "words"), ERRORS.values(), ids=ERRORS)
def test_each_fault_gets_its_own_words_and_a_valid_call(reply: str, kind: str, words: str) -> None:
    found = parse(reply, MAIL)
    assert isinstance(found, ParseError), found
    assert found.kind == kind, found
    assert words.lower() in found.message.lower()
    shown = found.message.rpartition("A valid call: ")[2]
    assert isinstance(parse(shown, MAIL), Call)


def test_the_example_is_of_the_tool_that_was_meant() -> None:
    cut = '{"name": "read", "arguments": {"email_id": "'
    in_text = ('read("m1', "read(m 1)", "read(1, 2)", "read()", 'read("a", b=1)')
    for reply in (cut, f"<tool_call>{cut}", *in_text, "<read>m1"):
        found = parse(reply, MAIL)
        assert isinstance(found, ParseError)
        assert found.message.endswith('A valid call: read("text")'), found


def test_nesting_at_the_edge_of_what_python_bears_is_answered() -> None:
    for depth in range(900, 1010, 2):
        reply = '{"name": "read", "arguments": {"email_id": ' + "[" * depth + "]" * depth + "}}"
        found = parse(reply, MAIL)
        assert isinstance(found, ParseError)
        assert found.kind in ("wrong_type", "broken_json")


def test_a_near_miss_of_a_bare_word_is_named() -> None:
    found = parse("lefft", SLIDE)
    assert isinstance(found, ParseError)
    assert (found.kind, "did you mean `left`?" in found.message) == ("wrong_type", True)
    assert parse("hello", SLIDE).kind == "no_call"  # type: ignore[union-attr]


def test_a_code_block_that_is_cut_off_is_incomplete() -> None:
    found = parse("```python\nprint(1)\n", PROGRAM)
    assert isinstance(found, ParseError)
    assert (found.kind, "code block is cut off" in found.message) == ("incomplete", True)


def test_a_reply_to_no_tools_is_answered() -> None:
    assert isinstance(parse("left", {}), ParseError)
    assert isinstance(parse('search("x")', {}), ParseError)


def test_other_tools_under_the_same_names_are_not_confused() -> None:
    assert parse("left", dict(SLIDE)) == Call("move", {"direction": "left"})
    changed = dict(SLIDE)
    assert isinstance(parse("read('m')", changed), ParseError)
    changed["read"] = MAIL["read"]
    assert parse("read('m')", changed) == Call("read", {"email_id": "m"})


def test_calls_do_not_share_their_arguments() -> None:
    first = parse("left", SLIDE)
    assert isinstance(first, Call)
    first.arguments["direction"] = "spoilt"
    assert parse("left", SLIDE) == Call("move", {"direction": "left"})


PIECES = r"""
    <tool_call> </tool_call> <function= <parameter= </parameter> </function> > < <think> </think>
    <|python_tag|> [TOOL_CALLS] <|tool_call_begin|> <arg_key> </s> <|tool_call_argument_begin|>
    </arg_key> <arg_value> search read move run submit guess functions. query sender limit left ( ) [ ]
    { } , : = " ' \ \u \ud800 ` {"name": "search" "arguments" "parameters" {} {"tool_calls": "function"
    null NaN 1e999 -1 0x <move> </move> <|im_end|> ~~~ <｜tool▁call▁begin｜> <｜tool▁sep｜> “ ” é 😀
""".split()
PIECES += ['"""', "\ud800", "\x00", "\n", " ", "\n```\n"]
REPLIES = st.one_of(
    st.text(st.characters(), max_size=60),
    st.lists(st.sampled_from(PIECES), max_size=25).map("".join),
    st.lists(st.one_of(st.sampled_from(PIECES), st.text(max_size=4)), max_size=20).map(" ".join),
    st.tuples(
        st.sampled_from(list(SAME_CALL.values())), st.integers(0, 200), st.text(st.characters(), max_size=3)
    ).map(lambda parts: parts[0][: parts[1]] + parts[2] + parts[0][parts[1] :]),
    st.tuples(st.sampled_from(list(SAME_CALL.values())), st.integers(0, 200)).map(
        lambda cut: cut[0][: cut[1]]
    ),
)


@settings(max_examples=400, deadline=None)
@given(REPLIES, st.sampled_from([MAIL, SLIDE, GUESS, PROGRAM, FILES]))
@example("search(" + "[" * 10_000, MAIL)
@example('{"name": ' + "[" * 10_000, MAIL)
@example("<tool_call>" + '{"name":' * 10_000, MAIL)
@example('{"name": "read", "arguments": {"email_id": ' + "[" * 900 + "]" * 900 + "}}", MAIL)
def test_whatever_is_said_the_answer_is_a_valid_call_or_words(reply: str, tools: dict[str, object]) -> None:
    found = parse(reply, tools)  # type: ignore[arg-type]
    if isinstance(found, Call):
        parameters = {p.name: p for p in tools[found.name].parameters}  # type: ignore[attr-defined]
        assert found.arguments.keys() <= parameters.keys()
        assert {name for name, p in parameters.items() if p.required} <= found.arguments.keys()
        for name, value in found.arguments.items():
            parameter = parameters[name]
            assert value is None or type(value) is type(parameter.convert(value))
            assert value is None or not parameter.choices or value in parameter.choices
            str(value).encode()
    else:
        assert found.kind in set(ErrorKind)
        assert len(found.message) < 1000
        found.message.encode()


HOSTILE = r"""
    search( search(" search({"a": ( [ {"name":[ {"name":"x"}, { " \ a f( <tool_call> <read> <think> </think>
    </s> <function=search><parameter=query> <parameter=x> <|tool_call_begin|>search ~~~ search(''' -1,
    [TOOL_CALLS] read(read search(limit=1, 1 1e
""".split()
HOSTILE += [
    '"""',
    'search("search(", ',
    "search('\"search(', ",
    "search ( ",
    '{"name": ',
    " ",
    "```\n",
    "\n",
    "\ud800",
]
HOSTILE += ['{"name": "search", "arguments": "', "```a\nsubmit()\n", "<tool_call>search\n<arg_key>"]


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_megabyte_of_anything_takes_less_than_a_second(piece: str) -> None:
    reply = piece * (1_000_000 // len(piece))
    for tools in (MAIL, PROGRAM):
        began = time.process_time()
        parse(reply, tools)
        assert time.process_time() - began < 1.0
