"""Problems about grids: rows of numbers or of marks."""

from __future__ import annotations

from art_gym.envs.coding.problems.theme import Theme

THEME = Theme("grids")


@THEME.function(
    level=1,
    public="""
    [[1, 2], [3, 4], [5, 6]] -> [[1, 3, 5], [2, 4, 6]]
    [[7]] -> [[7]]
    """,
    hidden="""
    [] -> []
    [[1, 2, 3]] -> [[1], [2], [3]]
    [[1], [2], [3]] -> [[1, 2, 3]]
    [["a", "b"], ["c", "d"]] -> [["a", "c"], ["b", "d"]]
    [[1, 2, 3], [4, 5, 6], [7, 8, 9]] -> [[1, 4, 7], [2, 5, 8], [3, 6, 9]]
    [[0, 0, 1], [0, 1, 0]] -> [[0, 0], [0, 1], [1, 0]]
    [[1, 1], [2, 2], [3, 3], [4, 4]] -> [[1, 2, 3, 4], [1, 2, 3, 4]]
    [[True, False]] -> [[True], [False]]
    """,
    mutants="""
    list(column) => column
    zip(*grid, strict=True) => zip(*grid[::-1], strict=True)
    zip(*grid, strict=True) => grid
    """,
)
def columns_to_rows(grid: list[list[object]]) -> list[list[object]]:
    """Return a grid whose rows are the columns of the given one, from left to right."""
    return [list(column) for column in zip(*grid, strict=True)]


@THEME.function(
    level=1,
    public="""
    ["#.#", "..#"], "#" -> 3
    [], "x" -> 0
    """,
    hidden="""
    ["..."], "#" -> 0
    ["#"], "#" -> 1
    ["##", "##"], "#" -> 4
    ["aA", "Aa"], "a" -> 2
    ["x", "x", "x"], "x" -> 3
    ["abc", "bcd", "cde"], "c" -> 3
    [".#.", "#.#", ".#."], "." -> 5
    ["", ""], "y" -> 0
    ["ssss", "tsts"], "s" -> 6
    """,
    mutants="""
    row.count(mark) => (mark in row)
    for row in rows => for row in rows[:-1]
    row.count(mark) => row.lower().count(mark)
    """,
)
def count_marks(rows: list[str], mark: str) -> int:
    """Count how often a mark (one character) occurs in a field of rows."""
    return sum(row.count(mark) for row in rows)


@THEME.function(
    level=1,
    public="""
    [[2, 7], [9, 5]] -> True
    [[1, 2, 3], [4, 5, 6]] -> False
    """,
    hidden="""
    [] -> True
    [[1]] -> True
    [[]] -> False
    [[1], [2]] -> False
    [[1, 2], [3]] -> False
    [[1, 2, 3], [4, 5], [7, 8, 9]] -> False
    [[1, 2, 3], [4, 5, 6], [7, 8, 9]] -> True
    [[0, 0], [0, 0, 0]] -> False
    [[1, 2], [3, 4], [5, 6]] -> False
    [[1, 2], [3, 4, 5], []] -> False
    """,
    mutants="""
    all( => any(
    len(row) == len(grid) => len(row) == len(grid[0])
    for row in grid => for row in grid[:1]
    """,
)
def is_square(grid: list[list[int]]) -> bool:
    """Whether every row of a grid has as many cells as the grid has rows. A grid without rows is square."""
    return all(len(row) == len(grid) for row in grid)


@THEME.function(
    level=1,
    public="""
    [[1, 2], [3, 4]] -> (5, 5)
    [[7]] -> (7, 7)
    """,
    hidden="""
    [] -> (0, 0)
    [[1, 0, 0], [0, 1, 0], [0, 0, 1]] -> (3, 1)
    [[0, 0, 1], [0, 1, 0], [1, 0, 0]] -> (1, 3)
    [[1, 2, 3], [4, 5, 6], [7, 8, 9]] -> (15, 15)
    [[2, 0], [0, 3]] -> (5, 0)
    [[0, 4], [-1, 0]] -> (0, 3)
    [[1, 2, 3, 4], [5, 6, 7, 8], [9, 1, 2, 3], [4, 5, 6, 8]] -> (17, 16)
    [[-1, -2], [-3, -5]] -> (-6, -5)
    """,
    mutants="""
    row[-n - 1] => row[-n]
    row[-n - 1] => row[n]
    row[n] => row[0]
    """,
)
def diagonal_sums(grid: list[list[int]]) -> tuple[int, int]:
    """Return the sums of the two diagonals of a square grid, first the one that begins at the top left."""
    falling = sum(row[n] for n, row in enumerate(grid))
    rising = sum(row[-n - 1] for n, row in enumerate(grid))
    return falling, rising


@THEME.function(
    level=2,
    public="""
    [[1, 2], [3, 4]], 1 -> [[3, 1], [4, 2]]
    [[1, 2, 3]], -1 -> [[3], [2], [1]]
    """,
    hidden="""
    [[5]], 3 -> [[5]]
    [[1, 2], [3, 4]], 0 -> [[1, 2], [3, 4]]
    [[1, 2], [3, 4]], 2 -> [[4, 3], [2, 1]]
    [[1, 2], [3, 4]], 4 -> [[1, 2], [3, 4]]
    [[1, 2], [3, 4]], -3 -> [[3, 1], [4, 2]]
    [[1, 2, 3], [4, 5, 6]], 1 -> [[4, 1], [5, 2], [6, 3]]
    [[1, 2, 3], [4, 5, 6]], 3 -> [[3, 6], [2, 5], [1, 4]]
    [[1, 2, 3], [4, 5, 6]], 10 -> [[6, 5, 4], [3, 2, 1]]
    [["a"], ["b"]], -5 -> [["a", "b"]]
    """,
    mutants="""
    turns % 4 => abs(turns) % 4
    turns % 4 => turns
    zip(*grid[::-1], strict=True) => zip(*grid, strict=True)
    """,
)
def turn_grid(grid: list[list[object]], turns: int) -> list[list[object]]:
    """Turn a grid by quarters of a circle to the right, or to the left for a negative number of turns."""
    for _ in range(turns % 4):
        grid = [list(column) for column in zip(*grid[::-1], strict=True)]
    return grid


@THEME.function(
    level=2,
    public="""
    ["*..", "...", "..*"] -> ["*10", "121", "01*"]
    ["."] -> ["0"]
    """,
    hidden="""
    [] -> []
    ["*"] -> ["*"]
    ["***"] -> ["***"]
    ["*.*"] -> ["*2*"]
    ["*", ".", "*"] -> ["*", "2", "*"]
    ["***", "*.*", "***"] -> ["***", "*8*", "***"]
    ["....", ".**.", "...."] -> ["1221", "1**1", "1221"]
    ["..", ".."] -> ["00", "00"]
    ["*...*", ".....", "*...*"] -> ["*101*", "22022", "*101*"]
    """,
    mutants="""
    rows[max(0, r - 1) : r + 2] => rows[r - 1 : r + 2]
    near[max(0, c - 1) : c + 2] => near[max(0, c - 1) : c + 1]
    if mark == "*" => if False
    """,
)
def mine_counts(rows: list[str]) -> list[str]:
    """Replace each free cell "." of a mine field by the number of mines "*" in the eight cells around it.

    Mines stay as they are.
    """
    counted = []
    for r, row in enumerate(rows):
        line = ""
        for c, mark in enumerate(row):
            mines = sum(near[max(0, c - 1) : c + 2].count("*") for near in rows[max(0, r - 1) : r + 2])
            line += "*" if mark == "*" else str(mines)
        counted.append(line)
    return counted


@THEME.function(
    level=2,
    public="""
    [[1, 2, 3], [4, 5, 6], [7, 8, 9]] -> [1, 2, 3, 6, 9, 8, 7, 4, 5]
    [[1, 2], [3, 4], [5, 6]] -> [1, 2, 4, 6, 5, 3]
    """,
    hidden="""
    [] -> []
    [[8]] -> [8]
    [[1, 2, 3, 4]] -> [1, 2, 3, 4]
    [[1], [2], [3]] -> [1, 2, 3]
    [[1, 2], [3, 4]] -> [1, 2, 4, 3]
    [[1, 2, 3], [4, 5, 6]] -> [1, 2, 3, 6, 5, 4]
    [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]] -> [1, 2, 3, 4, 8, 12, 11, 10, 9, 5, 6, 7]
    [[1, 2, 3], [4, 5, 6], [7, 8, 9], [10, 11, 12]] -> [1, 2, 3, 6, 9, 12, 11, 10, 7, 4, 5, 8]
    [[1, 2, 3, 4], [12, 13, 14, 5], [11, 16, 15, 6], [10, 9, 8, 7]] -> [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11,
    12, 13, 14, 15, 16]
    """,
    mutants="""
    [::-1] =>
    grid[1:] => grid[2:]
    spiral += grid[0] => spiral += grid[0][::-1]
    """,
)
def read_spiral(grid: list[list[int]]) -> list[int]:
    """Read a grid in a spiral: the top row to the right, then down, to the left and up, and so on inwards."""
    spiral: list[int] = []
    while grid:
        spiral += grid[0]
        grid = [list(column) for column in zip(*grid[1:], strict=True)][::-1]
    return spiral


@THEME.function(
    level=2,
    public="""
    ["o.o", ".#.", "..."] -> ["...", ".#.", "o.o"]
    ["o", "#", "."] -> ["o", "#", "."]
    """,
    hidden="""
    [] -> []
    ["o"] -> ["o"]
    ["o", "."] -> [".", "o"]
    ["o", "o", "."] -> [".", "o", "o"]
    ["o", ".", "#", "o", "."] -> [".", "o", "#", ".", "o"]
    ["oo.", "...", "#.o"] -> ["...", "o..", "#oo"]
    ["ooo", "ooo"] -> ["ooo", "ooo"]
    ["o.#", ".o.", "#..", "..."] -> ["..#", "o..", "#..", ".o."]
    ["o", ".", "o", ".", "#", "o", "o", "."] -> [".", ".", "o", "o", "#", ".", "o", "o"]
    """,
    mutants="""
    sorted(part) => sorted(part, reverse=True)
    split("#") => split("o")
    "".join(column).split("#") => ["".join(column)]
    """,
)
def let_fall(rows: list[str]) -> list[str]:
    """Let the stones "o" of a field fall down as far as they can; return the field after that.

    Below is the next row. Stones fall through "." and stop on a wall "#", on a stone or at the bottom. Walls
    do not move.
    """
    columns = [
        "#".join("".join(sorted(part)) for part in "".join(column).split("#"))
        for column in zip(*rows, strict=True)
    ]
    return ["".join(row) for row in zip(*columns, strict=True)]


@THEME.function(
    level=2,
    public="""
    ["...", "###", "..."] -> [".#.", ".#.", ".#."]
    ["..", ".#"] -> ["..", ".."]
    """,
    hidden="""
    [] -> []
    ["#"] -> ["."]
    ["##", "##"] -> ["##", "##"]
    ["###", "###", "###"] -> ["#.#", "...", "#.#"]
    ["#.#", "...", "#.#"] -> ["...", "...", "..."]
    [".#.", "..#", "###"] -> ["...", "#.#", ".##"]
    ["##.", "#..", "..."] -> ["##.", "##.", "..."]
    ["....", ".##.", ".##.", "...."] -> ["....", ".##.", ".##.", "...."]
    ["##..", "##..", "..##", "..##"] -> ["##..", "#...", "...#", "..##"]
    ["#####"] -> [".###."]
    """,
    mutants="""
    around in (2, 3) => around in (1, 2, 3)
    else around == 3 => else around in (2, 3)
    - (mark == "#") =>
    """,
)
def next_generation(rows: list[str]) -> list[str]:
    """Return the next generation of cells, "#" being alive and "." dead; outside of the field all is dead.

    A live cell with two or three live cells among the eight around it lives on. A dead cell with exactly
    three becomes alive. All others are dead in the next generation.
    """
    after = []
    for r, row in enumerate(rows):
        line = ""
        for c, mark in enumerate(row):
            block = [near[max(0, c - 1) : c + 2] for near in rows[max(0, r - 1) : r + 2]]
            around = "".join(block).count("#") - (mark == "#")
            line += "#" if (around in (2, 3) if mark == "#" else around == 3) else "."
        after.append(line)
    return after


@THEME.function(
    level=3,
    public="""
    ["##.", "..#", "#.#"] -> [1, 2, 2]
    ["..."] -> []
    """,
    hidden="""
    [] -> []
    ["#"] -> [1]
    ["#.#"] -> [1, 1]
    ["##", "##"] -> [4]
    ["#.", ".#"] -> [1, 1]
    ["#####", "#...#", "#.#.#", "#...#", "#####"] -> [1, 16]
    ["#.#.#", "#.#.#", "###.#"] -> [3, 7]
    ["..#..", ".###.", "..#.."] -> [5]
    ["#..", "##.", ".#.", ".##"] -> [6]
    ["##..##", "..##.."] -> [2, 2, 2]
    """,
    mutants="""
    (r, c + 1)): => (r, c + 1), (r - 1, c - 1), (r + 1, c + 1)):
    (r - 1, c), =>
    sorted(sizes) => sorted(set(sizes))
    [land.pop()], 0 => [land.pop()], 1
    """,
)
def island_sizes(rows: list[str]) -> list[int]:
    """Return the sizes of the islands of a map, sorted. "#" is land.

    Cells of an island are joined above, below, to the left and to the right, not across corners.
    """
    land = {(r, c) for r, row in enumerate(rows) for c, mark in enumerate(row) if mark == "#"}
    sizes = []
    while land:
        stack, size = [land.pop()], 0
        while stack:
            r, c = stack.pop()
            size += 1
            for near in ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)):
                if near in land:
                    land.remove(near)
                    stack.append(near)
        sizes.append(size)
    return sorted(sizes)


@THEME.function(
    level=3,
    public="""
    ["S..", "##.", "E.."] -> 6
    ["S#E"] -> None
    """,
    hidden="""
    ["SE"] -> 1
    ["S", ".", ".", "E"] -> 3
    ["S.#", "..#", "##E"] -> None
    ["S...E"] -> 4
    ["E.#.", "..#.", "....", "##.S"] -> 6
    ["S.......", "########", ".......E"] -> None
    [".....", ".S#..", ".###.", "..#E.", "....."] -> 8
    ["S.#...", "..#.#.", "......", ".####.", "......", "#####E"] -> 10
    ["S.", "#.", "E."] -> 4
    ["..E..", ".....", "..S.."] -> 2
    """,
    mutants="""
    != "#" => == "."
    queue.pop(0) => queue.pop()
    steps + 1 => steps + 2
    (0, -1), =>
    """,
)
def way_out(maze: list[str]) -> int | None:
    """Return the fewest steps from "S" to "E" in a maze, or ``None`` if there is no way.

    A step goes up, down, to the left or to the right, not into a wall "#" and not out of the maze.
    """
    start = next((r, row.index("S")) for r, row in enumerate(maze) if "S" in row)
    queue, seen = [(start, 0)], {start}
    while queue:
        (r, c), steps = queue.pop(0)
        if maze[r][c] == "E":
            return steps
        for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            near = (r + down, c + right)
            inside = 0 <= near[0] < len(maze) and 0 <= near[1] < len(maze[0])
            if inside and near not in seen and maze[near[0]][near[1]] != "#":
                seen.add(near)
                queue.append((near, steps + 1))
    return None


@THEME.function(
    level=3,
    public="""
    [[1, 9, 1], [1, 9, 1], [1, 1, 1]] -> 5
    [[5]] -> 5
    """,
    hidden="""
    [[1, 2, 3]] -> 6
    [[1], [2], [3]] -> 6
    [[0, 0], [0, 0]] -> 0
    [[1, 3, 1], [1, 5, 1], [4, 2, 1]] -> 7
    [[1, 9, 1, 1, 1], [1, 9, 1, 9, 1], [1, 1, 1, 9, 1]] -> 11
    [[1, 1, 1], [9, 9, 1], [1, 1, 1], [1, 9, 9], [1, 1, 1]] -> 11
    [[2, 8, 1], [2, 8, 1], [2, 2, 8]] -> 16
    [[9, 1], [1, 9]] -> 19
    [[1, 20, 1, 1, 1, 20], [1, 20, 1, 20, 1, 20], [1, 1, 1, 20, 1, 1]] -> 12
    """,
    mutants="""
    (-1, 0), =>
    heap = [(grid[0][0], 0, 0)] => heap = [(0, 0, 0)]
    heapq.heappop(heap) => heap.pop()
    """,
)
def easiest_walk(grid: list[list[int]]) -> int:
    """Return the least toll for a walk from the top left to the bottom right cell of a grid.

    Each cell costs its number, 0 or more, when entered; the first cell costs too. A step goes up, down, to
    the left or to the right.
    """
    import heapq

    heap = [(grid[0][0], 0, 0)]
    seen: set[tuple[int, int]] = set()
    while True:
        toll, r, c = heapq.heappop(heap)
        if (r, c) == (len(grid) - 1, len(grid[0]) - 1):
            return toll
        if (r, c) in seen:
            continue
        seen.add((r, c))
        for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            if 0 <= r + down < len(grid) and 0 <= c + right < len(grid[0]):
                heapq.heappush(heap, (toll + grid[r + down][c + right], r + down, c + right))


@THEME.function(
    level=3,
    public="""
    ["..#", "...", "#.."] -> 4
    ["##"] -> 0
    """,
    hidden="""
    [] -> 0
    ["."] -> 1
    ["...."] -> 4
    [".", ".", "#", "."] -> 2
    ["...", "...", "..."] -> 9
    ["#..#", "....", "#..#"] -> 6
    [".#.#.", ".....", ".#.#."] -> 5
    ["....#", "....#", "#####", "..#.."] -> 8
    ["......", "####..", "####..", "####.."] -> 8
    ["#.#", "...", "#.#", "..."] -> 4
    """,
    mutants="""
    width = min(width, free[below]) => width = free[below]
    (runs[r][c - 1] if c else 0) + 1 => 1
    below - r + 1 => below - r
    max(best, => max(0,
    """,
)
def largest_plot(rows: list[str]) -> int:
    """Return the area of the largest rectangle of free cells "." in a field."""
    best = 0
    runs = [[0] * len(row) for row in rows]  # free cells to the left of each cell, itself included
    for r, row in enumerate(rows):
        for c, mark in enumerate(row):
            runs[r][c] = (runs[r][c - 1] if c else 0) + 1 if mark == "." else 0
    for c in range(len(rows[0]) if rows else 0):
        free = [line[c] for line in runs]
        for r in range(len(rows)):
            width = free[r]
            for below in range(r, len(rows)):
                width = min(width, free[below])
                best = max(best, width * (below - r + 1))
    return best
