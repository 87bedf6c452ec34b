"""Real replies, in every family's format, become the same typed call; everything else becomes words."""

from __future__ import annotations

import time
from datetime import date
from typing import Literal

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from art_gym.parameters import Code
from art_gym.parser import Call, ErrorKind, Invalid, parse
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
ESCAPED = r"{\"query\": \"budget report\", \"sender\": \"ann\"}"
CODER = (
    "<function=search>\n<parameter=query>\nbudget report\n</parameter>\n"
    "<parameter=sender>\nann\n</parameter>\n</function>"
)
KIMI = "<|tool_call_begin|>functions.search:0<|tool_call_argument_begin|>" + ARGUMENTS + "<|tool_call_end|>"
GLM = (
    "<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>budget report</arg_value>\n"
    "<arg_key>sender</arg_key>\n<arg_value>ann</arg_value>\n</tool_call>"
)
TEXT = 'search("budget report", sender="ann")'

SAME_CALL = {
    "hermes": f"<tool_call>\n{JSON}\n</tool_call>",
    "hermes on one line": f"<tool_call>{JSON}</tool_call>",
    "hermes after prose": f"Let me look for it.\n\n<tool_call>\n{JSON}\n</tool_call>",
    "hermes, tag not closed": f"<tool_call>\n{JSON}",
    "hermes, closing tag cut off": f"<tool_call>\n{JSON}\n</tool_c",
    "hermes, end token": f"<tool_call>\n{JSON}\n</tool_call><|im_end|>",
    "hermes, arguments in a string": (
        f'<tool_call>{{"name": "search", "arguments": "{ESCAPED}"}}</tool_call>'
    ),
    "hermes, keys the other way round": (
        f'<tool_call>{{"arguments": {ARGUMENTS}, "name": "search"}}</tool_call>'
    ),
    "hermes in a fence": f"<tool_call>\n```json\n{JSON}\n```\n</tool_call>",
    "hermes, one brace too many": f"<tool_call>\n{JSON}}}\n</tool_call>",
    "hermes around text": f"<tool_call>\n{TEXT}\n</tool_call>",
    "hermes, tags nested": f"<tool_calls>\n<tool_call>\n{JSON}\n</tool_call>\n</tool_calls>",
    "function_call tag": f"<function_call>{JSON}</function_call>",
    "qwen3 thinking": f"<think>\nThe budget. Ann wrote it.\n</think>\n\n<tool_call>\n{JSON}\n</tool_call>",
    "qwen3, empty think": f"<think>\n\n</think>\n\n<tool_call>\n{JSON}\n</tool_call>",
    "think opened by the template": f'I could read("m1").\n</think>\n<tool_call>\n{JSON}\n</tool_call>',
    "thinking tag": f"<thinking>Hm.</thinking>{TEXT}",
    "qwen3-coder": f"<tool_call>\n{CODER}\n</tool_call>",
    "qwen3-coder, no outer tag": CODER,
    "qwen3-coder, parameter not closed": CODER.replace("</parameter>\n<", "<"),
    "qwen3-coder after prose": f"I'll search.\n{CODER}",
    "anthropic-like": (
        '<function_calls>\n<invoke name="search">\n<parameter name="query">budget report</parameter>\n'
        '<parameter name="sender">ann</parameter>\n</invoke>\n</function_calls>'
    ),
    "llama 3.1": LLAMA,
    "llama 3.1 with tokens": f"<|python_tag|>{LLAMA}<|eom_id|>",
    "llama 3.1, end of turn": f"{LLAMA}<|eot_id|>",
    "llama 3.1, header": f"<|start_header_id|>assistant<|end_header_id|>\n\n{LLAMA}<|eot_id|>",
    "llama 3.1, with type": LLAMA.replace("{", '{"type": "function", ', 1),
    "llama 3.1, custom tags": f"<function=search>{ARGUMENTS}</function>",
    "llama 3.1, built-in style": '<|python_tag|>search.call(query="budget report", sender="ann")<|eom_id|>',
    "llama 3.1 in prose": f"Here is the call: {LLAMA}. Thanks!",
    "llama 3.2 pythonic": '[search(query="budget report", sender="ann")]',
    "llama 3.2 pythonic with tokens": '<|python_tag|>[search(query="budget report", sender="ann")]<|eot_id|>',
    "llama, single quotes": "[search(query='budget report', sender='ann')]",
    "kimi k2": f"<|tool_calls_section_begin|>{KIMI}<|tool_calls_section_end|>",
    "kimi k2 after prose": (
        f"I'll look.<|tool_calls_section_begin|>{KIMI}<|tool_calls_section_end|><|im_end|>"
    ),
    "kimi k2, no section": KIMI,
    "kimi k2, section not closed": f"<|tool_calls_section_begin|>{KIMI}",
    "deepseek v3": (
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>search\n```json\n"
        f"{ARGUMENTS}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"
    ),
    "deepseek v3.1": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>search<｜tool▁sep｜>{ARGUMENTS}"
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
    "mistral": f"[TOOL_CALLS] [{JSON}]</s>",
    "mistral, newer": f"[TOOL_CALLS]search[ARGS]{ARGUMENTS}</s>",
    "phi": f"<|tool_call|>[{JSON}]<|/tool_call|>",
    "glm": GLM,
    "openai message": (
        '{"role": "assistant", "content": null, "tool_calls": [{"id": "c1", "type": "function", "function": '
        f'{{"name": "search", "arguments": "{ESCAPED}"}}}}]}}'
    ),
    "openai tool_calls": (f'{{"tool_calls": [{{"type": "function", "function": {JSON}}}]}}'),
    "openai call": f'{{"type": "function", "function": {JSON}}}',
    "openai function_call": f'{{"role": "assistant", "function_call": {JSON}}}',
    "json list": f"[{JSON}]",
    "json in a fence": f"```json\n{JSON}\n```",
    "json in a bare fence": f"I will search:\n```\n{LLAMA}\n```\nThen read.",
    "json with a thought": '{"thought": "Ann has it", ' + JSON[1:],
    "json, spaced as tokens": (
        '{ "name" : "search" , "arguments" : { "query" : "budget report" , "sender" : "ann" } }'
    ),
    "text": TEXT,
    "text in backticks": f"I would call `{TEXT}` now.",
    "text in a fence": f"```\n{TEXT}\n```",
    "text in a tool_code fence": f"```tool_code\n{TEXT}\n```",
    "text on its own line": f"Ann wrote about it.\n{TEXT}\nThat should find it.",
    "text in prose": f"Now {TEXT}, then we shall see.",
    "text after a mention": f"I will use search (the tool), not read(email_id): {TEXT}",
    "text, keywords": "search(query='budget report', sender='ann')",
    "text, positional": 'search("budget report", "ann")',
    "text, colon": 'search(query: "budget report", sender: "ann")',
    "text, object": 'search({"query": "budget report", "sender": "ann"})',
    "text, spaced as tokens": 'search ( " budget report " , sender = " ann " )',
    "text, trailing comma": 'search(\n    "budget report",\n    sender="ann",\n)',
    "text, triple quotes": 'search("""budget report""", sender="""ann""")',
    "text, curly quotes": "search(“budget report”, sender=“ann”)",
    "text, namespace": f"functions.{TEXT}",
    "text, none": 'search("budget report", sender="ann", limit=None)',
    "text, end token": f"{TEXT}<|im_end|>\n",
    "text, two end tokens": f"{TEXT}</s><|endoftext|>",
    "text, start token": f"<|im_start|>assistant\n{TEXT}",
    "xml elements": "<search><query>budget report</query><sender>ann</sender></search>",
    "xml elements on lines": "<search>\n<query> budget report </query>\n<sender> ann </sender>\n</search>",
}


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
        *(
            "left",
            "Left.",
            " LEFT\n",
            "**left**",
            "`left`",
            '"left"',
            "move left",
            "move: left",
            "Move Left!",
        ),
        *("left<|im_end|>", "<think>up?</think>left", "<move>left</move>", "I go <move> left </move> now"),
        *("move(left)", 'move("LEFT")', "move ( left )", "move(direction=left)"),
    ],
)
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
    assert isinstance(found, Invalid)
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
    assert isinstance(unnamed, Invalid)
    assert "several tools take code (`write`, `execute`)" in unnamed.message.lower()


ERRORS = {
    "nothing": ("", "empty", "reply is empty"),
    "white space and tokens": (" \n<|im_end|></s>", "empty", "reply is empty"),
    "chat": ("I am not sure.", "no_call", "no tool call in the reply; call one of `search`, `read`"),
    "prose about a tool": ("I will use search (the tool) now", "no_call", "no tool call"),
    "a record": ('{"name": "Bob", "age": 3}', "no_call", "no tool call"),
    "thinking only": ("<think>Hm.</think>", "only_thinking", "it is all the think block"),
    "call in thought": (f"<think>{TEXT}</think>", "only_thinking", "the call stands inside the think block"),
    "thought not closed": (f"<think>\nSo: {TEXT}", "only_thinking", "close it with </think>"),
    "call in thought, chat after": (
        f"<think>{TEXT}</think>Done.",
        "only_thinking",
        "stands inside the think block",
    ),
    "unknown in text": ('serach("x")', "unknown_tool", "no tool `serach`; did you mean `search`?"),
    "unknown in prose": ('Now serach("x") it is', "unknown_tool", "did you mean `search`?"),
    "unknown in json": (
        '{"name": "fetch", "arguments": {}}',
        "unknown_tool",
        "no tool `fetch`; known: `search`",
    ),
    "unknown in hermes": (
        f"<tool_call>{JSON.replace('search', 'Search')}</tool_call>",
        "unknown_tool",
        "`search`?",
    ),
    "unknown in tags": (
        "<function=find><parameter=x>1</parameter></function>",
        "unknown_tool",
        "no tool `find`",
    ),
    "missing": ("search()", "missing_argument", "`search` needs `query`; its usage is search(query: str"),
    "only the name": ("search", "missing_argument", "`search` needs `query`"),
    "missing in json": ('{"name": "read", "arguments": {}}', "missing_argument", "`read` needs `email_id`"),
    "extra": ('read("a", full=True)', "unexpected_argument", "no argument `full`; known: `email_id`"),
    "near miss": (
        'search("a", sendr="b")',
        "unexpected_argument",
        "no argument `sendr`; did you mean `sender`?",
    ),
    "too many": ('read("a", "b")', "unexpected_argument", "takes at most 1 argument, not 2"),
    "none taken": ('give_up("now")', "unexpected_argument", "takes at most 0 arguments"),
    "twice": ('read("a", email_id="b")', "unexpected_argument", "`read` got `email_id` twice"),
    "not a number": ('search("a", limit="few")', "wrong_type", "`limit` must be a whole number, not 'few'"),
    "a fraction": ('search("a", limit=2.5)', "wrong_type", "`limit` must be a whole number, not 2.5"),
    "not a date": ('search("a", after="soon")', "wrong_type", "`after` must be a date"),
    "not a choice": ('sort("dat")', "wrong_type", "cannot be 'dat'; did you mean `date`?"),
    "a long choice": (f'sort("{"x" * 300}")', "wrong_type", "known: `date`, `sender`"),
    "a number in the tag": ("<tool_call>[1]</tool_call>", "broken_json", 'needs a "name"'),
    "a tag without a name": ("<function= >", "broken_call", "must stand a tool's name"),
    "a dict without values": ('search("a", labels={1, 2})', "broken_call", "cannot be read"),
    "not a bool": ('sort("date", descending="perhaps")', "wrong_type", "must be true or false"),
    "not text": ('{"name": "read", "arguments": {"email_id": {"a": 1}}}', "wrong_type", "must be text"),
    "no quotes": ("search(budget)", "wrong_type", 'text of `query` needs quotes: "budget"'),
    "null": ('{"name": "read", "arguments": {"email_id": null}}', "wrong_type", "must be text, not None"),
    "nan": (
        '{"name": "search", "arguments": {"query": "a", "limit": NaN}}',
        "wrong_type",
        "NaN is not a number",
    ),
    "infinity": ('{"name": "search", "arguments": {"limit": -Infinity}}', "wrong_type", "Infinity is not"),
    "too large": (
        '{"name": "search", "arguments": {"limit": 1e999}}',
        "wrong_type",
        "number 1e999 is too large",
    ),
    "huge": (f'search("a", limit={"9" * 5000})', "wrong_type", "a number of 5000 digits is too long"),
    "huge in json": (
        f'{{"name": "search", "arguments": {{"limit": {"9" * 5000}}}}}',
        "wrong_type",
        "5000 digits",
    ),
    "half a character": ('read("\\ud800")', "wrong_type", "holds half a character"),
    "arguments in a list": (
        '{"name": "read", "arguments": ["m1"]}',
        "wrong_type",
        "must be a JSON object, not",
    ),
    "broken json": (
        '<tool_call>{"name": "search", "arguments": {"query": budget}}</tool_call>',
        "broken_json",
        "broken at character 43, near",
    ),
    "single quotes": ("<tool_call>{'name': 'read'}</tool_call>", "broken_json", "double quotes"),
    "single quotes, no tag": ("{'name': 'read', 'arguments': {}}", "broken_json", "double quotes"),
    "a brace missing": (f"<tool_call>{JSON[:-1]}</tool_call>", "broken_json", "a brace is not closed"),
    "a quote missing": (f"<tool_call>{JSON[:-3]}}}}}</tool_call>", "broken_json", "a quote or a brace"),
    "not a call": ('<tool_call>{"query": "x"}</tool_call>', "broken_json", 'needs a "name" and "arguments"'),
    "broken llama": ('{"name": "search", "parameters": {"query" "x"}}', "broken_json", "broken at character"),
    "broken inner json": (
        '{"name": "read", "arguments": "{email_id}"}',
        "broken_json",
        "in the text of the arg",
    ),
    "kimi without json": (KIMI.replace(ARGUMENTS, "budget"), "broken_json", "must be a JSON object"),
    "cut in a string": (f"<tool_call>{JSON[:50]}", "incomplete", "JSON is cut off at the end"),
    "cut after a comma": ('{"name": "search",', "incomplete", "JSON is cut off"),
    "cut in a word": ('{"name": "search", "arguments": {"limit": nul', "incomplete", "JSON is cut off"),
    "cut after the tag": ("I look.\n<tool_call>\n", "incomplete", "ends after `<tool_call>`"),
    "cut in kimi": (KIMI[:60], "incomplete", "ends within the call after `<|tool_call_begin|>`"),
    "cut in a parameter": (CODER[:50], "incomplete", "the value of `query` is cut off"),
    "cut between parameters": (CODER[:68], "incomplete", "close it with `</function>`"),
    "cut in glm": (GLM[:-12], "incomplete", "close it with `</tool_call>`"),
    "cut in a glm value": (GLM[:70], "incomplete", "the value of `query` is cut off"),
    "cut around a call": ('{"type": "function", "function": ' + JSON, "incomplete", "JSON is cut off"),
    "cut after a thought": ('{"thought": "Ann", ' + JSON[1:50], "incomplete", "JSON is cut off"),
    "cut in text": ('search("budget rep', "incomplete", "cut off: close its quotes and brackets"),
    "cut before the bracket": ('search("budget", sender="ann"', "incomplete", "is cut off"),
    "cut in tokens": ('search ( " budget " , ', "incomplete", "is cut off"),
    "cut in triple quotes": ('read("""m1', "incomplete", "is cut off"),
    "cut in xml": ("<read>m1", "incomplete", "`<read>` is not closed: end it with `</read>`"),
    "unquoted words": ("search(budget report)", "broken_call", "character 15 of the call, near `report)`"),
    "two values": ('search("a" "b")', "broken_call", "commas between"),
    "position after name": ('search(query="a", "b")', "broken_call", "cannot be read"),
    "prose in the tag": (
        "<tool_call>look it up</tool_call>",
        "broken_call",
        "stands no call but `look it up",
    ),
    "no parameters": ("<function=read>m1</function>", "broken_call", "no parameter"),
}


@pytest.mark.parametrize(("reply", "kind", "words"), ERRORS.values(), ids=ERRORS)
def test_each_fault_gets_its_own_words_and_a_valid_call(reply: str, kind: str, words: str) -> None:
    found = parse(reply, MAIL)
    assert isinstance(found, Invalid), found
    assert found.kind == kind, found
    assert words.lower() in found.message.lower()
    shown = found.message.rpartition("A valid call: ")[2]
    assert isinstance(parse(shown, MAIL), Call)


def test_the_example_is_of_the_tool_that_was_meant() -> None:
    cut = '{"name": "read", "arguments": {"email_id": "'
    in_text = ('read("m1', "read(m 1)", "read(1, 2)", "read()", 'read("a", b=1)')
    for reply in (cut, f"<tool_call>{cut}", *in_text, "<read>m1"):
        found = parse(reply, MAIL)
        assert isinstance(found, Invalid)
        assert found.message.endswith('A valid call: read("text")'), found


def test_nesting_at_the_edge_of_what_python_bears_is_answered() -> None:
    for depth in range(900, 1010, 2):
        reply = '{"name": "read", "arguments": {"email_id": ' + "[" * depth + "]" * depth + "}}"
        found = parse(reply, MAIL)
        assert isinstance(found, Invalid)
        assert found.kind in ("wrong_type", "broken_json")


def test_a_near_miss_of_a_bare_word_is_named() -> None:
    found = parse("lefft", SLIDE)
    assert isinstance(found, Invalid)
    assert (found.kind, "did you mean `left`?" in found.message) == ("wrong_type", True)
    assert parse("hello", SLIDE).kind == "no_call"  # type: ignore[union-attr]


def test_a_code_block_that_is_cut_off_is_incomplete() -> None:
    found = parse("```python\nprint(1)\n", PROGRAM)
    assert isinstance(found, Invalid)
    assert (found.kind, "code block is cut off" in found.message) == ("incomplete", True)


def test_a_reply_to_no_tools_is_answered() -> None:
    assert isinstance(parse("left", {}), Invalid)
    assert isinstance(parse('search("x")', {}), Invalid)


def test_other_tools_under_the_same_names_are_not_confused() -> None:
    assert parse("left", dict(SLIDE)) == Call("move", {"direction": "left"})
    changed = dict(SLIDE)
    assert isinstance(parse("read('m')", changed), Invalid)
    changed["read"] = MAIL["read"]
    assert parse("read('m')", changed) == Call("read", {"email_id": "m"})


def test_calls_do_not_share_their_arguments() -> None:
    first = parse("left", SLIDE)
    assert isinstance(first, Call)
    first.arguments["direction"] = "spoilt"
    assert parse("left", SLIDE) == Call("move", {"direction": "left"})


PIECES = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<function=",
            "<parameter=",
            "</parameter>",
            "</function>",
            ">",
            "<",
        ),
        *(
            "<think>",
            "</think>",
            "<|python_tag|>",
            "[TOOL_CALLS]",
            "<|tool_call_begin|>",
            "<arg_key>",
            "</s>",
        ),
        *(
            "<|tool_call_argument_begin|>",
            "<｜tool▁call▁begin｜>",
            "<｜tool▁sep｜>",
            "</arg_key>",
            "<arg_value>",
        ),
        *(
            "search",
            "read",
            "move",
            "run",
            "submit",
            "guess",
            "functions.",
            "query",
            "sender",
            "limit",
            "left",
        ),
        *(
            "(",
            ")",
            "[",
            "]",
            "{",
            "}",
            ",",
            ":",
            "=",
            '"',
            "'",
            '"""',
            "\\",
            "\\u",
            "\\ud800",
            "“",
            "”",
            "`",
        ),
        *(
            '{"name":',
            '"search"',
            '"arguments"',
            '"parameters"',
            "{}",
            '{"tool_calls":',
            '"function"',
            "null",
        ),
        *("NaN", "1e999", "-1", "0x", "<move>", "</move>", "<|im_end|>", "\ud800", "\x00", "é", "😀", "~~~"),
        *("\n", " ", "\n```\n"),
    ]
)
REPLIES = st.one_of(
    st.text(st.characters(), max_size=60),
    st.lists(PIECES, max_size=25).map("".join),
    st.lists(st.one_of(PIECES, st.text(max_size=4)), max_size=20).map(" ".join),
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


HOSTILE = [
    *(
        "search(",
        'search("',
        'search("search(", ',
        "search('\"search(', ",
        'search({"a":',
        "search ( ",
        "(",
        "[",
    ),
    *(
        '{"name": ',
        '{"name":[',
        '{"name":"x"},',
        '{"name": "search", "arguments": "',
        "{",
        '"',
        "\\",
        "a",
        " ",
        "f(",
    ),
    *(
        "<tool_call>",
        "<function=search><parameter=query>",
        "<parameter=x>",
        "<|tool_call_begin|>search",
        "<read>",
    ),
    *(
        "<think>",
        "</think>",
        "</s>",
        "```\n",
        "```a\nsubmit()\n",
        "~~~",
        '"""',
        "search('''",
        "\ud800",
        "\n",
        "-1,",
    ),
    *("<tool_call>search\n<arg_key>", "[TOOL_CALLS]", "read(read", "search(limit=1,", "1", "1e"),
]


@pytest.mark.parametrize("piece", HOSTILE)
def test_a_megabyte_of_anything_takes_less_than_a_second(piece: str) -> None:
    reply = piece * (1_000_000 // len(piece))
    for tools in (MAIL, PROGRAM):
        began = time.process_time()
        parse(reply, tools)
        assert time.process_time() - began < 1.0
