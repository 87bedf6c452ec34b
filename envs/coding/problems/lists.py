"""Problems about sequences of values."""

from __future__ import annotations

from art_gym.envs.coding.problems.theme import Theme

THEME = Theme("lists")


@THEME.function(
    level=1,
    public="""
    [1, 2, 3] -> [3, 2, 1]
    ["a", "b", "c", "d"] -> ["d", "b", "c", "a"]
    """,
    hidden="""
    [] -> []
    [5] -> [5]
    [1, 2] -> [2, 1]
    [1, 1, 2] -> [2, 1, 1]
    [[1], [2]] -> [[2], [1]]
    [0, 9, 8, 7, 1] -> [1, 9, 8, 7, 0]
    ["x", 2, None] -> [None, 2, "x"]
    [True, False] -> [False, True]
    """,
    mutants="""
    len(values) < 2 => len(values) < 3
    values[1:-1] => values[1:-1][::-1]
    [values[-1], => [values[0],
    """,
)
def swap_ends(values: list[object]) -> list[object]:
    """Return a list with its first and its last element exchanged; the given list stays as it is."""
    if len(values) < 2:
        return list(values)
    return [values[-1], *values[1:-1], values[0]]


@THEME.function(
    level=1,
    public="""
    [3, 7, 4] -> [4, -3]
    [10] -> []
    """,
    hidden="""
    [] -> []
    [1, 1] -> [0]
    [0, 5, 0, 5] -> [5, -5, 5]
    [-3, 3] -> [6]
    [3, -3] -> [-6]
    [1, 2, 4, 8, 16] -> [1, 2, 4, 8]
    [100, 50, 0, -50] -> [-50, -50, -50]
    [2, 2, 2] -> [0, 0]
    """,
    mutants="""
    values[n + 1] - values[n] => values[n] - values[n + 1]
    values[n + 1] - values[n] => abs(values[n + 1] - values[n])
    len(values) - 1 => len(values) - 2
    """,
)
def steps_between(values: list[int]) -> list[int]:
    """Return how much each number is larger than the one before it, from the second number on."""
    return [values[n + 1] - values[n] for n in range(len(values) - 1)]


@THEME.function(
    level=1,
    public="""
    [1, 3, 5], [2, 4] -> [1, 2, 3, 4, 5]
    ["a"], ["x", "y", "z"] -> ["a", "x", "y", "z"]
    """,
    hidden="""
    [], [] -> []
    [], [1] -> [1]
    [1], [] -> [1]
    [1, 2], [3, 4] -> [1, 3, 2, 4]
    [9, 8, 7], [1] -> [9, 1, 8, 7]
    [1], [9, 8, 7] -> [1, 9, 8, 7]
    [0, 0], [0, 1] -> [0, 0, 0, 1]
    ["p", "q"], ["r", "s"] -> ["p", "r", "q", "s"]
    """,
    mutants="""
    max(len(first), len(second)) => min(len(first), len(second))
    first[n : n + 1] + second[n : n + 1] => second[n : n + 1] + first[n : n + 1]
    max(len(first), len(second)) => len(first)
    """,
)
def take_turns(first: list[object], second: list[object]) -> list[object]:
    """Merge two lists by turns, beginning with the first; what is left of the longer one follows."""
    merged: list[object] = []
    for n in range(max(len(first), len(second))):
        merged += first[n : n + 1] + second[n : n + 1]
    return merged


@THEME.function(
    level=1,
    public="""
    [4, 9, 9, 7] -> 7
    [3, 3] -> None
    """,
    hidden="""
    [] -> None
    [1] -> None
    [1, 2] -> 1
    [2, 1] -> 1
    [5, 5, 5, 4] -> 4
    [-1, -2, -3] -> -2
    [0, -7, 0] -> -7
    [10, 20, 30, 40] -> 30
    [8, 1, 8, 1, 8] -> 1
    """,
    mutants="""
    sorted(set(values)) => sorted(values)
    different[-2] => different[1]
    > 1 => > 2
    """,
)
def second_largest(values: list[int]) -> int | None:
    """Return the largest number that is smaller than the largest one, or ``None`` if there is none."""
    different = sorted(set(values))
    return different[-2] if len(different) > 1 else None


@THEME.function(
    level=1,
    public="""
    [1, 2, 3, 4, 5], 2 -> [[1, 2], [3, 4], [5]]
    ["a", "b"], 3 -> [["a", "b"]]
    """,
    hidden="""
    [], 2 -> []
    [1], 1 -> [[1]]
    [1, 2, 3], 1 -> [[1], [2], [3]]
    [1, 2, 3, 4], 2 -> [[1, 2], [3, 4]]
    [1, 2, 3, 4], 4 -> [[1, 2, 3, 4]]
    [1, 2, 3, 4, 5, 6, 7], 3 -> [[1, 2, 3], [4, 5, 6], [7]]
    [0, 0, 0], 2 -> [[0, 0], [0]]
    [9, 8, 7, 6, 5], 4 -> [[9, 8, 7, 6], [5]]
    """,
    mutants="""
    start + size] => start + size - 1]
    range(0, len(values), size) => range(0, len(values) - size + 1, size)
    range(0, len(values), size) => range(0, len(values), size + 1)
    """,
)
def pages(values: list[object], size: int) -> list[list[object]]:
    """Cut a list into pages of ``size`` elements (at least 1); the last page may be shorter but not empty."""
    return [values[start : start + size] for start in range(0, len(values), size)]


@THEME.function(
    level=2,
    public="""
    [1, 3, 2, 5, 4] -> 2
    [1, 2, 2, 1] -> 1
    [5, 4, 3] -> 0
    """,
    hidden="""
    [] -> 0
    [1] -> 0
    [1, 2] -> 0
    [0, 1, 0] -> 1
    [3, 3, 3] -> 0
    [1, 2, 2, 3] -> 0
    [1, 5, 5, 5, 1, 6, 1] -> 2
    [9, 1, 9, 1, 9] -> 1
    [0, 5, 4, 3] -> 1
    [2, 2, 1, 2, 2] -> 0
    [-3, -1, -2, -2, -1, -5] -> 2
    """,
    mutants="""
    value > before => value >= before
    rising = False => pass
    count += rising => count += 1
    elif value < before => elif value <= before
    """,
)
def count_summits(heights: list[int]) -> int:
    """Count the summits of a path: places where it has gone up and next goes down.

    A flat stretch between going up and going down is one summit. The ends of the path are none.
    """
    count, rising = 0, False
    before = heights[0] if heights else 0
    for value in heights:
        if value > before:
            rising = True
        elif value < before:
            count += rising
            rising = False
        before = value
    return count


@THEME.function(
    level=2,
    public="""
    [1, 2, 5, 3, 4] -> 3
    [4, 4, 4] -> 1
    """,
    hidden="""
    [] -> 0
    [7] -> 1
    [3, 2, 1] -> 1
    [1, 2, 3, 4] -> 4
    [5, 1, 2, 3] -> 3
    [1, 2, 2, 3, 4, 5] -> 4
    [-2, -1, 0, -5, 1] -> 3
    [1, 2, 1, 2, 3, 1, 2] -> 3
    [9, 10, 1, 2, 3, 0, 1, 2, 3, 4] -> 5
    """,
    mutants="""
    > values[n - 1] => >= values[n - 1]
    else 1 => else 0
    longest = max(longest, length) => longest = length
    longest, length = 0, 0 => longest, length = 1, 0
    """,
)
def longest_climb(values: list[int]) -> int:
    """Return the length of the longest run of neighbours in which each number is larger than the one before.

    A single number is a run of length 1.
    """
    longest, length = 0, 0
    for n, value in enumerate(values):
        length = length + 1 if n and value > values[n - 1] else 1
        longest = max(longest, length)
    return longest


@THEME.function(
    level=2,
    public="""
    [1, 2, 3, 4, 5], 2 -> [4, 5, 1, 2, 3]
    ["a", "b", "c"], -1 -> ["b", "c", "a"]
    """,
    hidden="""
    [], 3 -> []
    [1], 5 -> [1]
    [1, 2], 0 -> [1, 2]
    [1, 2, 3], 3 -> [1, 2, 3]
    [1, 2, 3], 4 -> [3, 1, 2]
    [1, 2, 3], -3 -> [1, 2, 3]
    [1, 2, 3, 4], -5 -> [2, 3, 4, 1]
    [1, 2, 3, 4], 102 -> [3, 4, 1, 2]
    [7, 7, 8], 1 -> [8, 7, 7]
    """,
    mutants="""
    steps % len(values) => steps
    -steps % len(values) => steps % len(values)
    if not values => if len(values) < 3
    """,
)
def turn_round(values: list[object], steps: int) -> list[object]:
    """Move the elements of a list ``steps`` places to the right; what leaves at the end comes in in front.

    A negative number moves them to the left. It may be larger than the list.
    """
    if not values:
        return []
    cut = -steps % len(values)
    return values[cut:] + values[:cut]


@THEME.function(
    level=2,
    public="""
    [1, 4, 6], [2, 4] -> [1, 2, 4, 4, 6]
    [], [3] -> [3]
    """,
    hidden="""
    [], [] -> []
    [1], [] -> [1]
    [5], [1] -> [1, 5]
    [1, 2, 3], [4, 5, 6] -> [1, 2, 3, 4, 5, 6]
    [4, 5, 6], [1, 2, 3] -> [1, 2, 3, 4, 5, 6]
    [1, 1], [1] -> [1, 1, 1]
    [-5, 0, 5], [-6, -5, 7] -> [-6, -5, -5, 0, 5, 7]
    [1, 3, 5, 7], [2] -> [1, 2, 3, 5, 7]
    [2, 2, 9], [2, 2, 10] -> [2, 2, 2, 2, 9, 10]
    """,
    mutants="""
    + left[i:] + right[j:] => + left[i:]
    left[i] <= right[j] => left[i] >= right[j]
    + left[i:] + right[j:] => + right[j:]
    """,
)
def merge_sorted(left: list[int], right: list[int]) -> list[int]:
    """Merge two lists that are sorted already into one sorted list that keeps every element."""
    merged: list[int] = []
    i = j = 0
    while i < len(left) and j < len(right):
        if left[i] <= right[j]:
            merged.append(left[i])
            i += 1
        else:
            merged.append(right[j])
            j += 1
    return merged + left[i:] + right[j:]


@THEME.function(
    level=3,
    public="""
    [2, -3, 4, -1, 2, -5] -> (2, 4, 5)
    [-4, -2, -3] -> (1, 1, -2)
    """,
    hidden="""
    [7] -> (0, 0, 7)
    [0, 0] -> (0, 0, 0)
    [1, 2, 3] -> (0, 2, 6)
    [-1, 5] -> (1, 1, 5)
    [5, -1] -> (0, 0, 5)
    [5, -5, 5] -> (0, 0, 5)
    [3, -4, 3, -4, 4] -> (4, 4, 4)
    [-2, 1, -3, 4, -1, 2, 1, -5, 4] -> (3, 6, 6)
    [8, -19, 5, -4, 20] -> (2, 4, 21)
    [1, -1, 1, -1, 2] -> (0, 4, 2)
    [-5, -5, -5, -6] -> (0, 0, -5)
    """,
    mutants="""
    total > best[2] => total >= best[2]
    if total < 0 => if total <= 0
    best = (0, 0, values[0]) => best = (0, 0, 0)
    total, start = 0, end => total = 0
    """,
)
def best_stretch(values: list[int]) -> tuple[int, int, int]:
    """Find the stretch of neighbours with the largest sum: its first index, its last index and the sum.

    A stretch has at least one element, and the list too. Of several, the one that ends first counts; of those
    that end together, the longest.
    """
    best = (0, 0, values[0])
    total, start = 0, 0
    for end, value in enumerate(values):
        if total < 0:
            total, start = 0, end
        total += value
        if total > best[2]:
            best = (start, end, total)
    return best


@THEME.function(
    level=3,
    public="""
    [3, 1, 4, 1, 5, 9, 2, 6] -> 4
    [9, 8, 7] -> 1
    """,
    hidden="""
    [] -> 0
    [1] -> 1
    [2, 2, 2] -> 1
    [1, 2, 3] -> 3
    [10, 1, 11, 2, 12, 3] -> 3
    [10, 9, 2, 5, 3, 7, 101, 18] -> 4
    [0, 1, 0, 3, 2, 3] -> 4
    [4, 10, 4, 3, 8, 9] -> 3
    [-1, -3, -2, -2, 0] -> 3
    [1, 3, 6, 7, 9, 4, 10, 5, 6] -> 6
    """,
    mutants="""
    bisect_left => bisect_right
    place == len(ends) => place >= len(ends) - 1
    ends[place] = value => pass
    """,
)
def longest_rising(values: list[int]) -> int:
    """Return the most numbers that can be kept of a list so that each is larger than the one kept before it.

    The kept numbers stay in their order but need not be neighbours.
    """
    import bisect

    ends: list[int] = []  # ends[n]: the smallest end of a rising choice of n + 1 numbers
    for value in values:
        place = bisect.bisect_left(ends, value)
        if place == len(ends):
            ends.append(value)
        else:
            ends[place] = value
    return len(ends)


@THEME.function(
    level=3,
    public="""
    [3, 0, 2, 0, 4] -> 7
    [1, 2, 3] -> 0
    """,
    hidden="""
    [] -> 0
    [5] -> 0
    [2, 0, 2] -> 2
    [2, 0, 1] -> 1
    [1, 0, 2] -> 1
    [0, 1, 0, 2, 1, 0, 1, 3, 2, 1, 2, 1] -> 6
    [4, 2, 0, 3, 2, 5] -> 9
    [5, 4, 3, 2, 1] -> 0
    [3, 3, 0, 3, 0, 0, 1] -> 5
    [9, 0, 0, 9, 0, 8] -> 26
    """,
    mutants="""
    min(max(walls[:n]), max(walls[n + 1 :])) => max(max(walls[:n]), max(walls[n + 1 :]))
    max(walls[:n]) => walls[n - 1]
    max(0, => abs(
    range(1, len(walls) - 1) => range(1, len(walls) - 2)
    """,
)
def rain_between(walls: list[int]) -> int:
    """Return how much rain stays between walls that stand side by side, one unit wide each.

    A number is the height of a wall. Water runs off over both ends.
    """
    held = 0
    for n in range(1, len(walls) - 1):
        held += max(0, min(max(walls[:n]), max(walls[n + 1 :])) - walls[n])
    return held


@THEME.function(
    level=3,
    public="""
    [1, 2, 3] -> [1, 3, 2]
    [3, 2, 1] -> None
    """,
    hidden="""
    [] -> None
    [1] -> None
    [1, 2] -> [2, 1]
    [1, 1] -> None
    [1, 3, 2] -> [2, 1, 3]
    [2, 3, 1] -> [3, 1, 2]
    [1, 1, 5] -> [1, 5, 1]
    [1, 5, 1] -> [5, 1, 1]
    [2, 2, 1, 1] -> None
    [1, 2, 2, 1] -> [2, 1, 1, 2]
    [4, 3, 5, 5, 2, 1] -> [4, 5, 1, 2, 3, 5]
    [0, 9, 8, 7, 6] -> [6, 0, 7, 8, 9]
    """,
    mutants="""
    values[turn] >= values[turn + 1] => values[turn] > values[turn + 1]
    values[swap] <= values[turn] => values[swap] < values[turn]
    result[turn + 1 :][::-1] => result[turn + 1 :]
    turn >= 0 => turn > 0
    """,
)
def next_order(values: list[int]) -> list[int] | None:
    """Return the arrangement of the same numbers that comes next in dictionary order.

    Dictionary order compares two arrangements by the first place where they differ, smaller number first.
    After the last arrangement comes ``None``.
    """
    turn = len(values) - 2
    while turn >= 0 and values[turn] >= values[turn + 1]:
        turn -= 1
    if turn < 0:
        return None
    swap = len(values) - 1
    while values[swap] <= values[turn]:
        swap -= 1
    result = list(values)
    result[turn], result[swap] = result[swap], result[turn]
    return result[: turn + 1] + result[turn + 1 :][::-1]
