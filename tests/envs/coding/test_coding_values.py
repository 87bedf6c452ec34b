import collections
import datetime
import decimal
import enum
import fractions
import json
import math
import re
import tracemalloc
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from art_gym.envs.coding.drivers import codec, drivers
from art_gym.envs.coding.drivers.codec import DEEPEST, EncodingError, decode, encode
from art_gym.envs.coding.values import read_literal, read_tree, same, shorten, show, tree_of, write_literal

hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.complex_numbers(allow_nan=False)
    | st.text(st.characters())
    | st.binary(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=4),
    max_leaves=8,
)
STANDARD = [
    collections.Counter("aab"),
    collections.deque([1, "x"]),
    decimal.Decimal("1.0"),
    datetime.timedelta(1),
]
values = st.recursive(
    hashable | st.just(math.nan) | st.binary().map(bytearray) | st.sampled_from(STANDARD),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.tuples(inner)
        | st.sets(hashable, max_size=5)
        | st.dictionaries(hashable, inner, max_size=5)
    ),
    max_leaves=20,
)


def equal(expected: object, got: object, **how: Any) -> bool:
    # What comes from a child comes as text.
    return same(tree_of(expected), read_tree(json.loads(json.dumps(encode(got)))), **how)


@given(values)
def test_a_value_comes_back_as_it_was_sent_and_from_its_literal(value: object) -> None:
    back = decode(json.loads(json.dumps(encode(value))))
    assert type(back) is type(value)
    assert same(tree_of(value), tree_of(back))
    assert same(tree_of(value), tree_of(read_literal(write_literal(value))))


@given(values, values)
def test_equality_is_symmetric_and_says_what_python_says_of_equal_types(a: object, b: object) -> None:
    assert equal(a, b) == equal(b, a)
    if equal(a, b):
        assert type(a) is type(b)
        assert equal(a, b, equality="python")


DISTINCT: list[Any] = [
    *(1, 1.0, True, 1 + 0j, "1", b"1", bytearray(b"1"), None, 0, 0.5, False, "", math.nan, math.inf, 10**700),
    *([], (), set(), frozenset(), {}, [1], (1,), {1}, frozenset({1}), {1: 1}, {True: 1}, {1: 1.0}, {1.0: 1}),
    *([[1]], [(1,)], [1, 2], [2, 1], {(1, 2)}, {frozenset({1})}, {"a": {1}}, {"a": frozenset({1})}),
    *(decimal.Decimal("1.0"), decimal.Decimal("1.00"), fractions.Fraction(1, 2), collections.Counter("a")),
    *(collections.OrderedDict(a=1), {"a": 1}, datetime.date(2024, 1, 1), datetime.datetime(2024, 1, 1)),
    *(datetime.timedelta(1), datetime.time(1), collections.deque([1]), "\ud800", NotImplemented, Ellipsis),
]


def test_values_of_different_type_or_content_differ() -> None:
    for i, a in enumerate(DISTINCT):
        for j, b in enumerate(DISTINCT):
            assert equal(a, b) == (i == j), (a, b)


class _Always:
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 1


class _Int(int):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


class _List(list[int]):
    pass


class _Kind(enum.IntEnum):
    ONE = 1


ALIKE: dict[str, list[Any]] = {
    "exact": [(0.0, -0.0), ([math.nan], [math.nan]), ({0.0}, {-0.0}), ({"a": 1, "b": 2}, {"b": 2, "a": 1})],
    "near": [
        *((1.0, 1.0000001), (1e9, 1e9 + 100), ([1.0, {"a": 2.0}], [1.0000001, {"a": 2}]), (2.0, 2)),
        *((math.inf, math.inf), (math.nan, math.nan)),
    ],
    "python": [
        *((1, 1.0), (1, True), ([1.0, (2,)], [1, (2.0,)]), ({1: 2}, {True: 2.0}), ({1}, frozenset({1.0}))),
        *((1, 1 + 0j), ({1, 2j}, {1 + 0j, 2j}), (math.nan, math.nan)),
        ([{"a": 1}], [collections.Counter("a")]),
        (collections.OrderedDict(a=1), collections.defaultdict(None, a=1.0)),
    ],
    "json": [([[1.0], 2], ([True], 2))],
}
UNLIKE: dict[str, list[Any]] = {
    "exact": [([1], _List([1])), ({"a": 1}, collections.Counter("a"))],
    "near": [
        *((1.0, 1.01), (1e9, 1e9 + 10_000), (1.0, True), (1, 1.0000001), (math.inf, 1e308), (1.0, math.nan)),
        *((1.0, 10**400), (1.0, "1.0")),
    ],
    "python": [([1], (1,)), (1, "1"), (0, None), ({"a": 1}, collections.Counter("aa"))],
    "json": [([1, 2], (2, 1))],
}


@pytest.mark.parametrize("how", ALIKE)
def test_equality_is_exact_or_near_for_floats_or_pythons_or_a_published_sets(how: Any) -> None:
    arguments: dict[str, Any] = {"tolerance": 1e-6} if how == "near" else {"equality": how}
    for pairs, alike in ((ALIKE[how], True), (UNLIKE[how], False)):
        for expected, got in pairs:
            assert equal(expected, got, **arguments) == alike, (expected, got)


@pytest.mark.parametrize("got", [_Always(), _Int(1), _Kind.ONE, object(), int, len, iter([1])])
@pytest.mark.parametrize("how", ["exact", "python"])
def test_an_object_of_another_type_equals_nothing_not_even_itself(got: object, how: Any) -> None:
    assert not equal(1, got, equality=how, tolerance=1.0)
    assert not equal([1], [got], equality=how)
    assert not equal({1}, {got}, equality=how)
    assert not equal({1: 1}, {got: 1}, equality=how)
    tree = read_tree(encode(got))
    assert not same(tree, tree)


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def test_a_value_that_holds_itself_or_is_too_deep_or_too_large_is_not_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(codec, "MOST_TOKENS", 10_000)
    loop: list[Any] = []
    loop.append({"a": (loop,)})
    deep = nested(DEEPEST + 5)
    wide: Any = 0
    for _ in range(40):
        wide = [wide, wide]
    for value, reason in ((loop, "itself"), (deep, "deep"), (wide, "parts")):
        with pytest.raises(EncodingError, match=reason):
            encode(value)


def test_sharing_is_no_cycle_and_a_value_of_the_greatest_depth_travels_whole() -> None:
    part = [1]
    assert equal([[1], [1]], [part, part])
    deep = nested(DEEPEST - 1)
    assert equal(deep, deep)
    assert not equal(deep, deep[0])
    assert show(tree_of(deep)).startswith("[[[")


BAD_TOKENS: list[Any] = [
    *(None, 1, "l0", {}, [], ["l1"], ["l0", "l0"], ["l2", 1], ["l-1"], ["l١"], ["l1.0", 1], ["l99999999"]),
    *([1.5], [[1]], ["z"], [""], ["ixyz"], ["fxyz"], ["f0x1p9999"], ["bxy"], ["xos", "t0"], ["c1"]),
    *(["d1", 1], ["l1"] * (DEEPEST + 5) + [1]),
]


@pytest.mark.parametrize("tokens", BAD_TOKENS)
@pytest.mark.parametrize("read", [read_tree, decode])
def test_tokens_that_are_no_value_are_refused(read: Any, tokens: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(tokens)


def test_a_forged_dict_or_set_with_a_member_twice_equals_nothing() -> None:
    for forged, value in ((["d2", 1, 2, 1, 2], {1: 2}), (["S2", 1, 1], {1})):
        tree = read_tree(forged)
        assert not same(tree_of(value), tree)
        assert not same(tree_of(value | type(value)({3: 4})), tree)


def test_numbers_chosen_to_collide_cost_nothing() -> None:
    # A Python set of these takes time quadratic in their number: many minutes, where here it is seconds.
    colliding = [f"i{number * (2**61 - 1):#x}" for number in range(1, 400_001)]
    tree = read_tree([f"S{len(colliding)}", *colliding])
    assert same(tree, tree)
    assert not same(tree_of({1}), tree)


@given(values, st.integers(20, 200))
def test_a_value_is_shown_within_a_limit_and_can_be_encoded(value: object, limit: int) -> None:
    text = show(tree_of(value), limit)
    assert len(text) <= limit + 60
    text.encode()  # lone surrogates are escaped


SHORT: list[Any] = [[], (), (1,), [1, (2.5, "a'b")], {"a": [None, True]}, {1: {2: b"c"}}, {3}, set(), 1 + 2j]


@pytest.mark.parametrize("value", [*SHORT, frozenset({1})])
def test_a_short_value_is_shown_as_python_writes_it(value: object) -> None:
    assert show(tree_of(value)) == repr(value)


def test_a_huge_value_is_shown_without_writing_it_whole() -> None:
    tree = tree_of([list(range(300_000)), 10**100_000])
    tracemalloc.start()
    text = show(tree, 100)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 100_000  # bytes
    assert text.startswith("[[0, 1, 2")
    assert "left out" in text


def test_a_cut_text_says_how_much_is_missing() -> None:
    text = shorten("a" * 500 + "z" * 500, 100)
    assert text.startswith("a" * 66 + " …")
    assert text.endswith("… " + "z" * 34)
    assert "[900 characters left out]" in text
    assert shorten("a" * 100, 100) == "a" * 100


@pytest.mark.parametrize(
    "text",
    [
        "Decimal(1)",
        "Fraction('1')",
        "Counter('a')",
        "f()",
        "a",
        "1 +",
        "__import__('os')",
        "[x for x in ()]",
        "{**{}}",
        "float('1')",
        "(" * 500,
    ],
)
def test_a_literal_never_runs_code(text: str) -> None:
    with pytest.raises(ValueError, match=r"literal|malformed|place|not made of"):
        read_literal(text)


@pytest.mark.parametrize("value", [object(), _Int(1), _List([1])])
def test_only_built_in_values_are_written_as_literals(value: object) -> None:
    with pytest.raises(ValueError, match="no built-in value"):
        write_literal([value])


def test_the_parts_of_a_driver_share_no_name() -> None:
    """They are joined into one text, where a second definition would replace the first."""
    for name, text in drivers().items():
        assert "art_gym" not in re.sub(r'"""(.|\n)*?"""', "", text), name
        names = re.findall(r"^(?:def |class )?(\w+)\b(?= = |: .* = |\(|:)", text, re.MULTILINE)
        twice = [each for each, count in collections.Counter(names).items() if count > 1]
        assert set(twice) <= {"main"}, (name, twice)
    folder = files("art_gym.envs.coding.drivers")
    assert {"codec.py", "remote.py"} <= {item.name for item in folder.iterdir()}
