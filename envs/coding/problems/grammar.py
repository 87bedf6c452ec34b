"""Level 0: thousands of one-expression tasks, for models too small to write programs.

A task shows a function of one line with a hole, what it should return in English (or not: then only the
examples show it), and three or four examples. The answer is one expression of a few tokens, such as
``x - 3``. In half of the tasks the line also shows an expression that is wrong by one operator.

What makes the tasks fair:

* The examples shown leave one behaviour among all expressions of the grammar with these parameters (checked
  by enumeration). The hidden cases do so by themselves too, and hold larger numbers.
* Any expression of that behaviour is right: ``b + a`` for ``a + b``.
* Training and test tasks share no behaviour of the same parameters, whatever the words: ``x - y`` is in one
  of the splits only. The parts (each operator, each name, each number) occur in both.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, permutations, product
from typing import Any

import numpy as np
import numpy.typing as npt

from art_gym.envs.coding.problem import HOLE, Case, Problem

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
        return Expression(_pick(OPERATORS, rng), order[0], order[1])
    nested = Expression(_pick([each for each in OPERATORS if not each.compares], rng), order[0], order[1])
    left, right = (nested, order[2]) if rng.random() < 0.5 else (order[2], nested)
    return Expression(_pick([each for each in OPERATORS if not _refuses(each, right)], rng), left, right)


def _refuses(outer: Operator, right: Expression | Leaf) -> bool:
    """Whether an operator cannot stand above another one: it compares, or might divide by zero."""
    return outer.compares or (outer.divides and isinstance(right, Expression))


def _values(side: Expression | Leaf, inputs: Mapping[str, Values]) -> Values:
    if isinstance(side, Expression):
        return side.values(inputs)
    return inputs[side] if isinstance(side, str) else np.asarray(side, dtype=np.int64)


def _pick(operators: Sequence[Operator], rng: np.random.Generator) -> Operator:
    return operators[int(rng.integers(len(operators)))]


_NAMES = "abcdkmnpwxyz"
_SMALL = range(1, 10)  # inputs that may be shown: one digit
_LARGE = range(12, 60)
_LARGE_ROWS = 40
_SHORT = 99  # results shown have at most two digits if possible
_SHOWN = (3, 4)  # fewest and most examples
_HIDDEN, _HIDDEN_LARGE = 8, 3
_LOOKED_AT = 24  # inputs compared when one is chosen
_TEST_SHARE = 5  # one behaviour in so many is a test task
_TRIES = 40  # draws per task before the grammar counts as used up
_MUTANTS = 3
_REPAIRS = 0.5  # of the tasks, which also show an expression that is wrong by one operator


@dataclass(frozen=True, slots=True)
class Grammar:
    """How hard the tasks are.

    Attributes:
        operators: Operators in the expression, 1 or 2.
        described: Whether the prompt describes what the function returns; else the examples must do.

    Raises:
        ValueError: For values out of range.
    """

    operators: int = 1
    described: bool = True

    def __post_init__(self) -> None:
        if self.operators not in (1, 2):
            raise ValueError(f"operators must be 1 or 2, not {self.operators!r}")


def problems(
    grammar: Grammar | None = None, *, train: int = 2_000, test: int = 400, seed: int = 0
) -> tuple[Problem, ...]:
    """Distinct tasks of the grammar, of the ``train`` split and then of the ``test`` split.

    Args:
        grammar: How hard they are; one described operator by default.
        train: How many to train on.
        test: How many to test on.
        seed: The same seed gives the same tasks on every machine.

    Raises:
        ValueError: If the grammar does not have so many distinct tasks.
    """
    grammar = grammar or Grammar()
    rng = np.random.default_rng(seed)
    wanted = {"train": train, "test": test}
    found: dict[str, dict[str, Problem]] = {"train": {}, "test": {}}
    for _ in range(_TRIES * (train + test)):
        if all(len(found[split]) == count for split, count in wanted.items()):
            break
        problem = _draw(grammar, rng, {split for split in wanted if len(found[split]) < wanted[split]})
        if problem is not None:
            found[problem.split].setdefault(problem.id, problem)
    else:
        counts = " and ".join(f"{len(found[split])} of {count} {split}" for split, count in wanted.items())
        raise ValueError(f"{grammar} has not so many distinct tasks: found {counts}")
    return (*found["train"].values(), *found["test"].values())


def noisy_answer(problem: Problem, rng: np.random.Generator, *, rightness: float = 0.3) -> str:
    """An answer to learn the form from: right with a probability, else plausible and wrong.

    A wrong answer is another expression of the same parameters and numbers that behaves differently, so it
    teaches what an answer is made of and not which one is right. Wrong ones are drawn alike from some twenty:
    even a small share of right ones stands out, and a model that learns long from them, and then says what it
    holds most likely, is mostly right. About 0.08 is chance with one operator: then the answers teach form
    alone.

    Args:
        problem: One of :func:`problems`.
        rng: The only source of chance.
        rightness: Probability of the right answer, exactly.
    """
    if rng.random() < rightness:
        return problem.reference
    names = _parameters(problem)
    leaves: list[Leaf] = [*names, *(int(number) for number in re.findall(r"\d+", problem.reference))]
    columns = zip(*(case.args for case in problem.hidden), strict=True)
    inputs = {name: np.array(column, dtype=np.int64) for name, column in zip(names, columns, strict=True)}
    expected = [case.expected for case in problem.hidden]
    while True:
        expression = draw_expression(leaves, rng)
        if _plain(expression.values(inputs)) != expected:
            return expression.code


def _parameters(problem: Problem) -> list[str]:
    """The names in the signature of a task."""
    signature = re.search(r"\((.*)\)", problem.template)
    if signature is None or HOLE not in problem.template:
        raise ValueError(f"problem {problem.id!r} is none of the grammar's: its template has no hole")
    return signature[1].split(", ")


# --- one task -------------------------------------------------------------------------------------------


def _draw(grammar: Grammar, rng: np.random.Generator, splits: set[str]) -> Problem | None:
    """A task of one of the splits, or ``None`` if this draw gave none."""
    numbers = int(rng.integers(2))
    names = [_NAMES[int(i)] for i in rng.permutation(len(_NAMES))[: grammar.operators + 1 - numbers]]
    leaves: list[Leaf] = [*names, *(int(rng.choice(NUMBERS)) for _ in range(numbers))]
    expression = draw_expression(leaves, rng)
    split = _split(expression, names)
    if split not in splits:
        return None
    inputs = _inputs(len(names))
    target = expression.values(_named(names, inputs))
    small = np.arange(_small_rows(len(names)))
    showable = small if expression.operator.compares else small[np.abs(target[small]) <= _SHORT]
    rows = _choose_rows(target, showable, _behaviours(len(names), numbers), rng)
    wrong = _wrong_by_one(expression, _named(names, inputs), rng)
    if rows is None or len(wrong) < _MUTANTS:
        return None
    remark = f"  # not {wrong[0]}" if rng.random() < _REPAIRS else ""
    prompt = f"Return {expression.words(rng)}." if grammar.described else "Return what the examples show."
    template = f"def f({', '.join(names)}):\n    return {HOLE}{remark}\n"
    public, hidden = (_cases(chosen, inputs, target) for chosen in rows)
    # Two tasks share an id only if they show the same.
    digest = hashlib.sha256(repr((prompt, template, public)).encode())
    return Problem(
        id=f"expression-{digest.hexdigest()[:12]}",
        prompt=prompt,
        level=0,
        entry_point="f",
        template=template,
        public=public,
        hidden=hidden,
        reference=expression.code,
        mutants=tuple(wrong[:_MUTANTS]),
        split=split,
        source=f"grammar, {grammar.operators} operator{'s' * (grammar.operators > 1)}",
    )


def _split(expression: Expression, names: Sequence[str]) -> str:
    """The split of a behaviour: the same for all expressions, words and orders of parameters that have it."""
    ordered, count = sorted(names), _small_rows(len(names))
    behaviour = expression.values(_named(ordered, _inputs(len(ordered))))[:count].tobytes()
    digest = hashlib.sha256(" ".join(ordered).encode() + behaviour).digest()
    return "test" if digest[0] % _TEST_SHARE == 0 else "train"


def _wrong_by_one(expression: Expression, inputs: dict[str, Values], rng: np.random.Generator) -> list[str]:
    """Expressions with another operator that behave differently, in any order."""
    target = expression.values(inputs)
    wrong = [other for other in expression.with_other_operator() if (other.values(inputs) != target).any()]
    return [wrong[int(index)].code for index in rng.permutation(len(wrong))]


def _cases(rows: Sequence[int], inputs: Values, target: Values) -> tuple[Case, ...]:
    expected = _plain(target[list(rows)])
    return tuple(
        Case(args=tuple(inputs[:, row].tolist()), expected=value)
        for row, value in zip(rows, expected, strict=True)
    )


def _plain(values: Values) -> list[int | bool]:
    return [plain_value(int(value)) for value in values]


# --- what the examples leave open ------------------------------------------------------------------------


@lru_cache
def _inputs(parameters: int) -> Values:
    """All inputs of one digit, then some larger ones: one row a parameter, one column an input."""
    small = np.array(list(product(_SMALL, repeat=parameters)), dtype=np.int64).T
    strides = np.array([29, 17, 41])[:parameters, None]  # any spread does, if it is the same everywhere
    large = _LARGE.start + np.arange(_LARGE_ROWS) * strides % len(_LARGE)
    return np.concatenate([small, large], axis=1)


def _small_rows(parameters: int) -> int:
    return int(len(_SMALL) ** parameters)


def _named(names: Sequence[str], inputs: Values) -> dict[str, Values]:
    return dict(zip(names, inputs, strict=True))


@lru_cache
def _behaviours(parameters: int, numbers: int) -> Values:
    """What each expression that the grammar can say with so many leaves computes: distinct rows."""
    names = list(_NAMES[:parameters])
    inputs = _named(names, _inputs(parameters))
    chosen: list[list[Leaf]] = [[number] for number in NUMBERS] if numbers else [[]]
    every = chain.from_iterable(expressions_over([*names, *number]) for number in chosen)
    return np.unique(np.stack([expression.values(inputs) for expression in every]), axis=0)


def _choose_rows(
    target: Values, showable: Values, behaviours: Values, rng: np.random.Generator
) -> tuple[list[int], list[int]] | None:
    """Inputs to show and inputs to hide, each pinning the behaviour down; ``None`` if that takes more."""
    rivals = behaviours[(behaviours != target).any(axis=1)]
    shown = _pin_down(target, rivals, rng.permutation(showable), _SHOWN)
    if shown is None:
        return None
    rest = np.setdiff1d(np.arange(len(target)), shown)
    hidden = _pin_down(target, rivals, rng.permutation(rest), (_HIDDEN, _HIDDEN))
    if hidden is None:
        return None
    large = np.setdiff1d(rest[-_LARGE_ROWS:], hidden)
    return shown, hidden + [int(row) for row in rng.permutation(large)[:_HIDDEN_LARGE]]


def _pin_down(target: Values, rivals: Values, rows: Values, fewest_most: tuple[int, int]) -> list[int] | None:
    """Choose from rows in random order, each time the one of the next few that rules most rivals out."""
    fewest, most = fewest_most
    chosen: list[int] = []
    while len(rivals) or len(chosen) < fewest:
        if len(chosen) == most or not len(rows):
            return None
        ruled_out = (rivals[:, rows[:_LOOKED_AT]] != target[rows[:_LOOKED_AT]]).sum(axis=0)
        best = int(np.argmax(ruled_out))
        row = int(rows[best])
        chosen.append(row)
        rivals = rivals[rivals[:, row] == target[row]]
        rows = np.concatenate([rows[_LOOKED_AT:], rows[:best], rows[best + 1 : _LOOKED_AT]])
    return chosen
