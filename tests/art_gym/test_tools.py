import typing
from datetime import date, datetime
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest

from art_gym.errors import ToolDeclarationError
from art_gym.parameters import Code, Parameter
from art_gym.parsing.parser import Call, parse
from art_gym.random_calls import described_words, random_calls
from art_gym.testing.hostile_replies import _example
from art_gym.tools import Tool, collect_tools, tool


class Desk:
    """Methods as an author writes them."""

    @tool
    def book(
        self,
        room: str,
        seats: int,
        price: float = 1.5,
        quiet: bool = False,
        day: date | None = None,
        size: Literal["small", "large"] = "small",
        guests: list[str] | None = None,
    ) -> str:
        """Book a room.

        The second paragraph is for people, not for the model.

        Args:
            room: Its name.
            seats: How many
                seats.
            price: Price in euros.
            quiet: Whether it is quiet.
            day: The day.
            size: How large.
            guests: Who comes.

        Returns:
            Nothing of interest.
        """
        return room

    @tool(ends=True)
    def run(self, code: Code) -> str:
        """Run code.

        Args:
            code: The program:
                one: in Python.
        """
        return code

    def helper(self) -> None:
        """No tool."""


class Atlas:
    @tool(examples={"city": ["Paris", "Lima"], "day": ["2024-03-01"], "limits": [[1, 2], [3]]})
    def look(self, city: str, day: date, limits: list[int], unit: str = "km") -> str:
        """Look a city up.

        Args:
            city: Its name.
            day: The day.
            limits: Numbers.
            unit: The unit.
        """
        return f"{city} {day} {limits} {unit}"


TOOLS = collect_tools(Desk)
BOOK = {parameter.name: parameter for parameter in TOOLS["book"].parameters}
BOOK["beds"] = Parameter("beds", Literal, "Beds.", choices=(1, 2))
BOOK["meal"] = Parameter("meal", Literal, "Meals.", optional=True, choices=("none", "süß", " to go"))


def test_marked_methods_become_tools_in_order() -> None:
    assert list(TOOLS) == ["book", "run"]
    assert [item.ends for item in TOOLS.values()] == [False, True]
    assert TOOLS["book"].description == "Book a room."
    assert BOOK["seats"].description == "How many seats."
    assert TOOLS["run"].parameters == (Parameter("code", Code, "The program: one: in Python."),)


def test_the_schema_is_openais_and_a_fresh_object() -> None:
    TOOLS["book"].schema()["function"]["parameters"]["properties"]["room"]["type"] = "changed"
    function = TOOLS["book"].schema()["function"]
    assert function["name"] == "book"
    assert function["parameters"]["required"] == ["room", "seats"]
    assert function["parameters"]["properties"] == {
        "room": {"type": "string", "description": "Its name."},
        "seats": {"type": "integer", "description": "How many seats."},
        "price": {"type": "number", "description": "Price in euros.", "default": 1.5},
        "quiet": {"type": "boolean", "description": "Whether it is quiet.", "default": False},
        "day": {"type": "string", "format": "date", "description": "The day."},
        "size": {"type": "string", "description": "How large.", "default": "small"}
        | {"enum": ["small", "large"]},
        "guests": {"type": "array", "items": {"type": "string"}, "description": "Who comes."},
    }


def test_usage_and_example_are_what_a_model_may_write() -> None:
    assert TOOLS["book"].usage() == (
        "book(room: str, seats: int, price: float = 1.5, quiet: bool = False, day: date | None = None, "
        'size: "small" | "large" = "small", guests: list[str] | None = None)'
    )
    assert TOOLS["book"].example() == 'book("text", 1)'
    assert BOOK["meal"].type_name == '"none" | "süß" | " to go" | None'
    for parameter in BOOK.values():
        assert parameter.convert(parameter.example()) == parameter.example()
        assert parameter.convert(_example(parameter.schema())) is not None  # of hostile replies


def test_required_arguments_come_first_where_keyword_only_ones_are_mixed() -> None:
    class Keyed:
        @tool
        def go(self, *, speed: int = 1, to: str) -> str:
            """Go.
            Args:
                speed: How fast.
                to: Where.
            """
            return to

        back = go  # a tool of its own, by the attribute's name

    tools = collect_tools(Keyed)
    assert [one.usage() for one in tools.values()] == [f"{name}(to: str, speed: int = 1)" for name in tools]
    assert (list(tools), tools["go"].description) == (["go", "back"], "Go.")
    assert parse(tools["go"].example(), tools) == parse("go(to='text')", tools)
    assert isinstance(parse(tools["go"].example(), tools), Call)


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("seats", "5", 5),
        ("seats", 5.0, 5),
        ("price", "2.5", 2.5),
        ("price", 2, 2.0),
        ("quiet", "true", True),
        ("day", "2024-03-01T10:00:00", date(2024, 3, 1)),
        ("day", datetime(2024, 3, 1, 9), date(2024, 3, 1)),
        ("day", "null", None),
        ("size", "LARGE", "large"),
        ("guests", "Ann, Bo", ["Ann", "Bo"]),
        ("guests", 12, ["12"]),
        ("room", 12, "12"),
        *(("beds", given, 1) for given in (1, 1.0, "01")),
        *(("meal", given, given) for given in ("none", " to go")),
        ("meal", "null", None),
    ],
)
def test_values_are_converted_to_the_declared_type(name: str, given: Any, expected: Any) -> None:
    converted = BOOK[name].convert(given)
    assert converted == expected
    assert type(converted) is type(expected)


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("seats", "many", "`seats` must be a whole number, not 'many'"),
        *(("seats", given, "a whole number") for given in (2.5, True, "9" * 5000)),
        ("seats", None, "not None"),
        *(("price", given, "a number") for given in ("nan", 10**400)),
        ("quiet", "perhaps", "true or false"),
        *(("day", given, "a date such as 2024-03-01") for given in ("first of May", 20240301)),
        ("size", "lareg", "did you mean `large`"),
        *(("room", given, "must be text") for given in (["a"], {"a": 1})),
        ("guests", [{"a": 1}], "text in a list"),
    ],
)
def test_wrong_values_are_refused_in_words(name: str, given: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        BOOK[name].convert(given)
    assert len(str(caught.value)) < 200


def declared(hint: Any = int, doc: str | None = "Do.\n\nArgs:\n    x: It.") -> Any:
    def method(self: Any, x: Any) -> str:
        return ""

    method.__doc__ = doc
    method.__annotations__ = {} if hint is None else {"x": hint}
    return method


def many(self: Any, *args: int) -> str:
    """Do."""
    return ""


def with_default(default: Any, hint: Any) -> Any:
    method = declared(hint)
    method.__defaults__ = (default,)
    return method


async def waiting(self: Any) -> str:
    """Do."""
    return ""


def without_self() -> str:
    """Do."""
    return ""


@pytest.mark.parametrize(
    ("method", "named"),
    [
        (declared(doc=None), "docstring"),
        (declared(hint=None), "type hint"),
        (declared(doc="Do."), "describe `x`"),
        (many, "ordinary argument"),
        *((one, "ordinary method with `self`") for one in (waiting, without_self, staticmethod(many))),
        (declared("Missing"), "not under `if TYPE_CHECKING`"),
        (with_default("five", int), "default 'five'.*whole number"),
        (with_default("c", Literal["a", "b"]), "default 'c'.*known: `a`, `b`"),
        *((declared(hint), "`x`") for hint in (dict, int | str, Literal["a", 1], list[dict], [int], bytes)),
        (declared(vars(typing)["List"]), "`x` has the type typing.List; supported are"),
    ],
)
def test_wrong_declarations_are_refused(method: Any, named: str) -> None:
    with pytest.raises(ToolDeclarationError, match=named):
        Tool.from_method(method, ends=False)


def test_a_mark_on_a_static_method_or_on_no_method_is_refused() -> None:
    for method in (staticmethod(tool(declared())), tool(staticmethod(declared()))):
        with pytest.raises(ToolDeclarationError, match="ordinary method with `self`"):
            collect_tools(type("Desk", (), {"look": method}))
    with pytest.raises(ToolDeclarationError, match="not 'look'"):
        tool("look")  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("default", "hint", "shown"),
    [(None, int, None), ((), list[int], []), ([date(2024, 3, 1)], list[date], ["2024-03-01"])],
)
def test_a_default_is_json_in_the_schema(default: Any, hint: Any, shown: Any) -> None:
    schema = Tool.from_method(with_default(default, hint), ends=False).schema()
    assert schema["function"]["parameters"]["properties"]["x"].get("default") == shown


def test_declared_examples_are_in_the_schema_the_usage_and_the_random_calls() -> None:
    look = collect_tools(Atlas)["look"]
    properties = look.schema()["function"]["parameters"]["properties"]
    assert [properties[name].get("examples") for name in properties] == [
        *(["Paris", "Lima"], ["2024-03-01"], [[1, 2], [3]]),
        None,
    ]
    assert look.example() == 'look("Paris", "2024-03-01", [1, 2])'
    act = random_calls(SimpleNamespace(tools={"look": look}, system=""), np.random.default_rng(0))
    calls = [parse(act("Somewhere."), {"look": look}) for _ in range(20)]
    assert all(isinstance(call, Call) for call in calls)
    assert {call.arguments["city"] for call in calls if isinstance(call, Call)} == {"Paris", "Lima"}


def test_random_numbers_are_of_the_described_range() -> None:
    shift = Tool("shift", "Shift.", (Parameter("by", float, "Metres, from -2.5 to -1."),))
    act = random_calls(SimpleNamespace(tools={"shift": shift}, system=""), np.random.default_rng(0))
    assert all(-2.5 <= float(act("")[len("shift(") : -1]) <= -1 for _ in range(20))


@pytest.mark.parametrize(
    ("description", "values"),
    [
        ("A day from Monday to Friday.", ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday"]),
        ("Nov to Dec", ["Nov", "Dec"]),
        ("One letter from x to z.", ["x", "y", "z"]),
        ("From m1 to m5.", []),
    ],
)
def test_ranges_of_days_months_and_letters_are_read(description: str, values: list[str]) -> None:
    assert described_words(description) == values


@pytest.mark.parametrize(
    ("examples", "words"),
    [
        ({"sity": ["Paris"]}, "did you mean `city`"),
        ({"day": ["soon"]}, "'soon' cannot be used"),
        ({"city": "Paris"}, "`city` must be a list, not 'Paris'"),
        ({"city": [3]}, "`city` must be str, not 3"),
        ({"limits": [["1"]]}, r"`limits` must be list\[int\], not \['1'\]"),
        (["Paris"], r"by argument, as in \{'city'"),
    ],
)
def test_examples_that_the_tool_does_not_take_are_refused(examples: dict[str, Any], words: str) -> None:
    with pytest.raises(ToolDeclarationError, match=words):
        Tool.from_method(Atlas.look, ends=False, examples=examples)
