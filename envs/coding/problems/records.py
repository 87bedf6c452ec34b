"""Problems about dictionaries and rows of data."""

from __future__ import annotations

from art_gym.envs.coding.problems.theme import Theme

THEME = Theme("records")


@THEME.function(
    level=1,
    public="""
    ["yes", "no", "yes"] -> {"yes": 2, "no": 1}
    [] -> {}
    """,
    hidden="""
    ["a"] -> {"a": 1}
    ["a", "A", "a"] -> {"a": 2, "A": 1}
    ["x", "y", "z"] -> {"x": 1, "y": 1, "z": 1}
    ["", ""] -> {"": 2}
    ["b", "b", "b", "b"] -> {"b": 4}
    ["no", "yes", "no", "maybe", "no"] -> {"no": 3, "yes": 1, "maybe": 1}
    ["1", "1", "2"] -> {"1": 2, "2": 1}
    [" a", "a"] -> {" a": 1, "a": 1}
    """,
    mutants="""
    + 1 =>
    counts.get(vote, 0) => counts.get(vote, 1)
    counts[vote] => counts[vote.lower()]
    """,
)
def tally(votes: list[str]) -> dict[str, int]:
    """Count how often each vote was cast."""
    counts: dict[str, int] = {}
    for vote in votes:
        counts[vote] = counts.get(vote, 0) + 1
    return counts


@THEME.function(
    level=1,
    public="""
    {"ann": "red", "bob": "blue", "cy": "red"} -> {"red": ["ann", "cy"], "blue": ["bob"]}
    {} -> {}
    """,
    hidden="""
    {"a": "x"} -> {"x": ["a"]}
    {"b": "x", "a": "x"} -> {"x": ["a", "b"]}
    {"c": "z", "b": "y", "a": "z"} -> {"z": ["a", "c"], "y": ["b"]}
    {"one": "1", "two": "2"} -> {"1": ["one"], "2": ["two"]}
    {"z": "", "y": ""} -> {"": ["y", "z"]}
    {"A": "k", "a": "k", "B": "k"} -> {"k": ["A", "B", "a"]}
    {"ann": "ann", "bob": "ann"} -> {"ann": ["ann", "bob"]}
    {"d": "q", "c": "q", "b": "q", "a": "q"} -> {"q": ["a", "b", "c", "d"]}
    """,
    mutants="""
    sorted(favourite) => favourite
    (favourite[person], []).append(person) => (person, []).append(favourite[person])
    sorted(favourite) => sorted(favourite, reverse=True)
    """,
)
def fans(favourite: dict[str, str]) -> dict[str, list[str]]:
    """Given each person's favourite colour, return the sorted list of the people who like each colour."""
    by_colour: dict[str, list[str]] = {}
    for person in sorted(favourite):
        by_colour.setdefault(favourite[person], []).append(person)
    return by_colour


@THEME.function(
    level=1,
    public="""
    [("pen", 3, 2), ("ink", 1, 15)] -> 21
    [] -> 0
    """,
    hidden="""
    [("pen", 1, 1)] -> 1
    [("pen", 0, 100)] -> 0
    [("pen", 2, 5), ("pen", 3, 5)] -> 25
    [("a", 1, 2), ("b", 3, 4), ("c", 5, 6)] -> 44
    [("gift", 4, 0)] -> 0
    [("return", -2, 10), ("pen", 3, 10)] -> 10
    [("box", 100, 100)] -> 10000
    [("x", 7, 1), ("y", 1, 7)] -> 14
    """,
    mutants="""
    count * price => count + price
    count * price => max(count, 0) * price
    sum( => max(
    """,
)
def invoice(lines: list[tuple[str, int, int]]) -> int:
    """Return the total of an invoice whose lines are (article, how many, price of one).

    How many may be negative for what was given back.
    """
    return sum(count * price for _, count, price in lines)


@THEME.function(
    level=1,
    public="""
    {"a": 1, "b": 2}, {"b": 2, "c": 3} -> ["a", "c"]
    {"a": 1}, {"a": 5} -> ["a"]
    """,
    hidden="""
    {}, {} -> []
    {"a": 1}, {"a": 1} -> []
    {"a": None}, {} -> ["a"]
    {}, {"z": 0, "y": 0} -> ["y", "z"]
    {"x": 0}, {"x": False, "w": 1} -> ["w"]
    {"b": 1, "a": 2}, {"a": 3, "b": 4} -> ["a", "b"]
    {"a": "1"}, {"a": 1} -> ["a"]
    {"k": [1, 2]}, {"k": [1, 2]} -> []
    {"k": [1, 2]}, {"k": [2, 1]} -> ["k"]
    {"q": None}, {"q": 0} -> ["q"]
    """,
    mutants="""
    before.keys() | after.keys() => before.keys() & after.keys()
    or before[key] != after[key] =>
    key not in before or => (key not in before and after[key]) or
    """,
)
def changed_keys(before: dict[str, object], after: dict[str, object]) -> list[str]:
    """Return the sorted keys that are in one of two dictionaries only, or have different values in them.

    Values differ where ``!=`` says so.
    """
    return sorted(
        key
        for key in before.keys() | after.keys()
        if key not in before or key not in after or before[key] != after[key]
    )


@THEME.function(
    level=2,
    public="""
    ["bo", "al", "bo"] -> "bo"
    ["zoe", "ann"] -> "ann"
    """,
    hidden="""
    [] -> None
    ["x"] -> "x"
    ["b", "a", "b", "a"] -> "a"
    ["a", "b", "b"] -> "b"
    ["c", "b", "a", "c", "b"] -> "b"
    ["Z", "a"] -> "Z"
    ["x", "x", "y", "y", "y"] -> "y"
    ["d", "c", "d", "c", "a"] -> "c"
    """,
    mutants="""
    (-votes.count(name), name) => (-votes.count(name), votes.index(name))
    -votes.count(name) => votes.count(name)
    default=None => default=""
    """,
)
def winner(votes: list[str]) -> str | None:
    """Return who got the most votes; of several the first in alphabetical order; ``None`` without votes."""
    return min(set(votes), key=lambda name: (-votes.count(name), name), default=None)


@THEME.function(
    level=2,
    public="""
    {"nut": 5, "nail": 2}, {"nail": -2, "bolt": 7} -> {"nut": 5, "bolt": 7}
    {}, {"nut": 1} -> {"nut": 1}
    """,
    hidden="""
    {}, {} -> {}
    {"a": 1}, {} -> {"a": 1}
    {"a": 1}, {"a": 1} -> {"a": 2}
    {"a": 1}, {"a": -1} -> {}
    {"a": 0}, {} -> {}
    {}, {"a": 0, "b": 2} -> {"b": 2}
    {"a": 3}, {"a": -5} -> {"a": -2}
    {"a": -5, "b": 1}, {"b": 1, "a": 6} -> {"a": 1, "b": 2}
    {"x": 10, "y": 20, "z": 30}, {"y": -20, "z": 1} -> {"x": 10, "z": 31}
    """,
    mutants="""
    if count => if count > 0
    + change => - change
    if count =>
    """,
)
def restock(stock: dict[str, int], changes: dict[str, int]) -> dict[str, int]:
    """Add changes to a stock, both as article → number; articles of which there are 0 are left out.

    A number may be negative: then the article is owed. The given dictionaries stay as they are.
    """
    after = dict(stock)
    for article, change in changes.items():
        after[article] = after.get(article, 0) + change
    return {article: count for article, count in after.items() if count}


@THEME.function(
    level=2,
    public="""
    {"ann": 10, "bob": 7, "cy": 10} -> [(1, "ann"), (1, "cy"), (3, "bob")]
    {} -> []
    """,
    hidden="""
    {"a": 0} -> [(1, "a")]
    {"b": 1, "a": 1} -> [(1, "a"), (1, "b")]
    {"a": 1, "b": 2} -> [(1, "b"), (2, "a")]
    {"a": 3, "b": 3, "c": 2, "d": 2, "e": 1} -> [(1, "a"), (1, "b"), (3, "c"), (3, "d"), (5, "e")]
    {"x": -1, "y": -2} -> [(1, "x"), (2, "y")]
    {"d": 5, "c": 5, "b": 5, "a": 9} -> [(1, "a"), (2, "b"), (2, "c"), (2, "d")]
    {"m": 4, "n": 8, "o": 6} -> [(1, "n"), (2, "o"), (3, "m")]
    {"q": 2, "p": 2, "r": 3} -> [(1, "r"), (2, "p"), (2, "q")]
    """,
    mutants="""
    other > score => other >= score
    1 + sum => sum
    other > score => other < score
    sum(other > score for other in scores.values()) => len({s for s in scores.values() if s > score})
    """,
)
def ranking(scores: dict[str, int]) -> list[tuple[int, str]]:
    """Return the ranking of players as (rank, name), best first, those of equal rank by name.

    A rank is one more than the number of players with a higher score, so after two first there is a third.
    """
    return sorted(
        (1 + sum(other > score for other in scores.values()), name) for name, score in scores.items()
    )


@THEME.function(
    level=2,
    public="""
    {"a": 1, "b": {"c": 2, "d": {"e": 3}}} -> {"a": 1, "b.c": 2, "b.d.e": 3}
    {} -> {}
    """,
    hidden="""
    {"a": None} -> {"a": None}
    {"a": {}} -> {"a": {}}
    {"a": {"b": {}}} -> {"a.b": {}}
    {"a": [1, 2]} -> {"a": [1, 2]}
    {"x": {"y": 0}, "z": ""} -> {"x.y": 0, "z": ""}
    {"x.y": 1} -> {"x.y": 1}
    {"a": {"a": {"a": {"a": 1}}}} -> {"a.a.a.a": 1}
    {"p": {"q": 1, "r": 2}, "s": {"q": 3}} -> {"p.q": 1, "p.r": 2, "s.q": 3}
    """,
    mutants="""
    and value =>
    f"{key}.{inner}" => f"{inner}.{key}"
    f"{key}.{inner}" => inner
    """,
)
def flatten(tree: dict[str, object]) -> dict[str, object]:
    """Flatten nested dictionaries: the key of a value is the keys on the way to it, joined by dots.

    An empty dictionary within is a value like any other.
    """
    flat: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            flat |= {f"{key}.{inner}": leaf for inner, leaf in flatten(value).items()}
        else:
            flat[key] = value
    return flat


@THEME.function(
    level=2,
    public="""
    [("red", "ann", 30), ("red", "bo", 41), ("blue", "cy", 9)] -> {"red": "bo", "blue": "cy"}
    [] -> {}
    """,
    hidden="""
    [("x", "a", 1)] -> {"x": "a"}
    [("x", "a", 1), ("x", "b", 1)] -> {"x": "a"}
    [("x", "b", 1), ("x", "a", 1)] -> {"x": "b"}
    [("x", "a", 2), ("x", "b", 1)] -> {"x": "a"}
    [("x", "a", 0), ("y", "b", 0)] -> {"x": "a", "y": "b"}
    [("t", "a", 5), ("u", "b", 6), ("t", "c", 7), ("u", "d", 5)] -> {"t": "c", "u": "b"}
    [("t", "a", 9), ("t", "b", 10), ("t", "c", 10), ("t", "d", 8)] -> {"t": "b"}
    [("k", "old", 100), ("k", "older", 101), ("k", "young", 1)] -> {"k": "older"}
    """,
    mutants="""
    age > oldest[team] => age >= oldest[team]
    age > oldest[team] => age < oldest[team]
    or age > oldest[team] =>
    """,
)
def team_elders(members: list[tuple[str, str, int]]) -> dict[str, str]:
    """Given (team, name, age) of people, return the name of the oldest of each team.

    Of people of the same age the one listed first counts.
    """
    oldest: dict[str, int] = {}
    names: dict[str, str] = {}
    for team, name, age in members:
        if team not in oldest or age > oldest[team]:
            oldest[team], names[team] = age, name
    return names


@THEME.function(
    level=3,
    public="""
    {"cake": {"egg": 3, "dough": 2}, "dough": {"flour": 5, "egg": 1}}, "cake", 1 -> {"egg": 5, "flour": 10}
    {}, "egg", 4 -> {"egg": 4}
    """,
    hidden="""
    {}, "x", 0 -> {}
    {"a": {"b": 2}}, "b", 3 -> {"b": 3}
    {"a": {"b": 2}}, "a", 0 -> {}
    {"a": {"b": 2}}, "a", 3 -> {"b": 6}
    {"a": {"b": 2, "c": 3}, "b": {"c": 4}}, "a", 1 -> {"c": 11}
    {"a": {"b": 2}, "b": {"c": 2}, "c": {"d": 2}}, "a", 2 -> {"d": 16}
    {"a": {"b": 1, "c": 1}, "b": {"d": 1}, "c": {"d": 1}}, "a", 5 -> {"d": 10}
    {"a": {}}, "a", 7 -> {}
    {"bike": {"wheel": 2, "frame": 1}, "wheel": {"spoke": 32, "rim": 1}, "frame": {"tube": 3}}, "bike",
    2 -> {"spoke": 128, "rim": 4, "tube": 6}
    """,
    mutants="""
    count * times => times
    count * times => count + times
    raw.get(part, 0) + need => need
    if count else {} =>
    """,
)
def raw_materials(recipes: dict[str, dict[str, int]], product: str, count: int) -> dict[str, int]:
    """Return how much raw material it takes to make a number of products.

    A recipe says how many of which parts make one product; parts may have recipes themselves. What has no
    recipe is raw material. No recipe leads back to itself. Nothing is needed for 0 products.
    """
    if product not in recipes:
        return {product: count} if count else {}
    raw: dict[str, int] = {}
    for ingredient, times in recipes[product].items():
        for part, need in raw_materials(recipes, ingredient, count * times).items():
            raw[part] = raw.get(part, 0) + need
    return raw


@THEME.function(
    level=3,
    public="""
    {"a1": "5", "b1": "a1+2"}, "b1" -> 7
    {"a1": "b1", "b1": "a1"}, "a1" -> None
    """,
    hidden="""
    {}, "a1" -> 0
    {"a1": "0"}, "a1" -> 0
    {"a1": "1+2+3"}, "a1" -> 6
    {"a1": "b1+b1", "b1": "c1+c1", "c1": "3"}, "a1" -> 12
    {"a1": "a1"}, "a1" -> None
    {"a1": "1", "b1": "b1+a1"}, "a1" -> 1
    {"a1": "b1+1", "b1": "c1", "c1": "b1"}, "a1" -> None
    {"a1": "z9+4"}, "a1" -> 4
    {"a1": "b1+c1", "b1": "d1", "c1": "d1", "d1": "10"}, "a1" -> 20
    {"total": "x+y+z", "x": "100", "y": "x+1", "z": "y+1"}, "total" -> 303
    """,
    mutants="""
    cell in above => False
    (*above, cell) => (cell,)
    cells.get(cell, "0") => cells.get(cell, "1")
    total += value => total = value
    """,
)
def sheet_value(cells: dict[str, str], cell: str, above: tuple[str, ...] = ()) -> int | None:
    """Return the value of a cell of a spreadsheet, given the formula of each cell.

    A formula is a sum of numbers (digits only) and names of cells, joined by "+". A cell that is not there
    is worth 0. A cell whose value needs its own value has none: ``None``, and so has what needs such a cell.
    The third argument is for your own use.
    """
    if cell in above:
        return None
    total = 0
    for part in cells.get(cell, "0").split("+"):
        value = int(part) if part.isdigit() else sheet_value(cells, part, (*above, cell))
        if value is None:
            return None
        total += value
    return total


@THEME.function(
    level=3,
    public="""
    [("ann", "bob", 10), ("bob", "cy", 10)] -> [("cy", "ann", 10)]
    [("ann", "bob", 5), ("bob", "ann", 5)] -> []
    """,
    hidden="""
    [] -> []
    [("a", "b", 1)] -> [("b", "a", 1)]
    [("a", "a", 9)] -> []
    [("a", "b", 3), ("a", "c", 4)] -> [("b", "a", 3), ("c", "a", 4)]
    [("b", "a", 3), ("c", "a", 4)] -> [("a", "b", 3), ("a", "c", 4)]
    [("a", "d", 5), ("b", "d", 5), ("c", "e", 7)] -> [("d", "a", 5), ("d", "b", 5), ("e", "c", 7)]
    [("a", "b", 2), ("b", "c", 3), ("c", "a", 4)] -> [("a", "b", 1), ("a", "c", 1)]
    [("z", "y", 6), ("x", "y", 2), ("z", "w", 1)] -> [("w", "x", 1), ("y", "x", 1), ("y", "z", 7)]
    [("p", "q", 8), ("r", "s", 8)] -> [("q", "p", 8), ("s", "r", 8)]
    """,
    mutants="""
    debtors = sorted(name for name in balance if balance[name] < 0) => debtors = sorted(balance)
    min(-balance[debtor], balance[creditor]) => balance[creditor]
    balance.get(payer, 0) + amount => balance.get(payer, 0) - amount
    balance.get(other, 0) - amount => -amount
    """,
)
def settle(payments: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    """Settle debts. A payment (payer, other, amount) means that the payer lent the other this amount.

    Each debtor, in alphabetical order, pays to the creditors in alphabetical order as much as both the debt
    and the credit still left allow. Return what is paid as (debtor, creditor, amount) in this order, no
    amount being 0. What somebody owes and is owed is offset first.
    """
    balance: dict[str, int] = {}
    for payer, other, amount in payments:
        balance[payer] = balance.get(payer, 0) + amount
        balance[other] = balance.get(other, 0) - amount
    paid = []
    debtors = sorted(name for name in balance if balance[name] < 0)
    creditors = sorted(name for name in balance if balance[name] > 0)
    for debtor in debtors:
        for creditor in creditors:
            amount = min(-balance[debtor], balance[creditor])
            if amount:
                paid.append((debtor, creditor, amount))
                balance[debtor] += amount
                balance[creditor] -= amount
    return paid


@THEME.function(
    level=3,
    public="""
    {"base": {"x": 1, "y": 2}, "dev": {"from": "base", "y": 3}}, "dev" -> {"x": 1, "y": 3}
    {"base": {"x": 1}}, "base" -> {"x": 1}
    """,
    hidden="""
    {"a": {}}, "a" -> {}
    {"a": {"from": "b"}, "b": {"k": 0}}, "a" -> {"k": 0}
    {"a": {"from": "b"}, "b": {"k": 0}}, "b" -> {"k": 0}
    {"a": {"from": "b", "k": 1}, "b": {"from": "c", "k": 2, "l": 2}, "c": {"k": 3, "l": 3, "m": 3}},
    "a" -> {"k": 1, "l": 2, "m": 3}
    {"a": {"from": "b", "k": None}, "b": {"k": 5}}, "a" -> {"k": None}
    {"a": {"from": "gone", "k": 1}}, "a" -> {"k": 1}
    {"a": {"from": "b", "o": {"p": 1}}, "b": {"o": {"q": 2}}}, "a" -> {"o": {"q": 2, "p": 1}}
    {"a": {"from": "b", "o": 7}, "b": {"o": {"q": 2}}}, "a" -> {"o": 7}
    {"a": {"from": "b", "o": {"p": {"r": 1}}}, "b": {"o": {"p": {"s": 2}, "t": 3}}},
    "a" -> {"o": {"p": {"s": 2, "r": 1}, "t": 3}}
    """,
    mutants="""
    isinstance(value, dict) and isinstance(before, dict) => False
    overlay(before, value) => {**before, **value}
    own.pop("from", "") => own.get("from", "")
    profile(settings, parent) if => settings[parent] if
    """,
)
def profile(settings: dict[str, dict[str, object]], name: str) -> dict[str, object]:
    """Return the settings of a profile together with what it takes over from another one.

    The key "from" names the profile that one is based on; that may be based on another in turn, and one that
    does not exist is empty. A profile's own value replaces the one taken over, but where both are
    dictionaries they are merged in the same way, at every depth. "from" itself is no setting.
    """

    def overlay(base: dict[str, object], own: dict[str, object]) -> dict[str, object]:
        merged = dict(base)
        for key, value in own.items():
            before = merged.get(key)
            if isinstance(value, dict) and isinstance(before, dict):
                merged[key] = overlay(before, value)
            else:
                merged[key] = value
        return merged

    own = dict(settings[name])
    parent = str(own.pop("from", ""))
    return overlay(profile(settings, parent) if parent in settings else {}, own)
