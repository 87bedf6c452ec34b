"""Problems about reading notations."""

from __future__ import annotations

from art_gym.envs.coding.problems.theme import Theme

THEME = Theme("parsing")


@THEME.function(
    level=1,
    public="""
    "name=ann; age=41" -> {"name": "ann", "age": "41"}
    "" -> {}
    """,
    hidden="""
    "a=1" -> {"a": "1"}
    "a=1;b=2;c=3" -> {"a": "1", "b": "2", "c": "3"}
    "  a = 1 ;b= 2  " -> {"a": "1", "b": "2"}
    "a=1;;b=2" -> {"a": "1", "b": "2"}
    "a=1; a=2" -> {"a": "2"}
    "url=x?y=z; k=v" -> {"url": "x?y=z", "k": "v"}
    "empty=; full=yes" -> {"empty": "", "full": "yes"}
    " ; ; " -> {}
    "A=a;a=A" -> {"A": "a", "a": "A"}
    """,
    mutants="""
    partition => rpartition
    if part.strip() =>
    value.strip() => value
    """,
)
def read_settings(text: str) -> dict[str, str]:
    """Read settings "key=value" that are separated by semicolons.

    Blanks around keys and values do not belong to them. What stands after the first "=" is the value. Between
    two semicolons there may be nothing. Of the same key the last one counts.
    """
    parts = [part.partition("=") for part in text.split(";") if part.strip()]
    return {key.strip(): value.strip() for key, _, value in parts}


@THEME.function(
    level=1,
    public="""
    "-42" -> True
    "4.2" -> False
    """,
    hidden="""
    "" -> False
    "0" -> True
    "+7" -> True
    "-" -> False
    "+" -> False
    "--1" -> False
    "007" -> True
    "12a" -> False
    " 12" -> False
    "1 2" -> False
    "1_000" -> False
    "-0" -> True
    "99999999999999999999" -> True
    "+000123" -> True
    """,
    mutants="""
    text[:1] in ("+", "-") => text[:1] == "-"
    digits != "" and => True and
    else text => else text.strip()
    """,
)
def is_whole_number(text: str) -> bool:
    """Whether a text is a whole number: digits 0 to 9, at least one, perhaps after one sign + or -.

    Nothing else may be in it, no blanks either.
    """
    digits = text[1:] if text[:1] in ("+", "-") else text
    return digits != "" and all(digit in "0123456789" for digit in digits)


@THEME.function(
    level=1,
    public="""
    "x = 1  # one" -> "x = 1"
    "# all" -> ""
    """,
    hidden="""
    "" -> ""
    "plain" -> "plain"
    "plain  " -> "plain"
    "  indented # c" -> "  indented"
    "a # b # c" -> "a"
    "##" -> ""
    "a#b" -> "a"
    "   # only" -> ""
    "tail\\t#x" -> "tail"
    """,
    mutants="""
    partition => rpartition
    .rstrip() =>
    .rstrip() => .strip()
    """,
)
def strip_comment(line: str) -> str:
    """Return a line without its comment, which begins at the first "#", and without blanks at its end.

    A tab is a blank too.
    """
    return line.partition("#")[0].rstrip()


@THEME.function(
    level=1,
    public="""
    "1.2.10", "1.2.9" -> 1
    "2.0", "2.0" -> 0
    """,
    hidden="""
    "1", "2" -> -1
    "10", "9" -> 1
    "1.0", "1.0.0" -> 0
    "1.0.1", "1" -> 1
    "1.0", "1.0.0.1" -> -1
    "0.9", "0.10" -> -1
    "3.01", "3.1" -> 0
    "0", "0.0.0" -> 0
    "2.1.3", "2.2.0" -> -1
    """,
    mutants="""
    int(part) => part
    while numbers and numbers[-1] == 0 => while False
    (a > b) - (a < b) => (a > b)
    """,
)
def compare_versions(first: str, second: str) -> int:
    """Return 1 if the first version is later, -1 if the second is, 0 if neither.

    A version is numbers joined by dots, compared from the left as numbers; what is missing at the end is 0.
    """

    def read(version: str) -> list[int]:
        numbers = [int(part) for part in version.split(".")]
        while numbers and numbers[-1] == 0:
            numbers.pop()
        return numbers

    a, b = read(first), read(second)
    return (a > b) - (a < b)


@THEME.function(
    level=2,
    public="""
    "(a[0] + b)" -> None
    "(a[0)]" -> 4
    "((x)" -> 0
    """,
    hidden="""
    "" -> None
    "abc" -> None
    ")" -> 0
    "(" -> 0
    "{[()]}" -> None
    "{[(])}" -> 3
    "()()(" -> 4
    "([)" -> 2
    "a)b(" -> 1
    "[[[]]" -> 0
    "((" -> 0
    "{ok} (not ok]" -> 12
    """,
    mutants="""
    opened[-1][1] != mark => False
    not opened or =>
    opened[0][0] => opened[-1][0]
    """,
)
def bracket_fault(text: str) -> int | None:
    """Return where the brackets (), [] and {} of a text go wrong first, or ``None`` if they are right.

    Wrong is a closing bracket that does not match the bracket opened last; if there is none such, the first
    bracket that is never closed.
    """
    closing = {"(": ")", "[": "]", "{": "}"}
    opened: list[tuple[int, str]] = []
    for position, mark in enumerate(text):
        if mark in closing:
            opened.append((position, closing[mark]))
        elif mark in closing.values():
            if not opened or opened[-1][1] != mark:
                return position
            opened.pop()
    return opened[0][0] if opened else None


@THEME.function(
    level=2,
    public="""
    "1-3,7" -> [1, 2, 3, 7]
    "5,4-6" -> [4, 5, 6]
    """,
    hidden="""
    "" -> []
    "9" -> [9]
    "2-2" -> [2]
    "3-1" -> []
    "10-12,1" -> [1, 10, 11, 12]
    "1-4,2-6" -> [1, 2, 3, 4, 5, 6]
    "7,7,7" -> [7]
    " 1 - 2 , 5 " -> [1, 2, 5]
    "0-1,98-101" -> [0, 1, 98, 99, 100, 101]
    """,
    mutants="""
    int(last or first) + 1 => int(last or first)
    set[int] = set() => list[int] = []
    last or first => first
    """,
)
def read_pages(text: str) -> list[int]:
    """Read which pages to print, such as "1-3,7": single pages and ranges, both ends included.

    Return the pages sorted, each once. A range whose end is before its start is empty, and so is an empty
    text. Blanks mean nothing.
    """
    pages: set[int] = set()
    for part in text.replace(" ", "").split(","):
        first, _, last = part.partition("-")
        if first:
            pages = pages | set(range(int(first), int(last or first) + 1))
    return sorted(pages)


@THEME.function(
    level=2,
    public="""
    "a,'b,c',d" -> ["a", "b,c", "d"]
    "'say ''hi'' ',x" -> ["say 'hi' ", "x"]
    """,
    hidden="""
    "" -> [""]
    "a" -> ["a"]
    "," -> ["", ""]
    "a,,b," -> ["a", "", "b", ""]
    "''" -> [""]
    "'',''" -> ["", ""]
    "' a ', b " -> [" a ", " b "]
    "''''" -> ["'"]
    "'a''','b'" -> ["a'", 'b']
    "x,'a''b'" -> ["x", "a'b"]
    "'x,''y'',z'" -> ["x,'y',z"]
    """,
    mutants="""
    quoted = not quoted => quoted = True
    and not quoted =>
    text.startswith("''", position) => False
    """,
)
def read_fields(text: str) -> list[str]:
    """Split a line into its fields, which are separated by commas.

    A field that begins with a quote mark ' ends with another one. Between them a comma is an ordinary
    character, and two quote marks stand for one. The marks around the field do not belong to it. Lines are
    always well formed; blanks are ordinary characters.
    """
    fields, quoted, position = [""], False, 0
    while position < len(text):
        mark = text[position]
        if quoted and text.startswith("''", position):
            fields[-1] += mark
            position += 1
        elif mark == "'":
            quoted = not quoted
        elif mark == "," and not quoted:
            fields.append("")
        else:
            fields[-1] += mark
        position += 1
    return fields


@THEME.function(
    level=2,
    public="""
    "parseHTTPReply" -> "parse_http_reply"
    "userName" -> "user_name"
    """,
    hidden="""
    "" -> ""
    "x" -> "x"
    "X" -> "x"
    "plain" -> "plain"
    "Plain" -> "plain"
    "ABC" -> "abc"
    "aB" -> "a_b"
    "HTTPServer" -> "http_server"
    "getURL" -> "get_url"
    "anXY" -> "an_xy"
    "oneTwoThree" -> "one_two_three"
    "XAbC" -> "x_ab_c"
    "IBMCloudID" -> "ibm_cloud_id"
    """,
    mutants="""
    before.islower() or => before.islower() and
    and before.isupper()) => )
    or (after.islower() and before.isupper()) =>
    """,
)
def snake_case(name: str) -> str:
    """Write a name such as ``parseHTTPReply`` in lower case with "_" between its words.

    A word begins at a capital that follows a small letter, and at the last capital of several if a small
    letter follows it. Names consist of letters from a to z and A to Z.
    """
    written = ""
    for position, letter in enumerate(name):
        before, after = name[position - 1 : position], name[position + 1 : position + 2]
        if letter.isupper() and (before.islower() or (after.islower() and before.isupper())):
            written += "_"
        written += letter.lower()
    return written


@THEME.function(
    level=2,
    public="""
    "Dear {name}!", {"name": "Ann"} -> "Dear Ann!"
    "{{x}} is {x}", {"x": "1"} -> "{x} is 1"
    """,
    hidden="""
    "", {} -> ""
    "plain", {"plain": "no"} -> "plain"
    "{a}{b}", {"a": "1", "b": "2"} -> "12"
    "{a}", {"a": "{b}", "b": "2"} -> "{b}"
    "{gone}!", {} -> "!"
    "{{}}", {} -> "{}"
    "{{{a}}}", {"a": "z"} -> "{z}"
    "}}{{", {} -> "}{"
    "{a} {A}", {"a": "low"} -> "low "
    """,
    mutants="""
    values.get(name, "") => values.get(name, name)
    ("{{", "}}") => ("{{",)
    end + 1 => end
    values.get(name, "") => values.get(name.lower(), "")
    """,
)
def fill_in(text: str, values: dict[str, str]) -> str:
    """Replace each ``{name}`` in a text by its value, or by nothing if it has none.

    ``{{`` stands for "{" and ``}}`` for "}". What is filled in is not looked at again. The texts are always
    well formed: read from the left, every other brace belongs to a ``{name}``.
    """
    filled, position = "", 0
    while position < len(text):
        if text[position : position + 2] in ("{{", "}}"):
            filled += text[position]
            position += 2
        elif text[position] == "{":
            end = text.index("}", position)
            name = text[position + 1 : end]
            filled += values.get(name, "")
            position = end + 1
        else:
            filled += text[position]
            position += 1
    return filled


@THEME.function(
    level=3,
    public="""
    "2*(3+4)-5" -> 9
    "10-2-3" -> 5
    """,
    hidden="""
    "7" -> 7
    "1+2*3" -> 7
    "(1+2)*3" -> 9
    "2*3*4-1" -> 23
    "10-(2-3)" -> 11
    "((((5))))" -> 5
    "1-1*1-1" -> -1
    "12*12+100-(50-25)*2" -> 194
    " 4 * ( 2 + 2 ) " -> 16
    "0*99+8" -> 8
    "3*(2+(1-4)*2)" -> -12
    """,
    mutants="""
    value = value - product() => value = product() - value
    value *= atom() => value += atom()
    value = value - product() => value = value - total()
    """,
)
def calculate(text: str) -> int:
    """Calculate a sum, difference or product of whole numbers, with brackets.

    Products come before sums and differences; otherwise it goes from left to right. Blanks mean nothing. No
    number has a sign. Do it without ``eval``.
    """
    import re

    marks = [*re.findall(r"\d+|[-+*()]", text), "end"]

    def atom() -> int:
        mark = marks.pop(0)
        if mark != "(":
            return int(mark)
        value = total()
        marks.pop(0)
        return value

    def product() -> int:
        value = atom()
        while marks[0] == "*":
            marks.pop(0)
            value *= atom()
        return value

    def total() -> int:
        value = product()
        while marks[0] in "+-":
            if marks.pop(0) == "+":
                value += product()
            else:
                value = value - product()
        return value

    return total()


@THEME.function(
    level=3,
    public="""
    "3[ab]c" -> "abababc"
    "2[a2[b]]" -> "abbabb"
    """,
    hidden="""
    "" -> ""
    "xyz" -> "xyz"
    "0[gone]here" -> "here"
    "1[x]" -> "x"
    "12[z]" -> "zzzzzzzzzzzz"
    "2[a]3[b]" -> "aabbb"
    "2[3[4[q]]]" -> "qqqqqqqqqqqqqqqqqqqqqqqq"
    "a2[]b" -> "ab"
    "2[x2[y]z]w" -> "xyyzxyyzw"
    "10[ab]" -> "abababababababababab"
    """,
    mutants="""
    10 * times + int(mark) => int(mark)
    before + inner * count => inner * count
    times = 0 => pass
    """,
)
def unpack(text: str) -> str:
    """Unpack a text in which ``3[ab]`` stands for "ab" three times; brackets may be nested.

    A number before "[" may have several digits. Digits and brackets occur in no other way.
    """
    opened: list[tuple[str, int]] = []
    inner, times = "", 0
    for mark in text:
        if mark.isdigit():
            times = 10 * times + int(mark)
        elif mark == "[":
            opened.append((inner, times))
            inner = ""
            times = 0
        elif mark == "]":
            before, count = opened.pop()
            inner = before + inner * count
        else:
            inner += mark
    return inner


@THEME.function(
    level=3,
    public="""
    "[1,[2,3],[]]" -> [1, [2, 3], []]
    "[]" -> []
    """,
    hidden="""
    "[7]" -> [7]
    "[-7,0]" -> [-7, 0]
    "[[]]" -> [[]]
    "[[[[1]]]]" -> [[[[1]]]]
    "[12,345,[6,-78],9]" -> [12, 345, [6, -78], 9]
    "[ 1 , [ 2 ] ]" -> [1, [2]]
    "[[],[],[[]]]" -> [[], [], [[]]]
    "[[1,2],3,[4,[5,[6]]],7]" -> [[1, 2], 3, [4, [5, [6]]], 7]
    "[100]" -> [100]
    """,
    mutants="""
    -?\\d+ => \\d+
    \\d+ => \\d
    stack[-1].append(int(mark)) => stack[0].append(int(mark))
    stack[-1].append(done) => stack[-1].extend(done)
    """,
)
def read_nested(text: str) -> list[object]:
    """Read nested lists of whole numbers, such as "[1,[2,-3]]".

    Blanks mean nothing. Do it without ``eval``.
    """
    import re

    stack: list[list[object]] = [[]]
    for mark in re.findall(r"[\[\]]|-?\d+", text):
        if mark == "[":
            stack.append([])
        elif mark == "]":
            done = stack.pop()
            stack[-1].append(done)
        else:
            stack[-1].append(int(mark))
    result = stack[0][0]
    return result if isinstance(result, list) else []


@THEME.function(
    level=3,
    public="""
    "a and not b", {"a": True, "b": False} -> True
    "a or b and c", {"a": True, "b": True, "c": False} -> True
    """,
    hidden="""
    "x", {"x": False} -> False
    "not x", {"x": False} -> True
    "not not x", {"x": True} -> True
    "(a or b) and c", {"a": True, "b": True, "c": False} -> False
    "a and b or c", {"a": False, "b": False, "c": True} -> True
    "not a and b", {"a": True, "b": False} -> False
    "not (a and b)", {"a": True, "b": False} -> True
    "not a or b", {"a": False, "b": True} -> True
    "not a or b", {"a": True, "b": True} -> True
    "a and (b or (c and not d))", {"a": True, "b": False, "c": True, "d": False} -> True
    "(a)", {"a": True} -> True
    "a or b or c and d", {"a": False, "b": False, "c": True, "d": False} -> False
    """,
    mutants="""
    return not factor() => return not either()
    term() or value => term() and value
    factor() and value => factor() or value
    value = either() => value = factor()
    """,
)
def holds(condition: str, facts: dict[str, bool]) -> bool:
    """Whether a condition holds, given which names are true.

    A condition is made of names (small letters), "not", "and", "or" and brackets. "not" binds most strongly,
    then "and", then "or". Every name is among the facts. Do it without ``eval``.
    """
    import re

    words = [*re.findall(r"[a-z]+|[()]", condition), "end"]

    def factor() -> bool:
        word = words.pop(0)
        if word == "not":
            return not factor()
        if word != "(":
            return facts[word]
        value = either()
        words.pop(0)
        return value

    def term() -> bool:
        value = factor()
        while words[0] == "and":
            words.pop(0)
            value = factor() and value
        return value

    def either() -> bool:
        value = term()
        while words[0] == "or":
            words.pop(0)
            value = term() or value
        return value

    return either()
