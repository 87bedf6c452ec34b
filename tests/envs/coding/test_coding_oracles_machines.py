"""The built-in problems on notations, simulations and scripts, solved a second time in another way."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy as np
import pytest

from tests.envs.coding.oracles import Oracles

oracles = Oracles("parsing", "simulations", "scripts")
oracle = oracles.add


def whole(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high))


def text(rng: np.random.Generator, letters: str, most: int = 8) -> str:
    return "".join(letters[int(n)] for n in rng.integers(len(letters), size=rng.integers(most + 1)))


def some(rng: np.random.Generator, values: list[Any], most: int = 8) -> list[Any]:
    return [values[int(n)] for n in rng.integers(len(values), size=rng.integers(most + 1))]


def formula(rng: np.random.Generator, leaves: str, joints: list[str], depth: int = 3) -> str:
    """A drawn expression with brackets in places."""
    if depth == 0 or rng.random() < 0.3:
        return leaves[whole(rng, 0, len(leaves))]
    left, right = (formula(rng, leaves, joints, depth - 1) for _ in range(2))
    joined = left + joints[whole(rng, 0, len(joints))] + right
    return f"({joined})" if rng.random() < 0.4 else joined


# --- parsing ---------------------------------------------------------------------------------------------


@oracle("parsing")
def read_settings(line: str) -> dict[str, str]:
    return dict(re.findall(r"([^;=\s]+)\s*=\s*([^;]*?)\s*(?:;|$)", line))


@oracle("parsing", lambda rng: (text(rng, "+-12 a", 4),))
def is_whole_number(value: str) -> bool:
    return re.fullmatch(r"[+-]?[0-9]+", value) is not None


@oracle("parsing", lambda rng: (text(rng, "a# \t"),))
def strip_comment(line: str) -> str:
    return re.sub(r"\s*(#.*)?\Z", "", line, count=1)


@oracle("parsing", lambda rng: tuple(".".join([*some(rng, list("0012"), 3), "0"]) for _ in range(2)))
def compare_versions(first: str, second: str) -> int:
    for a, b in itertools.zip_longest(first.split("."), second.split("."), fillvalue="0"):
        if int(a) != int(b):
            return 1 if int(a) > int(b) else -1
    return 0


@oracle("parsing", lambda rng: (text(rng, "()[]{}a", 7),))
def bracket_fault(value: str) -> int | None:
    marks = [mark if mark in "()[]{}" else " " for mark in value]
    while pair := re.search(r"\( *\)|\[ *\]|\{ *\}", "".join(marks)):
        marks[pair.start()] = marks[pair.end() - 1] = " "
    left = "".join(marks)
    closing, opening = re.search(r"[)\]}]", left), re.search(r"[(\[{]", left)
    fault = closing or opening
    return fault.start() if fault else None


@oracle("parsing")
def read_pages(value: str) -> list[int]:
    ranges = re.findall(r"(\d+)(?:-(\d+))?", value.replace(" ", ""))
    return [n for n in range(200) if any(int(first) <= n <= int(last or first) for first, last in ranges)]


@oracle("parsing")
def read_fields(line: str) -> list[str]:
    return next(csv.reader([line], quotechar="'"), [""]) or [""]


@oracle("parsing", lambda rng: (text(rng, "abXY"),))
def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


@oracle("parsing")
def fill_in(value: str, values: dict[str, str]) -> str:
    marks = {"{{": "{", "}}": "}"}
    return re.sub(r"\{\{|\}\}|\{(\w+)\}", lambda found: marks.get(found[0], values.get(found[1], "")), value)


@oracle("parsing", lambda rng: (formula(rng, "0123456789", ["+", "-", "*"]),))
def calculate(value: str) -> int:
    result: int = eval(value)
    return result


@oracle("parsing")
def unpack(value: str) -> str:
    while packed := re.search(r"(\d+)\[([a-z]*)\]", value):  # innermost brackets first
        value = value[: packed.start()] + int(packed[1]) * packed[2] + value[packed.end() :]
    return value


@oracle("parsing")
def read_nested(value: str) -> list[object]:
    read: list[object] = json.loads(value)
    return read


@oracle(
    "parsing",
    lambda rng: (formula(rng, "abc", [" and ", " or ", " and not "]), {n: rng.random() < 0.5 for n in "abc"}),
)
def holds(condition: str, facts: dict[str, bool]) -> bool:
    return bool(eval(condition, None, facts))


# --- simulations -----------------------------------------------------------------------------------------


@oracle("simulations", lambda rng: (text(rng, "NSEW"),))
def walk(moves: str) -> tuple[int, int]:
    place = sum((({"N": 1j, "S": -1j, "E": 1, "W": -1})[move] for move in moves), 0j)
    return int(place.real), int(place.imag)


@oracle("simulations", lambda rng: (whole(rng, 0, 9), some(rng, list(range(-9, 10)))))
def final_balance(balance: int, moves: list[int]) -> int:
    if not moves:
        return balance
    after = balance + moves[0]
    return final_balance(balance if after < 0 else after, moves[1:])


@oracle("simulations", lambda rng: (whole(rng, 0, 500),))
def traffic_light(seconds: int) -> str:
    shown = itertools.cycle(["green"] * 30 + ["yellow"] * 5 + ["red"] * 25)
    return next(itertools.islice(shown, seconds, None))


@oracle("simulations", lambda rng: (9, whole(rng, 0, 10), some(rng, list(range(-9, 10)))))
def tank_levels(size: int, level: int, changes: list[int]) -> list[int]:
    levels = []
    for change in changes:
        for _ in range(abs(change)):
            if 0 <= level + np.sign(change) <= size:
                level += int(np.sign(change))
        levels.append(level)
    return levels


@oracle("simulations", lambda rng: (text(rng, "FFLR"),))
def turtle(program: str) -> tuple[int, int]:
    place, heading = 0j, 1j
    for order in program:
        heading *= {"L": 1j, "R": -1j, "F": 1}[order]
        place += heading * (order == "F")
    return int(place.real), int(place.imag)


@oracle("simulations", lambda rng: (list("abcdefg")[: whole(rng, 1, 8)], whole(rng, 1, 9)))
def last_in_circle(names: list[str], count: int) -> str:
    circle = deque(names)
    while len(circle) > 1:
        circle.rotate(1 - count)
        circle.popleft()
    return circle[0]


@oracle("simulations", lambda rng: (some(rng, [0, 1, 2, 3, 7]), whole(rng, 1, 4)))
def waiting_times(service: list[int], count: int) -> list[int]:
    ends: list[int] = []  # when each customer so far is done
    for n, time in enumerate(service):
        begin = next(now for now in itertools.count() if sum(end > now for end in ends) < count)
        begin = max(begin, max((end - service[k] for k, end in enumerate(ends)), default=0))
        ends.append(begin + time)
        assert len(ends) == n + 1
    return [end - time for end, time in zip(ends, service, strict=True)]


COMMANDS = ["write ab", "write c d", "erase 1", "erase 3", "erase 0", "undo"]


@oracle("simulations", lambda rng: (some(rng, COMMANDS),))
def edit(commands: list[str]) -> str:
    kept: list[str] = []
    for command in commands:
        kept = kept[:-1] if command == "undo" else [*kept, command]
    written: list[str] = []
    for command in kept:
        if command.startswith("write "):
            written += command[6:]
        else:
            written = written[: max(0, len(written) - int(command[6:]))]
    return "".join(written)


@oracle("simulations", lambda rng: ({3: 8, 8: 2, 12: 19, 20: 1}, some(rng, [1, 2, 3, 4, 5, 6])))
def ladder_game(jumps: dict[int, int], throws: list[int]) -> int:
    table = [[jumps.get(n + t, n + t) if n + t <= 20 else n for t in range(30)] for n in range(21)]
    place = 0
    for throw in throws:
        place = table[place][throw]
    return place


@oracle("simulations")
def run_stack(program: list[str]) -> int | None:
    def step(at: int, stack: tuple[int, ...]) -> tuple[int, tuple[int, ...]]:
        match program[at].split(), stack:
            case ["push", number], _:
                return at + 1, (*stack, int(number))
            case ["copy"], (*rest, top):
                return at + 1, (*rest, top, top)
            case ["jump", line], _:
                return int(line), stack
            case ["zero", line], (*rest, 0):
                return int(line), tuple(rest)
            case ["zero", _], (*rest, _):
                return at + 1, tuple(rest)
            case ["add"], (*rest, a, b):
                return at + 1, (*rest, a + b)
            case ["sub"], (*rest, a, b):
                return at + 1, (*rest, a - b)
            case ["mul"], (*rest, a, b):
                return at + 1, (*rest, a * b)
        raise AssertionError(program[at])

    at, stack = 0, ()
    while at < len(program):
        at, stack = step(at, stack)
    return stack[-1] if stack else None


@oracle("simulations", lambda rng: (some(rng, list("abcd"), 12), whole(rng, 1, 4)))
def shelf_hits(wanted: list[str], size: int) -> int:
    shelf: OrderedDict[str, None] = OrderedDict()
    hits = 0
    for key in wanted:
        hits += key in shelf
        shelf[key] = None
        shelf.move_to_end(key)
        if len(shelf) > size:
            shelf.popitem(last=False)
    return hits


@oracle("simulations", lambda rng: ({name: whole(rng, 1, 12) for name in "abcd"}, whole(rng, 1, 6)))
def finish_order(jobs: dict[str, int], turn: int) -> list[str]:
    rounds = {name: -(-time // turn) for name, time in jobs.items()}
    return sorted(jobs, key=lambda name: rounds[name])  # those of the same round in the order of the queue


@oracle("simulations", lambda rng: (whole(rng, 1, 7), whole(rng, 1, 7), whole(rng, 0, 13)))
def pour(first: int, second: int, goal: int) -> int | None:
    def after(a: int, b: int) -> set[tuple[int, int]]:
        ways = {(first, b), (a, second), (0, b), (a, 0)}
        for litre in range(1, max(first, second) + 1):  # pouring stops where the other is full, or at the end
            if a >= litre and b + litre <= second and (a == litre or b + litre == second):
                ways.add((a - litre, b + litre))
            if b >= litre and a + litre <= first and (b == litre or a + litre == first):
                ways.add((a + litre, b - litre))
        return ways

    reached = {(0, 0)}
    for steps in range((first + 1) * (second + 1) + 1):
        if any(goal in (a, b, a + b) for a, b in reached):
            return steps
        reached |= {state for a, b in reached for state in after(a, b)}
    return None


# --- scripts: from standard input to standard output -----------------------------------------------------


@oracle("scripts")
def add_up(stdin: str) -> str:
    count, *numbers = map(int, re.findall(r"-?\d+", stdin))
    return f"{sum(itertools.islice(numbers, count))}\n"


@oracle("scripts")
def backwards(stdin: str) -> str:
    lines: deque[str] = deque()
    for line in stdin.removesuffix("\n").split("\n"):
        lines.appendleft(line + "\n")
    return "".join(lines)


@oracle("scripts")
def count_text(stdin: str) -> str:
    lines = stdin.count("\n") + (stdin != "" and not stdin.endswith("\n"))
    words = len(re.findall(r"\S+", stdin))
    return f"{lines} line{'s' * (lines != 1)}, {words} word{'s' * (words != 1)}\n"


@oracle("scripts")
def times_table(stdin: str) -> str:
    number, count = map(int, stdin.split())
    multiples = itertools.accumulate([number] * count)
    return " ".join(map(str, multiples)) + "\n"


@oracle("scripts")
def letter_bars(stdin: str) -> str:
    counts = [(stdin.lower().count(letter), letter) for letter in "abcdefghijklmnopqrstuvwxyz"]
    counts.sort(key=lambda pair: -pair[0])  # keeps the alphabetical order
    return "".join(f"{letter} {'#' * count}\n" for count, letter in counts if count)


@oracle("scripts")
def receipt(stdin: str) -> str:
    rows = [line.split() for line in stdin.splitlines()]
    costs = [(name, int(count) * round(100 * float(price))) for count, name, price in rows]
    costs.append(("total", sum(cents for _, cents in costs)))
    return "".join(f"{name} {cents / 100:.2f}\n" for name, cents in costs)


@oracle("scripts")
def stretch_sums(stdin: str) -> str:
    (_, queries), numbers, *pairs = (list(map(int, line.split())) for line in stdin.splitlines())
    sums = [0, *itertools.accumulate(numbers)]
    assert len(pairs) == queries
    return "".join(f"{sums[last] - sums[first - 1]}\n" for first, last in pairs)


@oracle("scripts")
def memory(stdin: str) -> str:
    lines = stdin.splitlines()
    shown = ""
    for n, line in enumerate(lines):
        if line.startswith("show "):
            past = [before.split() for before in lines[:n] if before.split()[1] == line.split()[1]]
            value: int | None = None
            for command, _, *number in past:
                if command in ("set", "drop"):
                    value = int(number[0]) if number else None
                elif command == "add":
                    value = (value or 0) + int(number[0])
            shown += f"{'unknown' if value is None else value}\n"
    return shown


@oracle("scripts")
def outline(stdin: str) -> str:
    paths = [tuple(path.split("/")) for path in stdin.split()]
    every = sorted({path[:n] for path in paths for n in range(1, len(path) + 1)})
    return "".join("  " * (len(path) - 1) + path[-1] + "\n" for path in every)


@oracle("scripts")
def word_ladder(stdin: str) -> str:
    start, goal, words = stdin.split("\n")[:3]
    reached = {start}
    for steps in range(len(words.split()) + 1):
        if goal in reached:
            return f"{steps}\n"
        near = {word[:n] + "?" + word[n + 1 :] for word in reached for n in range(len(word))}
        reached |= {w for w in words.split() if any(w[:n] + "?" + w[n + 1 :] in near for n in range(len(w)))}
    return "no way\n"


@oracle("scripts")
def emergency(stdin: str) -> str:
    waiting: list[tuple[int, int, str]] = []
    called = ""
    for n, line in enumerate(stdin.splitlines()):
        match line.split():
            case ["arrive", name, urgency]:
                waiting.append((-int(urgency), n, name))
            case ["leave", name]:
                waiting = [each for each in waiting if each[2] != name]
            case ["next"]:
                waiting.sort()
                called += f"{waiting.pop(0)[2] if waiting else 'nobody'}\n"
    return called


@oracle("scripts")
def rucksack(stdin: str) -> str:
    room, *rows = stdin.splitlines()
    things = [tuple(map(int, row.split())) for row in rows]
    packs = (pack for size in range(len(things) + 1) for pack in itertools.combinations(things, size))
    return f"{max(sum(v for _, v in pack) for pack in packs if sum(w for w, _ in pack) <= int(room))}\n"


@oracle("scripts")
def siding(stdin: str) -> str:
    rows = [tuple(map(int, line.split())) for line in stdin.splitlines()]

    def orders(coming: tuple[int, ...], inside: tuple[int, ...]) -> set[tuple[int, ...]]:
        if not coming and not inside:
            return {()}
        found = orders(coming[1:], (*inside, coming[0])) if coming else set()
        return found | ({(inside[-1], *rest) for rest in orders(coming, inside[:-1])} if inside else set())

    possible = orders(rows[1], ())
    assert all(Counter(order) == Counter(rows[1]) for order in possible)
    return "".join("yes\n" if row in possible else "no\n" for row in rows[3:])


# --- the comparison --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", oracles.problems)
def test_the_expected_values_are_those_of_another_solution(name: str) -> None:
    oracles.check_cases(name)


@pytest.mark.parametrize("name", oracles.draws)
def test_the_reference_agrees_with_another_solution_on_drawn_inputs(name: str) -> None:
    oracles.check_drawn(name)
