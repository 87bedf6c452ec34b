"""Wrong arguments of an environment are named before it is made."""

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, Literal

import pytest

from art_gym.arguments import check_arguments
from art_gym.errors import EnvArgumentError


class BaseEnv:
    def __init__(self, path: str | PathLike[str] = "", *, turns: int = 3, penalty: float = 0.1) -> None: ...


class OwnEnv(BaseEnv):
    def __init__(
        self,
        level: int | Iterable[int] | None = None,
        size: Literal["small", "large"] = "small",
        names: Mapping[str, int] | None = None,
        shown: bool = False,
        untyped: Any = None,
        **options: Any,
    ) -> None: ...


def make_own(depth: int = 1, **arguments: Any) -> OwnEnv:
    return OwnEnv(**arguments)


def make_any(depth: int = 1, **arguments: Any) -> Any: ...


@pytest.mark.parametrize("creator", [OwnEnv, make_own, f"{__name__}:OwnEnv"])
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"levl": 1}, "no argument `levl`; did you mean `level`"),
        ({"turn": 1}, "did you mean `turns`"),
        ({"turns": "abc"}, "`turns` must be a whole number, not 'abc'"),
        ({"turns": True}, "a whole number"),
        ({"turns": 1.5}, "a whole number"),
        ({"penalty": "low"}, "a number"),
        ({"shown": "yes"}, "true or false"),
        ({"level": "hard"}, "a whole number or a list or null, not 'hard'"),
        ({"level": ["hard"]}, "a whole number or a list or null"),
        ({"size": "big"}, "one of 'small', 'large'"),
        ({"names": [1]}, "a mapping or null"),
    ],
)
def test_a_wrong_argument_is_named(creator: Any, arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(EnvArgumentError, match=words):
        check_arguments("mine/Own-v0", creator, arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        {"level": 1, "size": "large", "names": {"a": 1}, "shown": True, "untyped": object()},
        {"level": [1, 2], "penalty": 1, "turns": 5, "path": "mail.db"},
        {"level": None, "max_episode_steps": 5},
    ],
)
def test_right_arguments_pass(arguments: dict[str, Any]) -> None:
    check_arguments("mine/Own-v0", OwnEnv, arguments)


def test_a_function_whose_class_is_unknown_may_take_anything() -> None:
    check_arguments("mine/Own-v0", make_any, {"anything": 1})
    with pytest.raises(EnvArgumentError, match="depth"):
        check_arguments("mine/Own-v0", make_any, {"depth": "deep"})
