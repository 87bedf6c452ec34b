"""Problems about things that are linked: graphs, trees, orders."""

from __future__ import annotations

from art_gym.envs.coding.problems.theme import Theme

THEME = Theme("graphs")


@THEME.function(
    level=1,
    public="""
    [("a", "b"), ("b", "c")] -> {"a": 1, "b": 2, "c": 1}
    [] -> {}
    """,
    hidden="""
    [("x", "y")] -> {"x": 1, "y": 1}
    [("b", "a"), ("c", "a"), ("d", "a")] -> {"b": 1, "a": 3, "c": 1, "d": 1}
    [("a", "b"), ("a", "b")] -> {"a": 2, "b": 2}
    [("a", "a")] -> {"a": 2}
    [("a", "b"), ("b", "a")] -> {"a": 2, "b": 2}
    [("p", "q"), ("r", "s")] -> {"p": 1, "q": 1, "r": 1, "s": 1}
    [("1", "2"), ("2", "3"), ("3", "1")] -> {"1": 2, "2": 2, "3": 2}
    [("a", "b"), ("c", "c"), ("b", "c")] -> {"a": 1, "b": 2, "c": 3}
    """,
    mutants="""
    (a, b) => {a, b}
    (a, b) => (a,)
    count.get(place, 0) => count.get(place, 1)
    """,
)
def road_ends(roads: list[tuple[str, str]]) -> dict[str, int]:
    """Count how many road ends there are in each place, given the two places that each road joins.

    A road from a place to itself has both its ends there.
    """
    count: dict[str, int] = {}
    for a, b in roads:
        for place in (a, b):
            count[place] = count.get(place, 0) + 1
    return count


@THEME.function(
    level=1,
    public="""
    [("ann", "bob"), ("bob", "ann"), ("bob", "cy")] -> [("ann", "bob")]
    [] -> []
    """,
    hidden="""
    [("a", "b")] -> []
    [("a", "a")] -> []
    [("b", "a"), ("a", "b")] -> [("a", "b")]
    [("a", "b"), ("a", "b")] -> []
    [("a", "b"), ("b", "c"), ("c", "a")] -> []
    [("c", "d"), ("d", "c"), ("b", "a"), ("a", "b")] -> [("a", "b"), ("c", "d")]
    [("x", "y"), ("y", "x"), ("x", "z"), ("z", "x"), ("y", "z")] -> [("x", "y"), ("x", "z")]
    [("a", "b"), ("b", "a"), ("b", "a"), ("a", "b")] -> [("a", "b")]
    """,
    mutants="""
    a < b => a <= b
    a < b and => a != b and
    (b, a) in pairs => (a, b) in pairs
    """,
)
def mutual_follows(follows: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Given who follows whom, return the pairs of people who follow each other.

    Each pair is listed once, the names in it and the pairs in alphabetical order. Nobody makes a pair alone.
    """
    pairs = set(follows)
    return sorted({(a, b) for a, b in pairs if a < b and (b, a) in pairs})


@THEME.function(
    level=1,
    public="""
    {"ann": "zoe", "bob": "zoe", "zoe": None} -> ["ann", "bob"]
    {"solo": None} -> ["solo"]
    """,
    hidden="""
    {} -> []
    {"a": None, "b": "a"} -> ["b"]
    {"a": None, "b": "a", "c": "b"} -> ["c"]
    {"d": "a", "c": "a", "b": "a", "a": None} -> ["b", "c", "d"]
    {"x": None, "y": None} -> ["x", "y"]
    {"b": "a", "a": None, "c": "a", "e": "c", "d": "c"} -> ["b", "d", "e"]
    {"k": "m", "l": "k", "m": None, "n": "l"} -> ["n"]
    {"one": None, "two": "one", "six": "two", "ten": "two"} -> ["six", "ten"]
    """,
    mutants="""
    not in => in
    sorted(name for name in boss if name not in bosses) => [name for name in boss if name not in bosses]
    if name not in bosses => if name not in bosses and boss[name]
    """,
)
def without_reports(boss: dict[str, str | None]) -> list[str]:
    """Given each person's boss, return the sorted names of those who are nobody's boss.

    At the top a person's boss is ``None``.
    """
    bosses = set(boss.values())
    return sorted(name for name in boss if name not in bosses)


@THEME.function(
    level=2,
    public="""
    {"a": ["b"], "b": ["c"], "c": []}, "b" -> ["b", "c"]
    {"a": ["a"]}, "a" -> ["a"]
    """,
    hidden="""
    {"a": []}, "a" -> ["a"]
    {"a": ["b", "c"], "b": ["a"], "c": ["d"], "d": []}, "a" -> ["a", "b", "c", "d"]
    {"a": ["b"], "b": ["a"], "c": ["a"]}, "a" -> ["a", "b"]
    {"a": ["b"], "b": ["a"], "c": ["a"]}, "c" -> ["a", "b", "c"]
    {"z": ["y"], "y": ["x"], "x": ["z"]}, "y" -> ["x", "y", "z"]
    {"a": ["gone"]}, "a" -> ["a", "gone"]
    {"a": ["b"], "b": ["c"], "c": ["d"], "d": ["b"], "e": ["f"], "f": []}, "a" -> ["a", "b", "c", "d"]
    {"e": ["f"], "f": [], "a": ["e"]}, "f" -> ["f"]
    """,
    mutants="""
    links.get(page, []) => links.get(start, [])
    {start} => set()
    sorted(seen) => sorted(seen, reverse=True)
    """,
)
def can_reach(links: dict[str, list[str]], start: str) -> list[str]:
    """Return the pages one can get to from a page by following links, itself included, sorted.

    Pages that are linked to but not listed have no links.
    """
    seen, waiting = {start}, [start]
    while waiting:
        page = waiting.pop()
        for near in links.get(page, []):
            if near not in seen:
                seen.add(near)
                waiting.append(near)
    return sorted(seen)


@THEME.function(
    level=2,
    public="""
    6, [(0, 1), (1, 2), (3, 4)] -> [3, 2, 1]
    2, [] -> [1, 1]
    """,
    hidden="""
    0, [] -> []
    1, [(0, 0)] -> [1]
    3, [(0, 1), (1, 2), (2, 0)] -> [3]
    4, [(0, 3), (1, 2)] -> [2, 2]
    5, [(4, 3), (3, 2), (2, 1), (1, 0)] -> [5]
    7, [(5, 6), (0, 5), (1, 2), (2, 1)] -> [3, 2, 1, 1]
    8, [(0, 1), (2, 3), (4, 5), (6, 7), (1, 3), (5, 7)] -> [4, 4]
    6, [(0, 1), (2, 3), (3, 1), (4, 5), (0, 2)] -> [4, 2]
    """,
    mutants="""
    if team[person] == old => if person == b
    reverse=True => reverse=False
    range(count) => range(1, count)
    """,
)
def team_sizes(count: int, ties: list[tuple[int, int]]) -> list[int]:
    """Return the sizes of the teams of people 0 to ``count`` - 1, largest first.

    People who are tied are in the same team, and so are those tied over others.
    """
    team = {person: person for person in range(count)}
    for a, b in ties:
        old, new = team[b], team[a]
        for person in team:
            if team[person] == old:
                team[person] = new
    numbers = list(team.values())
    return sorted((numbers.count(number) for number in set(numbers)), reverse=True)


@THEME.function(
    level=2,
    public="""
    [-1, 0, 0, 1] -> 3
    [-1] -> 1
    """,
    hidden="""
    [-1, 0] -> 2
    [-1, 0, 1, 2, 3] -> 5
    [1, 2, 3, -1] -> 4
    [-1, 0, 0, 0, 0] -> 2
    [4, 4, 4, 4, -1] -> 2
    [2, 0, -1, 0] -> 3
    [-1, 0, 0, 1, 1, 2, 2, 5] -> 4
    [3, -1, 1, 2] -> 4
    """,
    mutants="""
    depth = 0 => depth = 1
    max( => min(
    max(level(node) for node in range(len(parents))) => level(len(parents) - 1)
    """,
)
def tree_depth(parents: list[int]) -> int:
    """Return how many levels a tree has, given the number of each node's parent (-1 for the root).

    A root alone is one level.
    """

    def level(node: int) -> int:
        depth = 0
        while node != -1:
            node = parents[node]
            depth += 1
        return depth

    return max(level(node) for node in range(len(parents)))


@THEME.function(
    level=2,
    public="""
    {"a": "c", "b": "c", "c": "d"}, "a", "b" -> "c"
    {"a": "b"}, "a", "b" -> "b"
    """,
    hidden="""
    {}, "x", "x" -> "x"
    {}, "x", "y" -> None
    {"a": "b"}, "b", "a" -> "b"
    {"a": "b", "b": "c", "x": "y"}, "a", "x" -> None
    {"a": "b", "b": "c", "c": "d", "e": "d"}, "a", "e" -> "d"
    {"a": "b", "b": "c", "e": "b", "f": "e"}, "f", "a" -> "b"
    {"a": "m", "b": "m", "m": "n", "n": "o"}, "a", "n" -> "n"
    {"p": "q", "q": "r", "s": "r"}, "p", "p" -> "p"
    {"k": "l", "l": "m", "m": "n", "o": "m", "r": "o"}, "k", "r" -> "m"
    """,
    mutants="""
    line = [first] => line = [boss.get(first, first)]
    while second not in line => if second not in line
    return None => return line[-1]
    """,
)
def common_boss(boss: dict[str, str], first: str, second: str) -> str | None:
    """Return the lowest person who stands above or is both of two people, or ``None`` if there is none.

    The dictionary gives each person's boss; who is not in it has none. Going up, everybody is above whom one
    comes from.
    """
    line = [first]
    while line[-1] in boss:
        line.append(boss[line[-1]])
    while second not in line:
        if second not in boss:
            return None
        second = boss[second]
    return second


@THEME.function(
    level=2,
    public="""
    {"a": ["b"], "b": ["a"]} -> True
    {"a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"]} -> False
    """,
    hidden="""
    {} -> True
    {"a": []} -> True
    {"a": ["a"]} -> False
    {"a": ["b"], "b": ["a", "c"], "c": ["b"]} -> True
    {"a": ["b", "d"], "b": ["a", "c"], "c": ["b", "d"], "d": ["c", "a"]} -> True
    {"a": ["b", "e"], "b": ["a", "c"], "c": ["b", "d"], "d": ["c", "e"], "e": ["d", "a"]} -> False
    {"x": ["y"], "y": ["x"], "a": ["b", "c"], "b": ["a", "c"], "c": ["a", "b"]} -> False
    {"a": ["x", "y"], "b": ["x", "y"], "x": ["a", "b"], "y": ["a", "b"], "z": []} -> True
    """,
    mutants="""
    side[near] == side[guest] => False
    1 - side[guest] => side[guest]
    for first in dislikes => for first in list(dislikes)[:1]
    """,
)
def two_tables(dislikes: dict[str, list[str]]) -> bool:
    """Whether guests can sit at two tables so that nobody sits with somebody they dislike.

    Dislike is always mutual, and listed for both. Who dislikes themselves cannot be seated.
    """
    side: dict[str, int] = {}
    for first in dislikes:
        waiting = [] if first in side else [first]
        side.setdefault(first, 0)
        while waiting:
            guest = waiting.pop()
            for near in dislikes[guest]:
                if near not in side:
                    side[near] = 1 - side[guest]
                    waiting.append(near)
                elif side[near] == side[guest]:
                    return False
    return True


@THEME.function(
    level=3,
    public="""
    {"shirt": [], "tie": ["shirt"], "belt": []} -> ["belt", "shirt", "tie"]
    {"a": ["b"], "b": ["a"]} -> None
    """,
    hidden="""
    {} -> []
    {"a": []} -> ["a"]
    {"a": ["a"]} -> None
    {"c": [], "b": [], "a": []} -> ["a", "b", "c"]
    {"a": ["c"], "b": [], "c": []} -> ["b", "c", "a"]
    {"a": ["z"], "b": [], "z": []} -> ["b", "z", "a"]
    {"d": ["b", "c"], "b": ["a"], "c": ["a"], "a": []} -> ["a", "b", "c", "d"]
    {"a": ["d"], "b": ["a"], "c": ["b"], "d": ["c"], "e": []} -> None
    {"x": [], "a": ["x"], "m": [], "b": ["m", "a"]} -> ["m", "x", "a", "b"]
    """,
    mutants="""
    min(ready) => max(ready)
    set(needs[task]) <= set(order) => needs[task][:1] <= order[:1]
    task not in order and => task not in order[-1:] and
    return None => break
    """,
)
def work_order(needs: dict[str, list[str]]) -> list[str] | None:
    """Return an order for tasks in which each comes after all those it needs, or ``None`` if there is none.

    Of all such orders take the one that at each place has the task that is first in alphabetical order among
    those that could be done next.
    """
    order: list[str] = []
    while len(order) < len(needs):
        ready = [task for task in needs if task not in order and set(needs[task]) <= set(order)]
        if not ready:
            return None
        order.append(min(ready))
    return order


@THEME.function(
    level=3,
    public="""
    [("a", "b", 4), ("b", "c", 1), ("a", "c", 7)], "a", "c" -> (5, ["a", "b", "c"])
    [("a", "b", 2)], "a", "z" -> None
    """,
    hidden="""
    [], "a", "a" -> (0, ["a"])
    [], "a", "b" -> None
    [("a", "b", 3)], "b", "a" -> (3, ["b", "a"])
    [("a", "b", 9), ("a", "b", 2)], "a", "b" -> (2, ["a", "b"])
    [("a", "b", 1), ("b", "c", 1), ("c", "d", 1), ("a", "d", 4)], "a", "d" -> (3, ["a", "b", "c", "d"])
    [("a", "b", 1), ("b", "d", 5), ("a", "c", 3), ("c", "d", 1)], "d", "a" -> (4, ["d", "c", "a"])
    [("a", "b", 10), ("a", "c", 1), ("c", "d", 1), ("d", "b", 1), ("b", "e", 1)], "a", "e" -> (4, ["a",
    "c", "d", "b", "e"])
    [("k", "l", 0), ("l", "m", 0), ("k", "m", 1)], "k", "m" -> (0, ["k", "l", "m"])
    [("p", "q", 6), ("q", "r", 6), ("p", "r", 11), ("r", "s", 1)], "p", "s" -> (12, ["p", "r", "s"])
    """,
    mutants="""
    heapq.heappop(heap) => heap.pop(0)
    (b, a, length) =>
    length + more => max(length, more)
    [*way, near] => [near, *way]
    """,
)
def shortest_way(roads: list[tuple[str, str, int]], start: str, goal: str) -> tuple[int, list[str]] | None:
    """Return the length of the shortest way between two places and the places on it, or ``None``.

    A road joins two places both ways and has a length of 0 or more. There is never more than one shortest
    way in the tests. From a place to itself the way is 0 long.
    """
    import heapq

    both = [road for a, b, length in roads for road in ((a, b, length), (b, a, length))]
    heap, seen = [(0, [start])], set()
    while heap:
        length, way = heapq.heappop(heap)
        if way[-1] == goal:
            return length, way
        if way[-1] in seen:
            continue
        seen.add(way[-1])
        for place, near, more in both:
            if place == way[-1]:
                heapq.heappush(heap, (length + more, [*way, near]))
    return None


@THEME.function(
    level=3,
    public="""
    4, [(0, 1, 5), (1, 2, 1), (0, 2, 2), (2, 3, 7)] -> 10
    3, [(0, 1, 4)] -> None
    """,
    hidden="""
    1, [] -> 0
    2, [] -> None
    2, [(0, 1, 3), (0, 1, 2)] -> 2
    3, [(0, 1, 1), (1, 2, 1), (0, 2, 1)] -> 2
    3, [(0, 0, 1), (1, 2, 2), (0, 1, 3)] -> 5
    5, [(0, 1, 1), (2, 3, 1), (0, 2, 9), (1, 3, 8), (3, 4, 2), (0, 4, 10)] -> 12
    4, [(0, 1, 1), (2, 3, 1)] -> None
    6, [(0, 1, 7), (0, 2, 3), (1, 2, 1), (1, 3, 2), (2, 4, 8), (3, 4, 2), (3, 5, 3), (4, 5, 3)] -> 11
    4, [(0, 1, 10), (1, 2, 10), (2, 3, 10), (3, 0, 1), (0, 2, 4)] -> 15
    """,
    mutants="""
    key=lambda line: line[2] => key=lambda line: -line[2]
    if group[a] == group[b] => if a == b
    == 1 else None => >= 1 else None
    """,
)
def cheapest_net(houses: int, lines: list[tuple[int, int, int]]) -> int | None:
    """Return the least cost of lines that join all houses 0, 1, 2, … into one net, or ``None``.

    A line (house, house, cost) may be built or not. There is at least one house; one alone needs no line.
    """
    group = list(range(houses))
    cost = 0
    for a, b, price in sorted(lines, key=lambda line: line[2]):
        if group[a] == group[b]:
            continue
        cost += price
        group = [group[a] if each == group[b] else each for each in group]
    return cost if len(set(group)) == 1 else None


@THEME.function(
    level=3,
    public="""
    {"a": ["b"], "b": ["c"], "c": ["a"], "d": []} -> True
    {"a": ["b", "c"], "b": ["c"], "c": []} -> False
    """,
    hidden="""
    {} -> False
    {"a": []} -> False
    {"a": ["a"]} -> True
    {"a": ["b"], "b": ["a"]} -> True
    {"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": []} -> False
    {"a": ["b"], "b": [], "c": ["d"], "d": ["e"], "e": ["c"]} -> True
    {"a": ["b", "c", "d"], "b": ["c", "d"], "c": ["d"], "d": []} -> False
    {"a": ["b"], "b": ["c"], "c": ["d"], "d": ["b"]} -> True
    {"d": [], "c": ["d"], "b": ["c"], "a": ["b", "d"]} -> False
    """,
    mutants="""
    if part in above => if part in done
    {*above, part} => {part}
    for name in parts => for name in list(parts)[:1]
    """,
)
def has_circle(parts: dict[str, list[str]]) -> bool:
    """Whether anything contains itself, directly or through what it contains.

    The dictionary lists what each thing contains; everything that is contained is a key of it too.
    """
    done: set[str] = set()

    def waits(of: str, above: set[str]) -> bool:
        for part in parts[of]:
            if part in above:
                return True
            if part not in done and waits(part, {*above, part}):
                return True
        done.add(of)
        return False

    return any(waits(name, {name}) for name in parts)


@THEME.function(
    level=3,
    public="""
    4, [(0, 1), (1, 2), (2, 0), (2, 3)] -> [(2, 3)]
    3, [(0, 1), (1, 2), (2, 0)] -> []
    """,
    hidden="""
    1, [] -> []
    2, [(1, 0)] -> [(0, 1)]
    2, [(0, 1), (0, 1)] -> []
    4, [(3, 2), (2, 1), (1, 0)] -> [(0, 1), (1, 2), (2, 3)]
    6, [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 3), (0, 3)] -> [(0, 3)]
    5, [(0, 1), (2, 3)] -> [(0, 1), (2, 3)]
    7, [(0, 1), (1, 2), (2, 3), (3, 1), (3, 4), (4, 5), (5, 6), (6, 4)] -> [(0, 1), (3, 4)]
    3, [(0, 0), (0, 1)] -> [(0, 1)]
    5, [(4, 0), (0, 2), (2, 4), (4, 1), (1, 3), (3, 4)] -> []
    """,
    mutants="""
    (min(a, b), max(a, b)) => (a, b)
    if n != closed => if roads[n] != roads[closed]
    sorted(vital) => vital[:1]
    """,
)
def vital_roads(places: int, roads: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the roads without which two places that were joined would not be any more.

    Places are numbered from 0. Each road is returned as (smaller, larger), all of them sorted. There may be
    several roads between the same places, and places that are not joined.
    """
    vital = []
    for closed, (a, b) in enumerate(roads):
        reached, waiting = {a}, [a]
        while waiting:
            place = waiting.pop()
            for n, ends in enumerate(roads):
                if n != closed and place in ends:
                    near = ends[0] + ends[1] - place
                    if near not in reached:
                        reached.add(near)
                        waiting.append(near)
        if b not in reached:
            vital.append((min(a, b), max(a, b)))
    return sorted(vital)
