"""Parse assertions such as ``assert f(1, 2) == 3`` into cases, without running them."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Sized
from itertools import pairwise
from typing import Any

from art_gym.envs.coding.problem import Case
from art_gym.envs.coding.values import literal, read_display, read_literal

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_BUILDERS: dict[str, Callable[..., Any]] = {"set": set, "tuple": tuple, "list": list, "frozenset": frozenset}
_LARGEST = 1_000_000  # parts of a repeated sequence
_LARGEST_POWER = 1_000
_LONGEST_CALL = 1_000  # characters


class UnsupportedTestError(ValueError):
    """A test does more than compare one call with one value."""


def simple_case(statement: ast.stmt, name: str) -> tuple[Case, float | None] | None:
    """The case that an assertion about a function stands for, and its tolerance.

    Understood are ``assert f(…) == value`` and ``assert abs(f(…) - value) < tolerance``.

    Args:
        statement: A statement of a test.
        name: What the function is called there.

    Returns:
        The case; ``None`` for a statement that tests nothing, such as ``assert True``.

    Raises:
        UnsupportedTestError: For any other statement.
    """
    if isinstance(statement, ast.Pass | ast.Import | ast.ImportFrom):
        return None
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return None
    if not isinstance(statement, ast.Assert):
        raise UnsupportedTestError(ast.unparse(statement))
    match statement.test:
        case ast.Constant(value=value) if value:
            return None
        case ast.Compare(left=left, ops=[ast.Eq()], comparators=[right]):
            return Case(*_call(left, name), expected=constant(right)), None
        case ast.Compare(
            left=ast.Call(
                func=ast.Name(id="abs"), args=[ast.BinOp(left=left, op=ast.Sub(), right=right)], keywords=[]
            ),
            ops=[ast.Lt() | ast.LtE()],
            comparators=[limit],
        ):
            return Case(*_call(left, name), expected=float(constant(right))), float(constant(limit))
    raise UnsupportedTestError(ast.unparse(statement))


def simple_cases(statements: Iterable[ast.stmt], name: str) -> tuple[tuple[Case, ...], float | None]:
    """The cases of all statements of a test, and their largest tolerance.

    Raises:
        UnsupportedTestError: If there are none, or one of the statements is no simple case.
    """
    found = [case for statement in statements if (case := simple_case(statement, name)) is not None]
    if not found:
        raise UnsupportedTestError("no assertion")
    tolerances = [tolerance for _, tolerance in found if tolerance is not None]
    return tuple(case for case, _ in found), max(tolerances, default=None)


def doctest_cases(text: str, name: str) -> tuple[Case, ...]:
    """The examples of the form ``>>> f(1)``, with the value on the next line, that a text holds."""
    lines = [line.strip() for line in text.splitlines()]
    cases = []
    for line, after in pairwise(lines):
        if not line.startswith(">>> "):
            continue
        try:
            call = ast.parse(line.removeprefix(">>> "), mode="eval").body
            cases.append(Case(*_call(call, name), expected=read_literal(after)))
        except (ValueError, SyntaxError):
            continue
    return tuple(cases)


def shown_calls(text: str, name: str) -> tuple[Case, ...]:
    """The calls of a function with constant arguments that a text holds, without what they return."""
    found = []
    for start in re.finditer(rf"\b{re.escape(name)}\(", text) if name else ():
        rest = text[start.start() : start.start() + _LONGEST_CALL]
        for end in re.finditer(r"\)", rest):
            try:
                found.append(Case(*_call(ast.parse(rest[: end.end()], mode="eval").body, name)))
            except SyntaxError:
                continue  # this bracket closes another
            except UnsupportedTestError:
                pass
            break
    return tuple(found)


def constant(node: ast.expr) -> Any:
    """The value of an expression of constants: literals, arithmetic, ``set([…])``.

    Raises:
        UnsupportedTestError: For any other expression, and if the value would be huge.
    """
    try:
        return read_display(node, _computed)
    except (TypeError, ValueError, RecursionError) as error:
        raise UnsupportedTestError(str(error)) from None


def _computed(node: ast.expr) -> Any:
    match node:
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            return _compute(type(op), constant(left), constant(right))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -constant(operand)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]) if name in _BUILDERS:
            return _BUILDERS[name](constant(argument))
    return literal(node)


def _call(node: ast.expr, name: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    match node:
        case ast.Call(func=ast.Name(id=called), args=args, keywords=keywords) if called == name:
            named = {keyword.arg: constant(keyword.value) for keyword in keywords if keyword.arg}
            if len(named) == len(keywords):
                return tuple(constant(argument) for argument in args), named
    raise UnsupportedTestError(ast.unparse(node))


def _compute(kind: type[ast.operator], left: Any, right: Any) -> Any:
    numbers = [value for value in (left, right) if isinstance(value, int | float)]
    if kind is ast.Pow and (len(numbers) < 2 or abs(left) > _LARGEST_POWER or abs(right) > _LARGEST_POWER):
        raise UnsupportedTestError("a power that is too large")
    lengths = [len(value) for value in (left, right) if isinstance(value, Sized)]
    if lengths and (kind is ast.Mod or any(abs(number) * lengths[0] > _LARGEST for number in numbers)):
        raise UnsupportedTestError("a formatted text, or a sequence that is too long")
    try:
        return _OPERATORS[kind](left, right)
    except ArithmeticError as error:
        raise UnsupportedTestError(str(error)) from None
