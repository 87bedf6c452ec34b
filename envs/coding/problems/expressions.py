"""Expressions of level 0: small trees of operators with their code, wording and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.int64]
Leaf = str | int
"""A parameter's name, or a number."""

NUMBERS = range(2, 9)
"""Numbers that stand in expressions; 1 and 9 would often change nothing (``x * 1``, ``min(x, 9)``)."""

_TRUTH = 1_000_000  # truth values are computed as this plus 0 or 1, so that True is not taken for 1


@dataclass(frozen=True, slots=True)
class Operator:
    """Something done with two values.

    Attributes:
        code: How Python writes it, with ``{l}`` and ``{r}``.
        words: Ways to say it in English.
        compute: The same on arrays, by NumPy.
        infix: Whether it needs brackets inside another one.
        divides: Whether a zero on the right would be an error.
        compares: Whether the result is a truth value.
    """

    code: str
    words: tuple[str, ...]
    compute: Callable[[Values, Values], Any]
    infix: bool = True
    divides: bool = False
    compares: bool = False


OPERATORS: tuple[Operator, ...] = (
    Operator("{l} + {r}", ("{l} plus {r}", "the sum of {l} and {r}"), np.add),
    Operator("{l} - {r}", ("{l} minus {r}", "{r} taken from {l}"), np.subtract),
    Operator("{l} * {r}", ("{l} times {r}", "the product of {l} and {r}"), np.multiply),
    Operator(
        "{l} // {r}", ("how often {r} fits into {l}", "{l} divided by {r}"), np.floor_divide, divides=True
    ),
    Operator("{l} % {r}", ("the rest of {l} by {r}", "{l} modulo {r}"), np.remainder, divides=True),
    Operator("max({l}, {r})", ("the larger of {l} and {r}", "{l} but at least {r}"), np.maximum, infix=False),
    Operator("min({l}, {r})", ("the smaller of {l} and {r}", "{l} but at most {r}"), np.minimum, infix=False),
    Operator(
        "abs({l} - {r})",
        ("the distance of {l} and {r}", "how far {l} is from {r}"),
        lambda left, right: np.abs(left - right),
        infix=False,
    ),
    Operator("{l} < {r}", ("whether {l} is below {r}", "whether {r} is above {l}"), np.less, compares=True),
    Operator(
        "{l} > {r}", ("whether {l} is above {r}", "whether {r} is below {l}"), np.greater, compares=True
    ),
    Operator(
        "{l} == {r}", ("whether {l} equals {r}", "whether {l} is the same as {r}"), np.equal, compares=True
    ),
)


@dataclass(frozen=True, slots=True)
class Expression:
    """An operator and its two operands, each a leaf or another expression."""

    operator: Operator
    left: Expression | Leaf
    right: Expression | Leaf

    @property
    def code(self) -> str:
        """The expression as Python."""
        return self.operator.code.format(l=self._operand(self.left), r=self._operand(self.right))

    def words(self, rng: np.random.Generator) -> str:
        """The expression in English; ``rng`` chooses among the ways."""
        operands = [
            f"({side.words(rng)})" if isinstance(side, Expression) else str(side)
            for side in (self.left, self.right)
        ]
        wording = self.operator.words[int(rng.integers(len(self.operator.words)))]
        return wording.format(l=operands[0], r=operands[1])

    def values(self, inputs: Mapping[str, Values]) -> Values:
        """What it computes for many inputs at once, truth values distinct from numbers.

        Args:
            inputs: One array a parameter, all of one shape.
        """
        left, right = (_values(side, inputs) for side in (self.left, self.right))
        result: Values = np.asarray(self.operator.compute(left, right), dtype=np.int64)
        return result + _TRUTH if self.operator.compares else result

    def with_other_operator(self) -> Iterator[Expression]:
        """All expressions that differ from this one in one operator."""
        nested = isinstance(self.left, Expression) or isinstance(self.right, Expression)
        for other in OPERATORS:
            if other is not self.operator and not (nested and _refuses(other, self.right)):
                yield Expression(other, self.left, self.right)
        if isinstance(self.left, Expression):
            yield from (
                Expression(self.operator, left, self.right)
                for left in self.left.with_other_operator()
                if not left.operator.compares
            )
        if isinstance(self.right, Expression):
            yield from (
                Expression(self.operator, self.left, right)
                for right in self.right.with_other_operator()
                if not right.operator.compares
            )

    def _operand(self, side: Expression | Leaf) -> str:
        if isinstance(side, Expression):
            alone = "," in self.operator.code  # an argument of its own needs no brackets
            return f"({side.code})" if side.operator.infix and not alone else side.code
        return str(side)


def plain_value(value: int) -> int | bool:
    """The Python value that an entry of :meth:`Expression.values` stands for."""
    return bool(value - _TRUTH) if value in (_TRUTH, _TRUTH + 1) else int(value)


def expressions_over(leaves: Sequence[Leaf]) -> Iterator[Expression]:
    """All expressions that use each of two or three leaves once, in any order."""
    if len(leaves) == 2:
        for (left, right), operator in product(permutations(leaves), OPERATORS):
            yield Expression(operator, left, right)
        return
    for first, second, third in permutations(leaves):
        for inner, outer in product(OPERATORS, repeat=2):
            nested = Expression(inner, first, second)
            if inner.compares:
                continue
            yield from (
                Expression(outer, left, right)
                for left, right in ((nested, third), (third, nested))
                if not _refuses(outer, right)
            )


def draw_expression(leaves: Sequence[Leaf], rng: np.random.Generator) -> Expression:
    """One of :func:`expressions_over`, all operators alike, whichever can stand there."""
    order = [leaves[int(index)] for index in rng.permutation(len(leaves))]
    if len(order) == 2:
        return Expression(_draw(OPERATORS, rng), order[0], order[1])
    nested = Expression(_draw([each for each in OPERATORS if not each.compares], rng), order[0], order[1])
    left, right = (nested, order[2]) if rng.random() < 0.5 else (order[2], nested)
    return Expression(_draw([each for each in OPERATORS if not _refuses(each, right)], rng), left, right)


def _refuses(outer: Operator, right: Expression | Leaf) -> bool:
    """Whether an operator cannot stand above another one: it compares, or might divide by zero."""
    return outer.compares or (outer.divides and isinstance(right, Expression))


def _values(side: Expression | Leaf, inputs: Mapping[str, Values]) -> Values:
    if isinstance(side, Expression):
        return side.values(inputs)
    return inputs[side] if isinstance(side, str) else np.asarray(side, dtype=np.int64)


def _draw(operators: Sequence[Operator], rng: np.random.Generator) -> Operator:
    return operators[int(rng.integers(len(operators)))]
