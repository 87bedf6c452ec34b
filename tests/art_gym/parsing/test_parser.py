"""Real replies, in every family's format, become the same typed call; everything else becomes words."""

import tomllib
from datetime import date
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from art_gym.parameters import Code, Parameter
from art_gym.parsing.parser import Call, ErrorKind, ParseError, parse
from art_gym.tools import Tool


def tools_of(*tools: Tool) -> dict[str, Tool]:
    return {tool.name: tool for tool in tools}


CODE, PATH = Parameter("code", Code, "The program."), Parameter("path", str, "Its path.")
DIRECTIONS = ("left", "right", "up", "down")
MAIL = tools_of(
    Tool(
        "search",
        "Search the mailbox.",
        (
            Parameter("query", str, "Words."),
            Parameter("sender", str, "Who wrote it.", None, True),
            Parameter("after", date, "Sent after this day.", None, True),
            Parameter("limit", int, "Most results.", 5),
            Parameter("labels", list, "Labels it carries.", None, True, item=str),
        ),
    ),
    Tool("read", "Read a message.", (Parameter("email_id", str, "Its id."),)),
    Tool(
        "sort",
        "Sort the results.",
        (
            Parameter("key", Literal, "By what.", choices=("date", "sender")),
            Parameter("descending", bool, "Whether the last comes first.", True),
        ),
    ),
    Tool("give_up", "Give up.", (), True),
)
SLIDE = tools_of(
    Tool("move", "Slide all tiles.", (Parameter("direction", Literal, "Which way.", choices=DIRECTIONS),))
)
GUESS = tools_of(Tool("guess", "Guess the number.", (Parameter("number", int, "It."),)))
CHESS = tools_of(Tool("put", "Put.", (Parameter("piece", Literal, "It.", choices=("N", "n")),)))
LETTER = Parameter("letter", str, "It.")
SAY = tools_of(Tool("say", "Say a letter.", (LETTER,)))
PROGRAM = tools_of(Tool("run", "Run a program.", (CODE,)), Tool("submit", "Hand in.", (), True))
FILES = tools_of(
    Tool("write", "Write a file.", (PATH, CODE)),
    Tool("execute", "Run a program.", (CODE,)),
    Tool("view", "Show a file.", (PATH,)),
)


SEARCH = {"query": "budget report", "sender": "ann"}
JSON = '{"name": "search", "arguments": {"query": "budget report", "sender": "ann"}}'
LLAMA = '{"name": "search", "parameters": {"query": "budget report", "sender": "ann"}}'
KIMI = (
    "<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>"
    '{"query": "budget report", "sender": "ann"}<|tool_call_end|>'
)
CODER = (
    "<function=search>\n<parameter=query>\nbudget report\n</parameter>\n"
    "<parameter=sender>\nann\n</parameter>\n</function>"
)
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
        f"<tool_calls>{f'<tool_call>{JSON}</tool_call>' * 3}</tool_calls>",
        f"[{JSON}, {LLAMA}, {JSON}]",
        f"{LLAMA}; {LLAMA}; {LLAMA}",
        f'[{TEXT}, read("m1"), give_up()]',
        f'First {TEXT}. Then read("m1") and give_up().',
        f"<|tool_calls_section_begin|>{KIMI * 3}<|tool_calls_section_end|>",
        f"<|tool_call|>[{JSON}, {JSON}, {JSON}]<|/tool_call|>",
        CODER * 3,
        f'{{"tool_calls": [{JSON}, {JSON}, {JSON}]}}',
    ],
)
def test_of_several_calls_the_first_counts_and_the_others_are_counted(reply: str) -> None:
    assert parse(reply, MAIL) == Call("search", SEARCH, extra_calls=2)


@pytest.mark.parametrize("written", CASES["values"])
def test_values_get_their_types(written: str) -> None:
    assert parse(f'search("x", {written})', MAIL) == Call(
        "search", {"query": "x", **CASES["values"][written]}
    )


def test_a_null_for_an_optional_argument_or_for_a_default_and_a_key_twice() -> None:
    assert parse('search("x", after=None)', MAIL) == Call("search", {"query": "x", "after": None})
    call = parse('{"name": "search", "parameters": {"query": "x", "limit": null}}', MAIL)
    assert call == Call("search", {"query": "x"}, notes=("`limit` was left at its default",))
    twice = parse('{"name": "read", "arguments": {"email_id": "a", "email_id": "b"}}', MAIL)
    assert twice == Call("read", {"email_id": "b"}), "the last counts"


@pytest.mark.parametrize(
    ("reply", "tools", "call"),
    [
        *((reply, SLIDE, Call("move", {"direction": "left"})) for reply in CASES["bare_words"]["left"]),
        *((reply, GUESS, Call("guess", {"number": 7})) for reply in CASES["bare_words"]["7"]),
        *((reply, MAIL, Call("give_up", {})) for reply in CASES["bare_words"]["give_up"]),
        *((reply, SAY, Call("say", {"letter": "Paris"})) for reply in CASES["bare_words"]["Paris"]),
        ("co-op's", SAY, Call("say", {"letter": "co-op's"})),
        ('say("two words")', SAY, Call("say", {"letter": "two words"})),
        *((reply, CHESS, Call("put", {"piece": reply[-2]})) for reply in ("put n.", "put N.", "`n`", "`N`")),
    ],
)
def test_a_bare_word_is_a_call_if_only_one_tool_could_be_meant(
    reply: str, tools: dict[str, Tool], call: Call
) -> None:
    assert parse(reply, tools) == call


NO_WORDS = ("say", "Say.", "two words", "say(", "a" * 65, "?", "[a]", "a,b", "\ud800", "{a}")


@pytest.mark.parametrize(
    ("reply", "tools"),
    [
        ("Paris", tools_of(Tool("say", "Say.", (LETTER,)), Tool("stop", "Stop.", ()))),
        ("Paris", tools_of(Tool("say", "Say.", (LETTER, Parameter("loud", bool, "How.", False))))),
        ("Paris", tools_of(Tool("say", "Say.", (Parameter("letter", str, "It.", "a"),)))),
        ("Paris", tools_of(Tool("run", "Run.", (CODE,)))),
        *((reply, SAY) for reply in NO_WORDS),
    ],
)
def test_what_is_no_single_word_or_not_all_that_the_tools_take_is_no_call(
    reply: str, tools: dict[str, Tool]
) -> None:
    assert isinstance(parse(reply, tools), ParseError)


def test_a_bare_word_is_no_call_if_two_tools_could_be_meant() -> None:
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


def test_nesting_at_the_limit_of_python_is_answered() -> None:
    for depth in range(900, 1010, 2):
        reply = '{"name": "read", "arguments": {"email_id": ' + "[" * depth + "]" * depth + "}}"
        found = parse(reply, MAIL)
        assert isinstance(found, ParseError)
        assert found.kind in ("wrong_type", "broken_json")


@pytest.mark.parametrize(
    ("reply", "tools", "kind", "words"),
    [
        ("lefft", SLIDE, "wrong_type", "did you mean `left`?"),
        ("hello", SLIDE, "no_call", ""),
        ("```python\nprint(1)\n", PROGRAM, "incomplete", "code block is cut off"),
        ("left", {}, "no_call", ""),
        ('search("x")', {}, "unknown_tool", ""),
    ],
)
def test_a_fault_with_few_tools(reply: str, tools: dict[str, Tool], kind: str, words: str) -> None:
    found = parse(reply, tools)
    assert isinstance(found, ParseError)
    assert (found.kind, words in found.message) == (kind, True)


def test_neither_tools_under_the_same_names_nor_arguments_are_shared() -> None:
    changed = dict(SLIDE)
    assert isinstance(parse("read('m')", changed), ParseError)
    changed["read"] = MAIL["read"]
    assert parse("read('m')", changed) == Call("read", {"email_id": "m"})
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


@settings(max_examples=400)
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
def test_a_megabyte_of_anything_takes_linear_time(piece: str) -> None:
    reply = piece * (1_000_000 // len(piece))
    for tools in (MAIL, PROGRAM):
        found = parse(reply, tools)  # seconds; in quadratic time it would be hours
        assert isinstance(found, Call) or len(found.message) < 1000
