from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from hypothesis import given
from hypothesis import strategies as st

from art_gym.wrappers.ruler_vector import join_infos, split_infos

VALUES = {
    "flag": st.booleans(),
    "count": st.integers(-100, 100),
    "share": st.floats(allow_nan=False),
    "text": st.text(max_size=5),
    "list": st.lists(st.integers(0, 9), max_size=3),
    "none": st.none(),
    "small": st.integers(0, 9).map(np.int8),
    "array": st.integers(0, 9).map(lambda number: np.full(2, number, np.float32)),
}
ROWS = st.lists(
    st.fixed_dictionaries({}, optional=VALUES | {"inner": st.fixed_dictionaries({}, optional=VALUES)}),
    min_size=1,
    max_size=4,
)


def by_gymnasium(rows: list[dict[str, Any]]) -> dict[str, Any]:
    vector: VectorEnv[Any, Any, Any] = VectorEnv()
    vector.num_envs = len(rows)
    infos: dict[str, Any] = {}
    for number, row in enumerate(rows):
        infos = vector._add_info(infos, row, number)
    return infos


def assert_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_equal(one[key], other[key])
    elif isinstance(one, np.ndarray):
        assert one.dtype == other.dtype
        assert one.tolist() == other.tolist()
    else:
        assert one == other


@given(rows=ROWS)
def test_joined_infos_are_gymnasium_s_and_come_apart_again(rows: list[dict[str, Any]]) -> None:
    joined = join_infos(rows)
    assert_equal(joined, by_gymnasium(rows))
    again = split_infos(joined, len(rows))
    assert_equal(join_infos(again), joined)
    for row, other in zip(rows, again, strict=True):
        assert_equal({key: row[key] for key in sorted(row)}, {key: other[key] for key in sorted(other)})


def test_values_of_several_types_are_kept() -> None:
    rows: list[dict[str, Any]] = [{"a": 1, "b": {"c": 1}, "d": True}, {"a": 0.5, "b": "words", "d": 2}, {}]
    joined = join_infos(rows)
    assert joined["a"].tolist() == [1.0, 0.5, 0.0]
    assert joined["b"].tolist() == [{"c": 1}, "words", None]
    assert joined["d"].tolist() == [True, 2, None]
    assert joined["_a"].tolist() == [True, True, False]
    assert split_infos(joined, 3) == rows


def test_what_has_no_mask_is_everyone_s() -> None:
    infos = {"r": np.array([1.0, 2.0]), "_r": np.array([True, False]), "l": np.array([3, 4])}
    assert split_infos(infos, 2) == [{"r": 1.0, "l": 3}, {"l": 4}]
