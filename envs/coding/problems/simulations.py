"""Problems about machines and games that go step by step."""

from __future__ import annotations

from art_gym.envs.coding.problems.theme import Theme

THEME = Theme("simulations")


@THEME.function(
    level=1,
    public="""
    "NNE" -> (1, 2)
    "" -> (0, 0)
    """,
    hidden="""
    "N" -> (0, 1)
    "S" -> (0, -1)
    "E" -> (1, 0)
    "W" -> (-1, 0)
    "NSEW" -> (0, 0)
    "WWWSS" -> (-3, -2)
    "NNNNNNNNNNE" -> (1, 10)
    "EEWWWN" -> (-1, 1)
    "SWSWSW" -> (-3, -3)
    """,
    mutants="""
    east - moves.count("W") => east + moves.count("W")
    moves.count("S") => moves.count("s")
    return east - => return -east +
    """,
)
def walk(moves: str) -> tuple[int, int]:
    """Return where a walk of steps N, S, E and W ends: how far east and how far north of its start.

    West and south count as negative.
    """
    east, north = moves.count("E"), moves.count("N")
    return east - moves.count("W"), north - moves.count("S")


@THEME.function(
    level=1,
    public="""
    100, [-30, -80, 50] -> 120
    0, [] -> 0
    """,
    hidden="""
    10, [-10] -> 0
    10, [-11] -> 10
    0, [-1, 1] -> 1
    5, [-3, -3, 4, -3, -3] -> 0
    50, [0, -50, -1] -> 0
    7, [-8, -7, -1] -> 0
    1, [1, 1, 1] -> 4
    20, [-25, 5, -25, 1] -> 1
    """,
    mutants="""
    >= 0 => > 0
    if balance + move >= 0 => if True
    balance += move => balance = move
    """,
)
def final_balance(balance: int, moves: list[int]) -> int:
    """Return the balance of an account after its moves, in order.

    A move is paid in (positive) or taken out (negative). What would make the balance negative is refused.
    """
    for move in moves:
        if balance + move >= 0:
            balance += move
    return balance


@THEME.function(
    level=1,
    public="""
    0 -> "green"
    44 -> "red"
    30 -> "yellow"
    """,
    hidden="""
    29 -> "green"
    34 -> "yellow"
    35 -> "red"
    59 -> "red"
    60 -> "green"
    89 -> "green"
    90 -> "yellow"
    94 -> "yellow"
    95 -> "red"
    3629 -> "green"
    3631 -> "yellow"
    """,
    mutants="""
    now < 30 => now <= 30
    now < 35 => now <= 35
    seconds % 60 => seconds
    seconds % 60 => seconds % 65
    """,
)
def traffic_light(seconds: int) -> str:
    """Return what a traffic light shows after a number of seconds.

    It begins with "green" for 30 seconds, then shows "yellow" for 5 and "red" for 25, and so on for ever.
    """
    now = seconds % 60
    if now < 30:
        return "green"
    return "yellow" if now < 35 else "red"


@THEME.function(
    level=1,
    public="""
    10, 8, [5, -3, 4] -> [10, 7, 10]
    5, 0, [] -> []
    """,
    hidden="""
    10, 0, [-1] -> [0]
    10, 10, [1] -> [10]
    3, 1, [1, 1, 1, -1] -> [2, 3, 3, 2]
    100, 50, [-60, 10, 200, -5] -> [0, 10, 100, 95]
    7, 7, [-7, 7, -8, 8] -> [0, 7, 0, 7]
    1, 0, [0, 1, 0, -1] -> [0, 1, 1, 0]
    20, 5, [3, -1, 0, 14] -> [8, 7, 7, 20]
    4, 2, [-1, -1, -1, 2] -> [1, 0, 0, 2]
    """,
    mutants="""
    min(size, => (
    max(0, => (
    level + change => level - change
    """,
)
def tank_levels(size: int, level: int, changes: list[int]) -> list[int]:
    """Return the level of a tank after each change. It cannot hold more than its size nor less than 0.

    What does not fit runs over and is lost.
    """
    levels = []
    for change in changes:
        level = max(0, min(size, level + change))
        levels.append(level)
    return levels


@THEME.function(
    level=2,
    public="""
    "FFRFF" -> (2, 2)
    "LF" -> (-1, 0)
    """,
    hidden="""
    "" -> (0, 0)
    "F" -> (0, 1)
    "RRF" -> (0, -1)
    "LLLF" -> (1, 0)
    "RRRRF" -> (0, 1)
    "FRFRFRF" -> (0, 0)
    "FFLFLFRF" -> (-2, 1)
    "LRLRFF" -> (0, 2)
    "FLFLFFLFFFR" -> (2, -1)
    """,
    mutants="""
    order == "R" => order == "L"
    y + up => y - up
    x + right => x + up
    right, up = up, -right => right, up = up, right
    """,
)
def turtle(program: str) -> tuple[int, int]:
    """Return where a turtle ends that starts at (0, 0) looking up, towards (0, 1).

    "F" is a step forward, "L" a quarter turn to the left, "R" to the right.
    """
    x, y, right, up = 0, 0, 0, 1
    for order in program:
        if order == "F":
            x, y = x + right, y + up
        elif order == "R":
            right, up = up, -right
        else:
            right, up = -up, right
    return x, y


@THEME.function(
    level=2,
    public="""
    ["ann", "bob", "cy"], 2 -> "cy"
    ["solo"], 5 -> "solo"
    """,
    hidden="""
    ["a", "b"], 1 -> "b"
    ["a", "b"], 2 -> "a"
    ["a", "b", "c", "d", "e"], 2 -> "c"
    ["a", "b", "c", "d", "e"], 3 -> "d"
    ["a", "b", "c", "d", "e"], 1 -> "e"
    ["a", "b", "c", "d", "e", "f"], 7 -> "e"
    ["p", "q", "r", "s"], 100 -> "q"
    ["1", "2", "3", "4", "5", "6", "7"], 4 -> "2"
    """,
    mutants="""
    start + count - 1 => start + count
    % len(circle) => % len(names)
    len(circle) > 1 => len(circle) > 2
    """,
)
def last_in_circle(names: list[str], count: int) -> str:
    """Return who is left when people in a circle are counted out.

    Counting begins with the first and the ``count``-th leaves; it goes on with the next one, from 1 again,
    round the circle, until one is left.
    """
    circle, start = list(names), 0
    while len(circle) > 1:
        start = (start + count - 1) % len(circle)
        circle.pop(start)
    return circle[0]


@THEME.function(
    level=2,
    public="""
    [3, 2, 4], 1 -> [0, 3, 5]
    [5, 1, 1], 2 -> [0, 0, 1]
    """,
    hidden="""
    [], 3 -> []
    [4], 1 -> [0]
    [1, 1, 1, 1], 4 -> [0, 0, 0, 0]
    [1, 1, 1, 1], 2 -> [0, 0, 1, 1]
    [10, 2, 3, 3], 2 -> [0, 0, 2, 5]
    [2, 2, 2, 2, 2], 3 -> [0, 0, 0, 2, 2]
    [0, 0, 5, 1], 1 -> [0, 0, 0, 5]
    [7, 3, 9, 1, 1, 1], 3 -> [0, 0, 0, 3, 4, 5]
    """,
    mutants="""
    min(tills) => max(tills)
    waits.append(free) => waits.append(free + time)
    free + time => time
    """,
)
def waiting_times(service: list[int], count: int) -> list[int]:
    """Return how long each customer of a queue waits before being served at one of ``count`` tills.

    The list says how long it takes to serve each customer, in the order of the queue. All tills are free at
    first; the next customer always goes to the till that is free first.
    """
    tills = [0] * count
    waits = []
    for time in service:
        free = min(tills)
        waits.append(free)
        tills[tills.index(free)] = free + time
    return waits


@THEME.function(
    level=2,
    public="""
    ["write ab", "write c", "undo"] -> "ab"
    ["write abc", "erase 2", "undo", "undo"] -> ""
    """,
    hidden="""
    [] -> ""
    ["undo"] -> ""
    ["write a b"] -> "a b"
    ["write abc", "erase 5"] -> ""
    ["write abc", "erase 0"] -> "abc"
    ["write abc", "erase 0", "undo"] -> "abc"
    ["erase 3", "write x"] -> "x"
    ["write one", "erase 1", "write two", "undo", "undo"] -> "one"
    ["write a", "undo", "undo", "write b"] -> "b"
    ["write ab", "erase 1", "erase 1", "undo"] -> "a"
    """,
    mutants="""
    len(history) > 1 => len(history) > 2
    max(0, len(text) - int(argument)) => -int(argument)
    partition => rpartition
    """,
)
def edit(commands: list[str]) -> str:
    """Return the text that an editor holds after some commands; at first it is empty.

    "write …" adds what follows the first blank at the end; "erase 3" takes away the last three characters, or
    all if there are fewer; "undo" takes back the last command that is not taken back yet, if there is any.
    """
    history = [""]
    for command in commands:
        name, _, argument = command.partition(" ")
        text = history[-1]
        if name == "write":
            history.append(text + argument)
        elif name == "erase":
            history.append(text[: max(0, len(text) - int(argument))])
        elif len(history) > 1:
            history.pop()
    return history[-1]


@THEME.function(
    level=2,
    public="""
    {3: 8, 10: 2}, [3, 2] -> 2
    {}, [6, 5] -> 11
    """,
    hidden="""
    {}, [] -> 0
    {1: 20}, [1] -> 20
    {20: 4}, [20] -> 4
    {5: 15, 15: 7}, [5] -> 15
    {4: 1}, [4, 4, 4] -> 9
    {}, [19, 3] -> 19
    {}, [18, 3, 2] -> 20
    {9: 18}, [4, 5, 6, 2] -> 20
    {2: 19, 19: 1}, [2, 3, 1] -> 20
    {7: 3}, [6, 1, 4, 6, 5] -> 14
    """,
    mutants="""
    if place + throw <= 20 => if True
    place + throw <= 20 => place + throw < 20
    jumps.get(place, place) => jumps.get(throw, place)
    """,
)
def ladder_game(jumps: dict[int, int], throws: list[int]) -> int:
    """Return the field on which a player stands after some throws; there are fields 1 to 20, the start is 0.

    A throw moves that many fields on; one that would lead beyond 20 is lost. Who lands on a field that is a
    key of ``jumps`` moves to the field given there, once.
    """
    place = 0
    for throw in throws:
        if place + throw <= 20:
            place += throw
            place = jumps.get(place, place)
    return place


@THEME.function(
    level=3,
    public="""
    ["push 2", "push 3", "add"] -> 5
    ["push 1", "jump 3", "push 9", "push 4", "sub"] -> -3
    """,
    hidden="""
    ["push 7"] -> 7
    [] -> None
    ["push 3", "push 4", "mul", "push 2", "sub"] -> 10
    ["push 5", "copy", "mul"] -> 25
    ["push 0", "zero 3", "push 8"] -> None
    ["push 1", "zero 3", "push 8"] -> 8
    ["push -1", "zero 3", "push 8"] -> 8
    ["push 1", "push 2", "copy", "add"] -> 4
    ["push 4", "push 3", "push 2", "sub", "sub"] -> 3
    ["push 3", "push -1", "add", "copy", "zero 6", "jump 1", "push 42"] -> 42
    ["push -5", "push 5", "add"] -> 0
    ["push 0", "zero 2"] -> None
    ["push 2", "jump 2"] -> 2
    ["push 1", "jump 99"] -> 1
    """,
    mutants="""
    - second => + second
    stack.pop() == 0 => stack[-1] == 0
    at < len(program) => at < len(program) - 1
    if stack else None => if stack else 0
    """,
)
def run_stack(program: list[str]) -> int | None:
    """Return what lies on top of the stack after a program for a stack machine, or ``None`` if it is empty.

    "push 5" puts a number on the stack. "add", "sub" and "mul" take the two topmost numbers and put back the
    result; "sub" takes the topmost one from the one below. "copy" puts the topmost one on it once more.
    "jump 3" goes on at line 3; "zero 3" takes the topmost number and goes on at line 3 if it is 0. Lines
    count from 0; the program ends when it goes on after its last line.
    """
    stack: list[int] = []
    at = 0
    while at < len(program):
        order, _, number = program[at].partition(" ")
        at += 1
        if order == "push":
            stack.append(int(number))
        elif order == "copy":
            stack.append(stack[-1])
        elif order == "jump" or (order == "zero" and stack.pop() == 0):
            at = int(number)
        elif order in ("add", "sub", "mul"):
            second, first = stack.pop(), stack.pop()
            stack.append({"add": first + second, "sub": first - second, "mul": first * second}[order])
    return stack[-1] if stack else None


@THEME.function(
    level=3,
    public="""
    ["a", "b", "a", "c", "b"], 2 -> 1
    ["x", "x", "x"], 1 -> 2
    """,
    hidden="""
    [], 3 -> 0
    ["a"], 1 -> 0
    ["a", "b", "a", "b"], 1 -> 0
    ["a", "b", "c", "a", "b", "c"], 3 -> 3
    ["a", "b", "c", "a", "b", "c"], 2 -> 0
    ["a", "b", "a", "c", "a", "b"], 2 -> 2
    ["a", "b", "c", "b", "a", "d", "b", "a"], 3 -> 4
    ["p", "q", "p", "r", "q", "p", "p"], 2 -> 2
    ["a", "a", "b", "c", "d", "a"], 4 -> 2
    """,
    mutants="""
    shelf.remove(key) => shelf.remove(shelf[-1])
    shelf.pop(0) => shelf.pop()
    len(shelf) == size => len(shelf) > size
    """,
)
def shelf_hits(wanted: list[str], size: int) -> int:
    """Count how often what is wanted already lies on a shelf that holds ``size`` (1 or more) things.

    What is wanted is used and then lies on the shelf. If it was not there and the shelf is full, the thing
    that was not used for the longest time has to go first. The shelf is empty at first.
    """
    shelf: list[str] = []  # in the order of last use
    hits = 0
    for key in wanted:
        if key in shelf:
            hits += 1
            shelf.remove(key)
        elif len(shelf) == size:
            shelf.pop(0)
        shelf.append(key)
    return hits


@THEME.function(
    level=3,
    public="""
    {"a": 3, "b": 1, "c": 5}, 2 -> ["b", "a", "c"]
    {}, 1 -> []
    """,
    hidden="""
    {"a": 1}, 5 -> ["a"]
    {"a": 1, "b": 4, "c": 3}, 2 -> ["a", "b", "c"]
    {"a": 2, "b": 2}, 2 -> ["a", "b"]
    {"a": 3, "b": 2}, 2 -> ["b", "a"]
    {"a": 9, "b": 8, "c": 7}, 100 -> ["a", "b", "c"]
    {"a": 9, "b": 8, "c": 7}, 1 -> ["c", "b", "a"]
    {"z": 4, "y": 4, "x": 1}, 3 -> ["x", "z", "y"]
    {"a": 5, "b": 3, "c": 8, "d": 1}, 2 -> ["d", "b", "a", "c"]
    {"p": 6, "q": 6, "r": 6}, 3 -> ["p", "q", "r"]
    {"k": 7, "l": 2, "m": 4, "n": 3}, 3 -> ["l", "n", "m", "k"]
    """,
    mutants="""
    left > turn => left >= turn
    waiting.append((name, left - turn)) => waiting.insert(0, (name, left - turn))
    left - turn => left - 1
    """,
)
def finish_order(jobs: dict[str, int], turn: int) -> list[str]:
    """Return the order in which jobs are finished on a machine that works on them by turns.

    The dictionary gives for each job how long it takes (1 or more). The jobs queue up in its order. The first
    in the queue is worked on for ``turn`` units of time, or less if it is finished by then; if it is not
    finished, it goes to the end of the queue.
    """
    waiting = list(jobs.items())
    finished = []
    while waiting:
        name, left = waiting.pop(0)
        if left > turn:
            waiting.append((name, left - turn))
        else:
            finished.append(name)
    return finished


@THEME.function(
    level=3,
    public="""
    3, 5, 4 -> 6
    2, 4, 3 -> None
    """,
    hidden="""
    3, 5, 0 -> 0
    3, 5, 3 -> 1
    3, 5, 5 -> 1
    3, 5, 8 -> 2
    3, 5, 1 -> 4
    5, 3, 1 -> 4
    7, 11, 6 -> 10
    6, 9, 4 -> None
    1, 10, 7 -> 6
    4, 4, 8 -> 2
    3, 5, 9 -> None
    """,
    mutants="""
    goal in (a, b, a + b) => goal in (a, b)
    (a, second), =>
    (a, 0), =>
    goal in (a, b, a + b) => goal in (a, a + b)
    """,
)
def pour(first: int, second: int, goal: int) -> int | None:
    """Return the fewest steps to get a goal of litres with two jugs of given sizes, or ``None``.

    The goal is reached when one jug, or both together, hold exactly it. A step fills a jug, empties one, or
    pours from one into the other until the one is empty or the other full. Both jugs are empty at first.
    """
    queue, seen = [(0, 0, 0)], {(0, 0)}
    for a, b, steps in queue:
        if goal in (a, b, a + b):
            return steps
        pour = min(a, second - b)
        back = min(b, first - a)
        ways = [(first, b), (a, second), (0, b), (a, 0), (a - pour, b + pour), (a + back, b - back)]
        for way in ways:
            if way not in seen:
                seen.add(way)
                queue.append((*way, steps + 1))
    return None
