"""The built-in problems on times, grids and graphs, solved a second time in another way."""

from __future__ import annotations

import datetime
import itertools
from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from tests.envs.coding.oracles import Oracles

oracles = Oracles("times", "grids", "graphs")
oracle = oracles.add


def whole(rng: np.random.Generator, low: int, high: int) -> int:
    return int(rng.integers(low, high))


def spans(rng: np.random.Generator, most: int = 5, end: int = 10) -> list[tuple[int, int]]:
    """Intervals of length 1 or more."""
    starts = [whole(rng, 0, end - 1) for _ in range(whole(rng, 0, most + 1))]
    return [(start, whole(rng, start + 1, end + 1)) for start in starts]


def field(rng: np.random.Generator, marks: str, rows: int = 4, columns: int = 4) -> list[str]:
    shape = (whole(rng, 1, rows + 1), whole(rng, 1, columns + 1))
    return ["".join(marks[int(n)] for n in row) for row in rng.integers(len(marks), size=shape)]


def plot(rng: np.random.Generator, low: int = 0, high: int = 9) -> list[list[int]]:
    table: list[list[int]] = rng.integers(low, high, size=(whole(rng, 1, 5), whole(rng, 1, 5))).tolist()
    return table


def links(rng: np.random.Generator, places: str = "abcde", share: float = 0.3) -> dict[str, list[str]]:
    return {place: [other for other in places if rng.random() < share] for place in places}


# --- times -----------------------------------------------------------------------------------------------


@oracle("times")
def minutes_until(now: str, then: str) -> int:
    clock = datetime.datetime.strptime(now, "%H:%M")
    passed = 0
    while clock.strftime("%H:%M") != then:
        clock += datetime.timedelta(minutes=1)
        passed += 1
    return passed


@oracle("times", lambda rng: ((whole(rng, 0, 5), whole(rng, 5, 9)), (whole(rng, 0, 6), whole(rng, 6, 9))))
def overlap(a: tuple[int, int], b: tuple[int, int]) -> int:
    return len(set(range(*a)) & set(range(*b)))


@oracle("times")
def is_open(hour: int, opens: int, closes: int) -> bool:
    now = opens
    while now != closes:
        if now == hour:
            return True
        now = (now + 1) % 24
    return False


@oracle("times", lambda rng: (whole(rng, 0, 90_000),))
def spell_duration(seconds: int) -> str:
    minutes, rest = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    written = f" {hours}h {minutes}m {rest}s"
    for nothing in (" 0h", " 0m", " 0s"):
        written = written.replace(nothing, "")
    return written.strip() or "0s"


@oracle("times", lambda rng: (spans(rng),))
def merge_bookings(bookings: list[tuple[int, int]]) -> list[tuple[int, int]]:
    while True:
        for a, b in itertools.combinations(bookings, 2):
            if a[0] <= b[1] and b[0] <= a[1]:
                rest = list(bookings)
                rest.remove(a)
                rest.remove(b)
                bookings = [*rest, (min(a[0], b[0]), max(a[1], b[1]))]
                break
        else:
            return sorted(bookings)


@oracle("times", lambda rng: (spans(rng), 2, 9, whole(rng, 1, 4)))
def free_slots(busy: list[tuple[int, int]], opens: int, closes: int, least: int) -> list[tuple[int, int]]:
    free = "".join(" x"[not any(start <= hour < end for start, end in busy)] for hour in range(opens, closes))
    slots, hour = [], opens
    for is_free, run in itertools.groupby(free):
        length = len(list(run))
        if is_free == "x" and length >= least:
            slots.append((hour, hour + length))
        hour += length
    return slots


@oracle("times")
def day_of_year(year: int, month: int, day: int) -> int:
    return datetime.date(year, month, day).timetuple().tm_yday


@oracle("times", lambda rng: (spans(rng),))
def most_guests(visits: list[tuple[int, int]]) -> int:
    return max(Counter(n for came, went in visits for n in range(came, went)).values(), default=0)


@oracle("times")
def done_at(start: str, minutes: int, breaks: list[str]) -> str:
    def times() -> Iterable[str]:
        return (f"{n // 60:02}:{n % 60:02}" for n in range(24 * 60))

    pauses = [pause.split("-") for pause in breaks]
    working = [time for time in times() if time >= start and not any(a <= time < b for a, b in pauses)]
    if minutes == 0:
        return working[0]
    last = working[minutes - 1]
    return next(time for time in times() if time > last)


@oracle("times", lambda rng: (spans(rng),))
def most_talks(talks: list[tuple[int, int]]) -> int:
    return max(len(plan) for plan in plans(talks))


def plans(jobs: list[Any]) -> list[tuple[Any, ...]]:
    """All choices of jobs (start, end, …) of which no two are at the same time."""
    every = [choice for size in range(len(jobs) + 1) for choice in itertools.combinations(jobs, size)]
    if len(jobs) > 12:
        raise ValueError("too many to try them all")
    apart = lambda a, b: a[1] <= b[0] or b[1] <= a[0]  # noqa: E731
    return [plan for plan in every if all(apart(a, b) for a, b in itertools.combinations(plan, 2))]


@oracle("times", lambda rng: (spans(rng), whole(rng, 0, 9)))
def fewest_lamps(lamps: list[tuple[int, int]], length: int) -> int | None:
    street = {half / 2 for half in range(2 * length)}
    for count in range(len(lamps) + 1):
        for chosen in itertools.combinations(lamps, count):
            if street <= {half / 2 for start, end in chosen for half in range(2 * start, 2 * end)}:
                return count
    return None


@oracle("times", lambda rng: ([(*span, whole(rng, 0, 9)) for span in spans(rng)],))
def best_pay(jobs: list[tuple[int, int, int]]) -> int:
    return max(sum(pay for _, _, pay in plan) for plan in plans(jobs))


@oracle("times", lambda rng: (whole(rng, 1600, 2500), whole(rng, 1, 13), whole(rng, 1, 29)))
def weekday(year: int, month: int, day: int) -> str:
    return datetime.date(year, month, day).strftime("%A")


# --- grids -----------------------------------------------------------------------------------------------


@oracle("grids", lambda rng: (plot(rng),))
def columns_to_rows(grid: list[list[Any]]) -> list[list[Any]]:
    return [[row[n] for row in grid] for n in range(len(grid[0]))] if grid else []


@oracle("grids", lambda rng: (field(rng, "ab"), "a"))
def count_marks(rows: list[str], mark: str) -> int:
    return Counter(itertools.chain.from_iterable(rows))[mark]


@oracle("grids", lambda rng: (plot(rng),))
def is_square(grid: list[list[int]]) -> bool:
    return [len(row) for row in grid] == [len(grid)] * len(grid)


@oracle("grids", lambda rng: (rng.integers(9, size=(3, 3)).tolist(),))
def diagonal_sums(grid: list[list[int]]) -> tuple[int, int]:
    table = np.array(grid, dtype=int).reshape(len(grid), len(grid))
    return int(np.trace(table)), int(np.trace(np.fliplr(table)))


@oracle("grids", lambda rng: (plot(rng), whole(rng, -6, 7)))
def turn_grid(grid: list[list[Any]], turns: int) -> list[list[Any]]:
    turned: list[list[Any]] = np.rot90(np.array(grid, dtype=object), -turns).tolist()
    return turned


def around(rows: list[str], r: int, c: int, mark: str) -> int:
    near = [(r + down, c + right) for down in (-1, 0, 1) for right in (-1, 0, 1) if down or right]
    return sum(0 <= r < len(rows) and 0 <= c < len(rows[r]) and rows[r][c] == mark for r, c in near)


@oracle("grids", lambda rng: (field(rng, ".*"),))
def mine_counts(rows: list[str]) -> list[str]:
    return [
        "".join("*" if mark == "*" else str(around(rows, r, c, "*")) for c, mark in enumerate(row))
        for r, row in enumerate(rows)
    ]


@oracle("grids", lambda rng: (plot(rng),))
def read_spiral(grid: list[list[int]]) -> list[int]:
    left = {(r, c): value for r, row in enumerate(grid) for c, value in enumerate(row)}
    r, c, down, right, spiral = 0, -1, 0, 1, []
    while left:
        if (r + down, c + right) not in left:
            down, right = right, -down
        r, c = r + down, c + right
        spiral.append(left.pop((r, c)))
    return spiral


@oracle("grids", lambda rng: (field(rng, "o.#", 5),))
def let_fall(rows: list[str]) -> list[str]:
    cells = [list(row) for row in rows]
    for _ in rows:
        for r, c in itertools.product(range(len(cells) - 1), range(len(cells[0]) if cells else 0)):
            if cells[r][c] == "o" and cells[r + 1][c] == ".":
                cells[r][c], cells[r + 1][c] = ".", "o"
    return ["".join(row) for row in cells]


@oracle("grids", lambda rng: (field(rng, "#."),))
def next_generation(rows: list[str]) -> list[str]:
    alive = {2: "#", 3: "#"}, {3: "#"}
    return [
        "".join(alive[mark == "."].get(around(rows, r, c, "#"), ".") for c, mark in enumerate(row))
        for r, row in enumerate(rows)
    ]


@oracle("grids", lambda rng: (field(rng, "#."),))
def island_sizes(rows: list[str]) -> list[int]:
    number = {(r, c): (r, c) for r, row in enumerate(rows) for c, mark in enumerate(row) if mark == "#"}
    for _ in range(len(number)):
        for r, c in number:
            near = [(r, c), (r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)]
            number[r, c] = min(number[place] for place in near if place in number)
    return sorted(Counter(number.values()).values())


def steps_on(cells: dict[tuple[int, int], int], start: tuple[int, int]) -> dict[tuple[int, int], int]:
    """The cost of the cheapest way to each cell that can be reached, paying for each cell entered."""
    best = {start: 0}
    for _ in cells:
        for r, c in cells:
            near = [(r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)]
            costs = [best[place] + cells[r, c] for place in near if place in best]
            best |= {(r, c): min([*costs, best.get((r, c), costs[0])])} if costs else {}
    return best


def maze(rng: np.random.Generator) -> tuple[list[str]]:
    rows = [[".", "."], *map(list, field(rng, "..#", 4, 2))]
    cells = [(r, c) for r, row in enumerate(rows) for c in range(len(row))]
    for mark, place in zip("SE", rng.permutation(len(cells))[:2], strict=True):
        r, c = cells[int(place)]
        rows[r][c] = mark
    return (["".join(row).ljust(2, "#") for row in rows],)


@oracle("grids", maze)
def way_out(rows: list[str]) -> int | None:
    cells = {(r, c): mark for r, row in enumerate(rows) for c, mark in enumerate(row) if mark != "#"}
    start, end = (next(place for place, mark in cells.items() if mark == wanted) for wanted in "SE")
    return steps_on(dict.fromkeys(cells, 1), start).get(end)


@oracle("grids", lambda rng: (plot(rng),))
def easiest_walk(grid: list[list[int]]) -> int:
    cells = {(r, c): toll for r, row in enumerate(grid) for c, toll in enumerate(row)}
    return grid[0][0] + steps_on(cells, (0, 0))[max(cells)]


@oracle("grids", lambda rng: (field(rng, "...#", 4, 5),))
def largest_plot(rows: list[str]) -> int:
    best = 0
    for top, bottom in itertools.combinations(range(len(rows) + 1), 2):
        for left, right in itertools.combinations(range(len(rows[0]) + 1), 2):
            if all(set(row[left:right]) == {"."} for row in rows[top:bottom]):
                best = max(best, (bottom - top) * (right - left))
    return best


# --- graphs ----------------------------------------------------------------------------------------------


@oracle("graphs")
def road_ends(roads: list[tuple[str, str]]) -> dict[str, int]:
    return dict(Counter(itertools.chain(*roads)))


@oracle("graphs")
def mutual_follows(follows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    names = sorted({name for pair in follows for name in pair})
    return [(a, b) for a, b in itertools.combinations(names, 2) if (a, b) in follows and (b, a) in follows]


@oracle("graphs")
def without_reports(boss: dict[str, str | None]) -> list[str]:
    return sorted(name for name in boss if list(boss.values()).count(name) == 0)


def closure(names: Iterable[Any], steps: Iterable[tuple[Any, Any]]) -> set[tuple[Any, Any]]:
    """The pairs of which the second can be got to from the first, each from itself too (Warshall)."""
    names = list(names)
    pairs = {(name, name) for name in names} | set(steps)
    for via, a, b in itertools.product(names, repeat=3):
        if (a, via) in pairs and (via, b) in pairs:
            pairs.add((a, b))
    return pairs


@oracle("graphs", lambda rng: (links(rng), "a"))
def can_reach(pages: dict[str, list[str]], start: str) -> list[str]:
    names = {*pages, *itertools.chain(*pages.values())}
    reached = closure(names, [(page, near) for page, nears in pages.items() for near in nears])
    return sorted(name for name in names if (start, name) in reached)


@oracle("graphs", lambda rng: (6, [tuple(pair) for pair in rng.integers(6, size=(4, 2)).tolist()]))
def team_sizes(count: int, ties: list[tuple[int, int]]) -> list[int]:
    tied = closure(range(count), [pair for a, b in ties for pair in ((a, b), (b, a))])
    teams = {frozenset(other for other in range(count) if (one, other) in tied) for one in range(count)}
    return sorted(map(len, teams))[::-1]


@oracle("graphs", lambda rng: ([-1, *(whole(rng, 0, n) for n in range(1, 7))],))
def tree_depth(parents: list[int]) -> int:
    level, depth = {-1}, 0
    while level := {node for node, parent in enumerate(parents) if parent in level}:
        depth += 1
    return depth


@oracle(
    "graphs",
    lambda rng: ({a: b for a, b in zip("abcdef", "bcdefg", strict=True) if rng.random() < 0.8}, "a", "c"),
)
def common_boss(boss: dict[str, str], first: str, second: str) -> str | None:
    names = {first, second, *boss, *boss.values()}
    above = closure(names, boss.items())
    both = [name for name in names if (first, name) in above and (second, name) in above]
    return next((name for name in both if all((name, other) in above for other in both)), None)


def mutual(rng: np.random.Generator) -> tuple[dict[str, list[str]]]:
    pairs = [pair for pair in itertools.combinations("abcde", 2) if rng.random() < 0.35]
    return ({name: [a if b == name else b for a, b in pairs if name in (a, b)] for name in "abcde"},)


@oracle("graphs", mutual)
def two_tables(dislikes: dict[str, list[str]]) -> bool:
    names = list(dislikes)
    seatings = (
        dict(zip(names, seats, strict=True)) for seats in itertools.product((0, 1), repeat=len(names))
    )
    return any(all(at[a] != at[b] for a, others in dislikes.items() for b in others) for at in seatings)


@oracle("graphs", lambda rng: (links(rng, "abcd", 0.2),))
def work_order(needs: dict[str, list[str]]) -> list[str] | None:
    orders = map(list, itertools.permutations(sorted(needs)))  # in dictionary order
    good = (o for o in orders if all(set(needs[task]) <= set(o[:n]) for n, task in enumerate(o)))
    return next(good, None)


def roads_between(rng: np.random.Generator) -> list[tuple[str, str, int]]:
    """Roads whose lengths are powers of two, so that no two ways are of the same length."""
    pairs = [pair for pair in itertools.combinations("abcde", 2) if rng.random() < 0.6]
    lengths = rng.permutation(len(pairs))
    return [(a, b, 2 ** int(power)) for (a, b), power in zip(pairs, lengths, strict=True)]


@oracle("graphs", lambda rng: (roads_between(rng), "a", "e"))
def shortest_way(roads: list[tuple[str, str, int]], start: str, goal: str) -> tuple[int, list[str]] | None:
    lengths: dict[tuple[str, str], int] = {}
    for a, b, length in roads:
        lengths[a, b] = lengths[b, a] = min(length, lengths.get((a, b), length))
    between = sorted({name for pair in lengths for name in pair} - {start, goal})
    ways = [[start]] if start == goal else []
    for size in range(len(between) + 1):
        ways += [[start, *stops, goal] for stops in itertools.permutations(between, size)]
    steps = [(list(itertools.pairwise(way)), way) for way in ways]
    good = [(sum(map(lengths.__getitem__, s)), way) for s, way in steps if set(s) <= set(lengths)]
    return min(good, default=None)


@oracle("graphs", lambda rng: (4, [(*map(int, rng.integers(4, size=2)), whole(rng, 1, 9)) for _ in range(6)]))
def cheapest_net(houses: int, lines: list[tuple[int, int, int]]) -> int | None:
    costs = []
    for built in itertools.chain(*(itertools.combinations(lines, n) for n in range(len(lines) + 1))):
        joined = closure(range(houses), [pair for a, b, _ in built for pair in ((a, b), (b, a))])
        if len(joined) == houses**2:
            costs.append(sum(cost for _, _, cost in built))
    return min(costs, default=None)


@oracle("graphs", lambda rng: (links(rng, share=0.2),))
def has_circle(parts: dict[str, list[str]]) -> bool:
    inside = closure(parts, [(whole_, part) for whole_, inner in parts.items() for part in inner])
    return any((part, whole_) in inside for whole_, inner in parts.items() for part in inner)


@oracle("graphs", lambda rng: (5, [tuple(pair) for pair in rng.integers(5, size=(5, 2)).tolist()]))
def vital_roads(places: int, roads: list[tuple[int, int]]) -> list[tuple[int, int]]:
    def joined(some: list[tuple[int, int]]) -> int:
        return len(closure(range(places), [pair for a, b in some for pair in ((a, b), (b, a))]))

    without = [(road, [*roads[:n], *roads[n + 1 :]]) for n, road in enumerate(roads)]
    vital = [tuple(sorted(road)) for road, rest in without if joined(rest) < joined(roads)]
    return sorted((a, b) for a, b in vital)


# --- the comparison --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", oracles.problems)
def test_the_expected_values_are_those_of_another_solution(name: str) -> None:
    oracles.check_cases(name)


@pytest.mark.parametrize("name", oracles.draws)
def test_the_reference_agrees_with_another_solution_on_drawn_inputs(name: str) -> None:
    oracles.check_drawn(name)
