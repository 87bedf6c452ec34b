"""Small tasks: a function, a script, a hole to fill, and one without examples."""

from art_gym.envs.coding.problem import Case, Problem

HIDDEN = (7_411_147_411, 1_147_741_114)
TRIPLE = Problem(
    id="triple",
    prompt="Return three times a number.",
    entry_point="triple",
    template="def triple(n: int) -> int:\n    ...\n",
    public=(Case((1,), expected=3), Case((2,), expected=6)),
    hidden=(Case((HIDDEN[0],), expected=3 * HIDDEN[0]), Case((-HIDDEN[1],), expected=-3 * HIDDEN[1])),
    reference="def triple(n):\n    return 3 * n\n",
    mutants=("def triple(n):\n    return n + 2\n", "def triple(n):\n    return 3 * abs(n)\n"),
)
UPPER = Problem(
    id="upper",
    prompt="Print the input in capitals.",
    kind="script",
    level=2,
    public=(Case(stdin="ab\ncd\n", stdout="AB\nCD\n"),),
    hidden=(Case(stdin="x", stdout="X\n"), Case(stdin="y z 3\nw", stdout="Y Z 3\nW\n")),
    reference="import sys\nprint(sys.stdin.read().upper(), end='')\n",
    mutants=("print(input().upper())\nprint()\n",),
    split="test",
)
HOLE = Problem(
    id="hole",
    prompt="Return a plus b.",
    level=0,
    entry_point="f",
    template="def f(a, b):\n    return ____\n",
    public=(Case((1, 2), expected=3),),
    hidden=(Case((2, 5), expected=7), Case((0, 0), expected=0)),
    reference="a + b",
    mutants=("a * b", "a - b", "b - a"),
)
BARE = Problem(id="bare", prompt="Return 1.", entry_point="f", hidden=(Case(expected=1),))
PROBLEMS = (TRIPLE, UPPER, HOLE, BARE)
