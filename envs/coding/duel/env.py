"""``art/CodingDuel-v0``: one writes a program, the other inputs that break it, on PettingZoo's interface."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, ClassVar

import numpy as np

from art_gym.env import Baseline
from art_gym.envs.coding.collection import BUILTIN, Collection, open_collection
from art_gym.envs.coding.duel.attacks import SOLUTION_LIMITS, Attack, attack_text, judge_attack, read_attack
from art_gym.envs.coding.duel.players import BREAKERS, SOLVERS
from art_gym.envs.coding.judge import Verdict, Which, grade
from art_gym.envs.coding.problem import Problem
from art_gym.envs.coding.sharing import shared_sandbox
from art_gym.envs.coding.statement import checked_code, report, statement, wanted
from art_gym.errors import ToolError
from art_gym.games.aec import MoveResult, TextAECEnv, seat
from art_gym.parameters import Code
from art_gym.tasks import Task
from art_gym.tools import tool

SOLVER = "solver_0"
BREAKER = "breaker_1"


class CodingDuelEnv(TextAECEnv):
    """A programming task as a duel: one solves it, the other looks for an input that breaks the solution.

    ## Description
    ``solver_0`` gets a task of ``art/Coding-v0``, may try programs on the examples, and submits one. Then
    ``breaker_1``, who sees task and program, has a few tries to give an input on which the program is wrong.
    A reference solution, which nobody sees, decides what is right. Everything runs in the sandbox.

    ## Action Space
    Text. The solver calls ``test`` or ``submit`` with a program; the breaker ``attack`` with the arguments of
    a call as Python literals, ``[1, 2], "a"``, or with the whole standard input if the task is a script;
    or it lets a try go by with ``skip``. A fenced block counts as program or input. Programs cannot be
    numbered, so there are no discrete actions. After ``patience`` bad replies in a row an empty program is
    submitted for the solver, or a try skipped for the breaker.

    ## Observation Space
    A dictionary with ``text``: at a seat's first turn the task, for the breaker also the program; then what
    came of its replies. Hidden tests and the reference are never shown.

    ## Starting State
    The seed chooses the task. The solver begins.

    ## Valid Inputs
    An attack counts only with an input of the task: one that has the types and traits that all the task's own
    cases have at the same place (see ``Domain``: lengths of tuples, order, emptiness, signs, kinds of
    characters, size), and that the reference answers within its limits and always alike. Others are refused
    and cost ``invalid_action_penalty``, as does an input that was tried before; they use up no try.

    ## Rewards
    ``duel`` sums to zero: 1 for the breaker and -1 for the solver when an input breaks the program, which
    ends the game; the other way round when every try has failed. A program is broken if it is wrong by
    the judge's exact comparison, crashes, hangs, or differs between two runs. Whoever submits nothing has
    lost. At the end the hidden tests decide as well: ``hidden`` takes ``hidden_weight`` from a solver that
    does not pass them all, so that at the default of 1 a wrong program earns at most 0, however weak the
    breaker. A solver that lets itself be broken, for a partner that shares its weights, takes from the solver
    what it gives to the breaker.

    When the sandbox itself fails, ``step`` raises ``SandboxFailedError``: no reward in either direction.

    ## Episode End
    Terminated when the program is broken or no try is left; truncated when a seat would be to move after
    ``max_cycles`` replies, which pays as if its tries were used up. The breaker's success is a broken
    program, the solver's one that is not broken and passes the hidden tests.

    ## Information
    As in every ``TextAECEnv``; at the end ``metrics`` also has ``broken``, ``attacks`` (valid inputs),
    ``tests_tried``, ``passed`` (the share of the hidden tests) and the problem's ``level``.

    ## Arguments
    * ``problems``, ``level``, ``operators``, ``described``: as in ``art/Coding-v0``. Problems judged by a
      unittest file are left out: they have no inputs.
    * ``tries``: how many valid inputs the breaker has.
    * ``hidden_weight``: what failing the hidden tests costs.
    * ``split``, ``max_cycles``, ``patience``, ``invalid_action_penalty``, ``render_mode``: as in every
      ``TextAECEnv``. ``actions`` can only be ``"text"``.

    ## References
    The hacking phase of programming contests. Hillis (1990), "Co-evolving parasites improve simulated
    evolution as an optimization procedure", for tests that evolve against solutions.

    ## Version History
    * v0: first version.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (PettingZoo's own)
        "name": "CodingDuel-v0",
        "render_modes": ["ansi", "human"],
        "is_parallelizable": False,
        "render_fps": 1,
    }
    seats: ClassVar[tuple[str, ...]] = (SOLVER, BREAKER)
    instructions: ClassVar[Mapping[str, str]] = {
        SOLVER: (
            "Solve a programming task in Python. You can test a program on the examples; end with submit. "
            "Then someone who sees your program looks for an input on which it is wrong, and hidden tests "
            "run. Write code as text, or in a fenced block below a line that names the tool."
        ),
        BREAKER: (
            "Someone wrote a program for a programming task. Find an input that the task allows and on which "
            "the program is wrong, crashes or hangs. Give the arguments of the call as Python literals, "
            "or the whole standard input where the program reads one."
        ),
    }
    players: ClassVar[Mapping[str, Mapping[str, Baseline]]] = {SOLVER: SOLVERS, BREAKER: BREAKERS}
    shared: ClassVar[tuple[str, ...]] = ("problems", "tries", "hidden_weight")

    def __init__(
        self,
        *,
        problems: str | PathLike[str] | Iterable[Problem] = BUILTIN,
        level: int | Iterable[int] | None = None,
        operators: int = 1,
        described: bool = True,
        tries: int = 3,
        hidden_weight: float = 1.0,
        split: str = "train",
        actions: str = "text",
        max_cycles: int = 10,
        patience: int | None = 3,
        invalid_action_penalty: float = 0.1,
        render_mode: str | None = None,
    ) -> None:
        if actions == "discrete":
            raise ValueError("actions `discrete`: programs and inputs cannot be numbered; use actions='text'")
        if tries < 1:
            raise ValueError(f"tries must be at least 1, not {tries}")
        if not 0 <= hidden_weight < float("inf"):
            raise ValueError(f"hidden_weight must be 0 or more, not {hidden_weight}")
        self.problems, tasks = _with_inputs(
            open_collection(problems, level=level, operators=operators, described=described)
        )
        self.tries = tries
        self.hidden_weight = float(hidden_weight)
        self.solution: str | None = None
        self.tried: list[str] = []
        self._skipped = 0
        self._tests_tried = 0
        super().__init__(
            tasks,
            split=split,
            actions=actions,
            max_cycles=max_cycles,
            patience=patience,
            invalid_action_penalty=invalid_action_penalty,
            render_mode=render_mode,
        )

    @property
    def problem(self) -> Problem:
        """The problem of this game, hidden cases and reference included: for scripted policies."""
        return self.problems[self.task.id]

    @property
    def tries_left(self) -> int:
        """How many inputs the breaker may still try."""
        return self.tries - len(self.tried) - self._skipped

    def begin(self, task: Task) -> str:
        """Forget the last game."""
        self.solution = None
        self.tried = []
        self._skipped = self._tests_tried = 0
        return SOLVER

    @seat(SOLVER)
    @tool
    def test(self, code: Code) -> MoveResult:
        """Try a program on the examples.

        Args:
            code: The whole program, as for submit.
        """
        if not self.problem.public:
            raise ToolError(f"this task has no examples to try; submit {wanted(self.problem)}")
        verdict = self._grade(checked_code(code), "public")
        self._tests_tried += 1
        return MoveResult({SOLVER: report(verdict)}, next=SOLVER)

    @seat(SOLVER)
    @tool
    def submit(self, code: Code) -> MoveResult:
        """Hand in your program.

        Args:
            code: The whole program.
        """
        self.solution = checked_code(code)
        return MoveResult({SOLVER: "Your program is handed in."})

    @seat(BREAKER)
    @tool
    def attack(self, arguments: Code) -> MoveResult:
        """Try an input.

        Args:
            arguments: The arguments of the call, as Python literals; or the whole standard input.
        """
        case = read_attack(self.problem, arguments)
        text = attack_text(self.problem, case)
        if text in self.tried:
            raise ToolError("this input was tried before: give another one")
        found = judge_attack(self.problem, self.solution or "", case, shared_sandbox(), self._rng())
        self.tried.append(text)
        if found.broken:
            return self._end(_broken_text(found), BREAKER)
        return self._after_try(f"The program is right: {found.result.given} gives {found.result.got}.")

    @seat(BREAKER)
    @tool
    def skip(self) -> MoveResult:
        """Let a try go by."""
        self._skipped += 1
        return self._after_try("A try went by.")

    def view(self, name: str) -> str:
        """What a seat needs to know: all of it at first, later what has changed."""
        parts = [] if self.turns[name] else [statement(self.problem)]
        if name == BREAKER:
            if not self.turns[name] and self.solution is not None:
                parts.append(f"The program:\n{self.solution}")
            parts.append(f"{self.tries_left} of {self.tries} tries left.")
        elif self.solution is None:
            parts.append(f"Submit {wanted(self.problem)}.")
        return "\n\n".join(parts)

    def choices(self, name: str) -> list[str]:
        """The move for a seat after too many invalid replies: an empty program, or a skipped try."""
        return ['submit("")'] if name == SOLVER else ["skip"]

    def on_truncation(self) -> MoveResult:
        """A solver without a submission has lost; a breaker that has broken nothing too."""
        return self._end("No turns are left.", BREAKER if self.solution is None else SOLVER)

    def picture(self) -> str:
        """The task, the program and the inputs tried."""
        program = "(no program yet)" if self.solution is None else self.solution
        return "\n\n".join([statement(self.problem), program, *self.tried])

    def _after_try(self, words: str) -> MoveResult:
        if self.tries_left:
            return MoveResult({BREAKER: words}, next=BREAKER)
        return self._end("No try has broken the program.", SOLVER).after(MoveResult({BREAKER: words}))

    def _end(self, words: str, winner: str) -> MoveResult:
        """The end of the duel, with the hidden tests' part in it."""
        solution = self.solution
        verdict = Verdict() if solution is None else self._grade(solution, "hidden")
        terms = {name: {"duel": 1.0 if name == winner else -1.0} for name in self.seats}
        if self.hidden_weight and not verdict.solved:
            terms[SOLVER]["hidden"] = -self.hidden_weight
        metrics = {
            "broken": float(winner == BREAKER and solution is not None),
            "attacks": float(len(self.tried)),
            "tests_tried": float(self._tests_tried),
            "passed": verdict.fraction,
            "level": float(self.problem.level),
        }
        success = frozenset({winner}) if winner == BREAKER or verdict.solved else frozenset[str]()
        messages = dict.fromkeys(self.seats, words)
        if solution is not None:
            messages[SOLVER] += f"\nThe program {'passes' if verdict.solved else 'fails'} the hidden tests."
        return MoveResult(messages, terms, ends=True, success=success, metrics=metrics)

    def _grade(self, code: str, which: Which) -> Verdict:
        # Judged as in ``art/Coding-v0``, where the answers of small models get less time.
        limits = SOLUTION_LIMITS if self.problem.level == 0 else None
        rng, twice = self._rng(), which == "hidden"
        verdict = grade(self.problem, code, shared_sandbox(), which, twice=twice, rng=rng, limits=limits)
        return verdict.checked()

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.np_random.integers(2**32))


def _with_inputs(collection: Collection) -> Collection:
    """The problems whose solutions are given inputs."""
    problems = collection[0].values()
    kept = [problem for problem in problems if problem.kind != "unittest"]
    if not kept:
        raise ValueError("CodingDuel needs problems of kind function or script: a unittest has no inputs")
    return collection if len(kept) == len(problems) else open_collection(kept)


def _broken_text(found: Attack) -> str:
    result = found.result
    return f"The program is broken by:\n{result.given}\nexpected: {result.expected}\ngot: {result.got}"
