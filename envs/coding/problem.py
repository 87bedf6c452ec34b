"""The coding problem: its data class and its JSON form."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from art_gym.envs.coding.drivers.codec import encode
from art_gym.envs.coding.sandbox import Limits
from art_gym.envs.coding.values import Equality, read_literal, write_literal

Kind = Literal["function", "script", "unittest"]

HOLE = "____"


@dataclass(frozen=True, slots=True)
class Case:
    """One input and what must come out. Plain Python values only.

    Attributes:
        args: Positional arguments of the call (kind ``function``).
        kwargs: Keyword arguments of the call.
        expected: What the call must return, equal in type and value.
        stdin: What the program reads (kind ``script``).
        stdout: What it must print; compared line by line without trailing blanks. ``None`` in a call's case.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    expected: Any = None
    stdin: str = ""
    stdout: str | None = None

    def has_input_of(self, other: Case) -> bool:
        """Whether both have the same input, whatever they expect."""
        ours, theirs = ((case.stdin, case.args, case.kwargs) for case in (self, other))
        return ours == theirs and repr(ours) == repr(theirs)  # 1 == True

    def to_json(self) -> dict[str, str]:
        """The case as JSON: values of a call as Python literals in strings, text as it is."""
        if self.stdout is not None:
            return {"stdin": self.stdin, "stdout": self.stdout}
        item = {"args": write_literal(self.args), "expected": write_literal(self.expected)}
        return item | ({"kwargs": write_literal(dict(self.kwargs))} if self.kwargs else {})

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Case:
        """The case that `to_json` wrote.

        Raises:
            ValueError: If the fields are not those of a call or of a program.
        """
        if not isinstance(item, Mapping) or not all(isinstance(value, str) for value in item.values()):
            raise ValueError("a case is a JSON object of strings (values are written as Python literals)")
        if set(item) == {"stdin", "stdout"}:
            return cls(stdin=item["stdin"], stdout=item["stdout"])
        if not {"args", "expected"} <= set(item) <= {"args", "kwargs", "expected"}:
            shown = ", ".join(sorted(item))
            raise ValueError(
                f"a case has `args`, `expected` (and `kwargs`), or `stdin`, `stdout`; not {shown}"
            )
        args, kwargs = read_literal(item["args"]), read_literal(item.get("kwargs", "{}"))
        if not isinstance(args, tuple) or not isinstance(kwargs, dict):
            raise ValueError("`args` is a tuple and `kwargs` a dict, written as Python literals: '(1, 2)'")
        return cls(args=args, kwargs=kwargs, expected=read_literal(item["expected"]))


@dataclass(frozen=True, slots=True)
class Problem:
    """A programming task, how it is graded, and what shows that the grading is good.

    Attributes:
        id: Unique within its set.
        prompt: The task as text.
        kind: ``function``: `entry_point` is called; ``script``: the program reads stdin and prints;
            ``unittest``: `tests` is a unittest file that imports the module named `entry_point`.
        level: 0 (one expression) to 3 (an algorithm).
        entry_point: The function's name, or ``Class.method``; the module's name for ``unittest``; empty for
            ``script``.
        template: Code shown to start from: a signature, a broken program to repair, or, with `HOLE` in it,
            a program of which the solver may send only what stands in the hole.
        public: Cases the solver sees.
        hidden: Cases that decide. Never shown: those with the input of a public case are left out.
        tests: The unittest file's text (kind ``unittest``). Hidden too.
        reference: A solution: a whole program, or what stands in the hole.
        mutants: Plausible wrong solutions, in the same form; the hidden cases reject each.
        tolerance: How far a float may be off, relative or absolute; ``None``: not at all.
        equality: ``exact``: a value counts only in the type that is expected. The others are for sets whose
            own tests compare so; see `values.same`. With ``json`` an iterator counts as the list of
            what it gives.
        limits: What a run may use, by the names of `sandbox.Limits`; the rest is the sandbox's own.
        split: ``train``, ``test``, or a name of the author's.
        source: The origin of the problem.
    """

    id: str
    prompt: str
    kind: Kind = "function"
    level: int = 1
    entry_point: str = ""
    template: str = ""
    public: tuple[Case, ...] = ()
    hidden: tuple[Case, ...] = ()
    tests: str = ""
    reference: str = ""
    mutants: tuple[str, ...] = ()
    tolerance: float | None = None
    equality: Equality = "exact"
    limits: Mapping[str, int] = field(default_factory=dict)
    split: str = "train"
    source: str = ""

    def __post_init__(self) -> None:
        texts = [(each.name, getattr(self, each.name)) for each in fields(self) if each.type == "str"]
        for name, text in (*texts, *(("mutants", mutant) for mutant in self.mutants)):
            _check_text(name, text)
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind must be one of {', '.join(get_args(Kind))}, not {self.kind!r}")
        if self.equality not in get_args(Equality):
            raise ValueError(
                f"equality must be one of {', '.join(get_args(Equality))}, not {self.equality!r}"
            )
        if not self.id or not self.prompt:
            raise ValueError("a problem needs an id and a prompt")
        tolerance = 0 if self.tolerance is None else self.tolerance
        if not isinstance(tolerance, int | float) or not 0 <= tolerance < math.inf:
            raise ValueError(f"tolerance must be a number of at least 0, not {tolerance!r}")
        if self.level not in range(4):
            raise ValueError(f"level must be 0, 1, 2 or 3, not {self.level!r}")
        names = self.entry_point.split(".", 1 if self.kind == "function" else 0)
        if self.kind != "script" and not all(name.isidentifier() for name in names):
            raise ValueError(
                f"kind {self.kind!r} needs an entry_point that is a name, not {self.entry_point!r}"
            )
        if self.kind == "unittest":
            if not self.tests:
                raise ValueError("kind 'unittest' needs `tests`, the text of a unittest file")
            if self.entry_point in sys.stdlib_module_names:  # the tests' own Python would import the answer
                raise ValueError(f"entry_point {self.entry_point!r} is a module of Python's own")
        hidden = tuple(case for case in self.hidden if not any(map(case.has_input_of, self.public)))
        if self.kind != "unittest" and not hidden:
            shown = f"; all those of {self.id!r} are public" if self.hidden else ""
            raise ValueError(f"kind {self.kind!r} needs hidden cases{shown}")
        object.__setattr__(self, "hidden", hidden)
        try:
            Limits(**self.limits)
        except TypeError:
            shown = ", ".join(each.name for each in fields(Limits))
            raise ValueError(f"limits are numbers named {shown}; not {self.limits!r:.80}") from None
        for case in (*self.public, *self.hidden):
            if (case.stdout is not None) != (self.kind == "script"):
                raise ValueError(f"a case of another kind than {self.kind!r}: {case!r:.120}")
            _check_text("stdin", case.stdin)
            _check_text("stdout", "" if case.stdout is None else case.stdout)
            for value in (case.args, dict(case.kwargs), case.expected):
                encode(value, _refuse)

    def complete(self, code: str) -> str:
        """The program that an answer stands for: itself, or the template with its hole filled.

        An answer to a template with a hole is a whole program when it defines `entry_point` (or, for a
        script, holds the template's text before the hole); else it stands for the hole.
        """
        if HOLE not in self.template or self._is_whole(code):
            return code
        return self.template.replace(HOLE, code.strip())

    def _is_whole(self, code: str) -> bool:
        if self.entry_point:
            return re.search(rf"^\s*(async\s+)?def\s+{self.entry_point}\b", code, re.MULTILINE) is not None
        return self.template.split(HOLE)[0].strip() in code

    def to_json(self) -> dict[str, Any]:
        """The problem as plain JSON values; `from_json` reads them back."""
        item = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in ("public", "hidden"):
            item[name] = [case.to_json() for case in item[name]]
        item |= {"mutants": list(self.mutants), "limits": dict(self.limits)}
        return {name: value for name, value in item.items() if name != "limits" or value}

    @classmethod
    def from_json(cls, item: Mapping[str, Any]) -> Problem:
        """The problem that `to_json` wrote; fields with a default may be missing.

        Raises:
            ValueError: If the item is no object, or a field is unknown, missing or not what it should be.
        """
        if not isinstance(item, Mapping):
            raise ValueError(f"a problem is a JSON object, not {type(item).__name__}")
        known = [each.name for each in fields(cls)]
        if unknown := sorted(set(item) - set(known)):
            raise ValueError(f"unknown field {unknown[0]!r}; a problem has {', '.join(known)}")
        if missing := [name for name in ("id", "prompt") if name not in item]:
            raise ValueError(f"field {missing[0]!r} is missing")
        values = dict(item)
        for name in ("public", "hidden", "mutants"):
            if not isinstance(values.get(name, []), list):
                raise ValueError(f"field {name!r} is a list")
        for name in ("public", "hidden"):
            values[name] = tuple(Case.from_json(case) for case in values.get(name, []))
        values["mutants"] = tuple(values.get("mutants", ()))
        return cls(**values)


def _check_text(field: str, text: object) -> None:
    if not isinstance(text, str):
        raise ValueError(f"field {field!r} is text, not {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        where = f"half a character (a lone surrogate) at {error.start}"
        raise ValueError(f"field {field!r} holds {where}") from None


def _refuse(value: object) -> str:
    raise ValueError(f"a case holds plain Python values only, not one of type {type(value).__name__}")
