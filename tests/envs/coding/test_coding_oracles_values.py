"""The built-in problems on text, numbers, lists and records, solved a second time in another way."""

from __future__ import annotations

import fnmatch
import itertools
import json
import math
import re
from collections import Counter, defaultdict
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.envs.coding.oracles import Oracles

oracles = Oracles("text", "numbers", "lists", "records")
oracle = oracles.add


def text(rng: np.random.Generator, letters: str = "ab", most: int = 8) -> str:
    return "".join(letters[int(n)] for n in rng.integers(len(letters), size=rng.integers(most + 1)))


def numbers(
    rng: np.random.Generator, low: int = -4, high: int = 5, most: int = 7, least: int = 0
) -> list[int]:
    return [int(n) for n in rng.integers(low, high, size=rng.integers(least, most + 1))]


# --- text ------------------------------------------------------------------------------------------------


@oracle("text")
def initials(name: str) -> str:
    return "".join(re.findall(r"(?<!\S)\S", name)).upper()


@oracle("text", lambda rng: (text(rng, "aAbB1 !"),))
def count_doubles(value: str) -> int:
    return len(re.findall(r"(?=([a-z])\1)", value.lower()))


@oracle("text")
def missing_letters(value: str) -> str:
    return "".join(chr(n) for n in range(97, 123) if chr(n) not in value and chr(n - 32) not in value)


@oracle("text", lambda rng: (text(rng, "aB "),))
def stress_the_end(value: str) -> str:
    return re.sub(r"[^ ]*\Z", lambda found: found[0].upper(), value, count=1)


@oracle("text", lambda rng: (text(rng, "aB ", 30),))
def pack_runs(value: str) -> str:
    runs = ((letter, len(list(run))) for letter, run in itertools.groupby(value))
    return "".join(letter if count == 1 else f"{count}{letter}" for letter, count in runs)


@oracle("text")
def title(value: str, small: list[str]) -> str:
    words = [word.lower() for word in value.split(" ")]
    shown = [word if word in small else word[:1].upper() + word[1:] for word in words]
    return " ".join([words[0][:1].upper() + words[0][1:], *shown[1:]])


@oracle("text", lambda rng: (text(rng, "azAZmN,"), int(rng.integers(-60, 60))))
def turn_letters(value: str, shift: int) -> str:
    small = "abcdefghijklmnopqrstuvwxyz"
    turned = "".join(small[(n + shift) % 26] for n in range(26))
    return value.translate(str.maketrans(small + small.upper(), turned + turned.upper()))


@oracle("text", lambda rng: (text(rng, "ab  ", 20), int(rng.integers(1, 9))))
def wrap(value: str, width: int) -> list[str]:
    lines: list[list[str]] = []
    for word in value.split():
        if lines and len(" ".join([*lines[-1], word])) <= width:
            lines[-1].append(word)
        else:
            lines.append([word])
    return [" ".join(line) for line in lines]


@oracle("text", lambda rng: ([text(rng, "ab", 4) for _ in range(rng.integers(4))],))
def shared_start(words: list[str]) -> str:
    starts = [words[0][:n] for n in range(len(words[0]) + 1)] if words else [""]
    return max((start for start in starts if all(word.startswith(start) for word in words)), key=len)


@oracle("text", lambda rng: (text(rng, "abc"),))
def first_rotation(value: str) -> str:
    rotations = []
    for _ in value:
        value = value[1:] + value[0]
        rotations.append(value)
    return sorted(rotations)[0] if rotations else ""


@oracle("text", lambda rng: (text(rng, "abc", 5), text(rng, "abc", 5)))
def typing_slips(a: str, b: str) -> int:
    @cache
    def slips(i: int, j: int) -> int:
        if i == len(a) or j == len(b):
            return len(a) - i + len(b) - j
        ways = [slips(i + 1, j) + 1, slips(i, j + 1) + 1, slips(i + 1, j + 1) + int(a[i] != b[j])]
        if len(a[i:]) > 1 and a[i : i + 2] == b[j : j + 2][::-1]:
            ways.append(slips(i + 2, j + 2) + 1)
        return min(ways)

    return slips(0, 0)


@oracle("text", lambda rng: (text(rng, "ab", 9),))
def longest_mirror(value: str) -> str:
    parts = [value[i:j] for i in range(len(value)) for j in range(i + 1, len(value) + 1)]
    return max((part for part in parts if part == part[::-1]), key=len, default="")


@oracle("text", lambda rng: (text(rng, "ab", 6), text(rng, "ab?*", 5)))
def fits(name: str, pattern: str) -> bool:
    return fnmatch.fnmatchcase(name, pattern)


@oracle("text", lambda rng: (text(rng, "abc", 8), text(rng, "abc", 4)))
def shortest_part(value: str, letters: str) -> str | None:
    parts = [value[i:j] for j in range(len(value) + 1) for i in range(j + 1)]
    good = [part for part in parts if not Counter(letters) - Counter(part)]
    return min(good, key=len, default=None)


# --- numbers ---------------------------------------------------------------------------------------------


@oracle("numbers", lambda rng: (int(rng.integers(-(10**6), 10**6)),))
def count_odd_digits(number: int) -> int:
    number, count = abs(number), 0
    while number:
        count += number % 10 % 2
        number //= 10
    return count


@oracle("numbers", lambda rng: (int(rng.integers(-200, 200)),))
def nearest_ten(number: int) -> int:
    return max(range(number - 10, number + 11), key=lambda n: (n % 10 == 0, -abs(n - number), n))


@oracle("numbers", lambda rng: (int(rng.integers(1500)),))
def parking_fee(minutes: int) -> int:
    return min(14, 2 * math.ceil(Fraction(max(0, minutes - 30), 60)))


@oracle("numbers", lambda rng: (int(rng.integers(30)), int(rng.integers(1, 9))))
def fair_shares(total: int, people: int) -> list[int]:
    shares = [0] * people
    for coin in range(total):
        shares[coin % people] += 1
    return shares


@oracle("numbers", lambda rng: tuple(int(n) for n in rng.integers(5, size=3)))
def middle_one(a: int, b: int, c: int) -> int:
    return sorted([a, b, c])[1]


@oracle("numbers", lambda rng: (int(rng.integers(10**9)),))
def sums_to_one_digit(number: int) -> int:
    return 0 if number < 10 else 1 + sums_to_one_digit(sum(map(int, str(number))))


@oracle("numbers")
def write_in_base(number: int, base: int) -> str:
    size = 1
    while base**size <= abs(number):
        size += 1
    digits = [abs(number) // base**place % base for place in reversed(range(size))]
    written = "".join("0123456789abcdefghijklmnopqrstuvwxyz"[digit] for digit in digits)
    assert int(written, base) == abs(number)
    return "-" * (number < 0) + written


@oracle("numbers")
def rectangles(area: int) -> list[tuple[int, int]]:
    return [(n, area // n) for n in range(1, area + 1) if area % n == 0 and n <= area // n]


@oracle("numbers")
def roman(number: int) -> str:
    places = [("", "M", "MM", "MMM"), "C CC CCC CD D DC DCC DCCC CM", "X XX XXX XL L LX LXX LXXX XC"]
    places.append("I II III IV V VI VII VIII IX")
    tables = [("", *place.split()) if isinstance(place, str) else place for place in places]
    return "".join(table[int(digit)] for table, digit in zip(tables, f"{number:04}", strict=True))


@oracle("numbers", lambda rng: (int(rng.integers(1, 300)),))
def highest_hail(number: int) -> int:
    chain = [number]
    while chain[-1] > 1:
        chain.append(chain[-1] // 2 if chain[-1] % 2 == 0 else chain[-1] * 3 + 1)
    return max(chain)


@oracle("numbers")
def judges_mean(marks: list[float]) -> float | None:
    left = list(marks)
    if len(left) < 3:
        return None
    left.remove(max(left))
    left.remove(min(left))
    return float(np.mean(left))


@oracle("numbers", lambda rng: (int(rng.integers(200)), numbers(rng, 1, 12, 4)))
def count_multiples(limit: int, divisors: list[int]) -> int:
    whole = math.lcm(*divisors)  # what divides what begins anew after this
    if limit > 10 * whole and limit > 10_000:
        return limit // whole * count_multiples(whole, divisors) + count_multiples(limit % whole, divisors)
    return sum(any(n % each == 0 for each in divisors) for n in range(1, limit + 1))


@oracle("numbers", lambda rng: (int(rng.integers(25)), sorted(set(numbers(rng, 1, 9, 4)))))
def ways_to_pay(amount: int, coins: list[int]) -> int:
    @cache
    def ways(left: int, kinds: int) -> int:
        if kinds == 0:
            return int(left == 0)
        return sum(ways(left - paid, kinds - 1) for paid in range(0, left + 1, coins[kinds - 1]))

    return ways(amount, len(coins))


@oracle("numbers", lambda rng: (int(rng.integers(1, 130)),))
def smallest_with_product(product: int) -> int | None:
    if product < 200:
        near = (n for n in range(1, 4_000) if math.prod(map(int, str(n))) == product)
        return next(near, None)
    for size in range(1, 9):
        for digits in itertools.combinations_with_replacement("123456789", size):
            if math.prod(map(int, digits)) == product:
                return int("".join(digits))
    return None


@oracle("numbers", lambda rng: (int(rng.integers(1, 12)), [2, 3, 7][: int(rng.integers(1, 4))]))
def built_number(count: int, primes: list[int]) -> int:
    built = {1}
    while True:  # all products of one more factor, until none of them can be among the first
        more = built | {n * prime for n in built for prime in primes}
        kept = set(sorted(more)[: count + 1])
        if kept == built:
            return sorted(built)[count - 1]
        built = kept


# --- lists -----------------------------------------------------------------------------------------------


@oracle("lists", lambda rng: (numbers(rng),))
def swap_ends(values: list[object]) -> list[object]:
    swapped = list(values)
    if swapped:
        swapped[0], swapped[-1] = swapped[-1], swapped[0]
    return swapped


@oracle("lists", lambda rng: (numbers(rng),))
def steps_between(values: list[int]) -> list[int]:
    return [int(step) for step in np.diff(values)]


@oracle("lists", lambda rng: (numbers(rng), numbers(rng)))
def take_turns(first: list[object], second: list[object]) -> list[object]:
    nothing = object()
    pairs = itertools.zip_longest(first, second, fillvalue=nothing)
    return [value for pair in pairs for value in pair if value is not nothing]


@oracle("lists", lambda rng: (numbers(rng),))
def second_largest(values: list[int]) -> int | None:
    return max((value for value in values if value < max(values)), default=None)


@oracle("lists", lambda rng: (numbers(rng), int(rng.integers(1, 5))))
def pages(values: list[object], size: int) -> list[list[object]]:
    cut: list[list[object]] = []
    for n, value in enumerate(values):
        if n % size == 0:
            cut.append([])
        cut[-1].append(value)
    return cut


@oracle("lists", lambda rng: (numbers(rng, 0, 3),))
def count_summits(heights: list[int]) -> int:
    path = [height for height, _ in itertools.groupby(heights)]
    return sum(a < b > c for a, b, c in zip(path, path[1:], path[2:], strict=False))


@oracle("lists", lambda rng: (numbers(rng),))
def longest_climb(values: list[int]) -> int:
    runs = [values[i:j] for i in range(len(values)) for j in range(i + 1, len(values) + 1)]
    return max((len(run) for run in runs if run == sorted(set(run))), default=0)


@oracle("lists", lambda rng: (numbers(rng, least=1), int(rng.integers(-9, 9))))
def turn_round(values: list[object], steps: int) -> list[object]:
    turned = list(values)
    for n, value in enumerate(values):
        turned[(n + steps) % len(values)] = value
    return turned


@oracle("lists", lambda rng: (sorted(numbers(rng)), sorted(numbers(rng))))
def merge_sorted(left: list[int], right: list[int]) -> list[int]:
    return sorted(left + right)


@oracle("lists", lambda rng: (numbers(rng, least=1),))
def best_stretch(values: list[int]) -> tuple[int, int, int]:
    stretches = [(i, j, sum(values[i : j + 1])) for i in range(len(values)) for j in range(i, len(values))]
    return max(stretches, key=lambda stretch: (stretch[2], -stretch[1], -stretch[0]))


@oracle("lists", lambda rng: (numbers(rng),))
def longest_rising(values: list[int]) -> int:
    for size in range(len(values), 0, -1):
        if any(list(kept) == sorted(set(kept)) for kept in itertools.combinations(values, size)):
            return size
    return 0


@oracle("lists", lambda rng: (numbers(rng, 0, 6),))
def rain_between(walls: list[int]) -> int:
    held = 0
    for level in range(1, max(walls, default=0) + 1):
        high = [n for n, wall in enumerate(walls) if wall >= level]
        held += high[-1] - high[0] + 1 - len(high)
    return held


@oracle("lists", lambda rng: (numbers(rng, 0, 4, 5),))
def next_order(values: list[int]) -> list[int] | None:
    return min((list(each) for each in itertools.permutations(values) if list(each) > values), default=None)


# --- records ---------------------------------------------------------------------------------------------


@oracle("records")
def tally(votes: list[str]) -> dict[str, int]:
    return dict(Counter(votes))


@oracle("records")
def fans(favourite: dict[str, str]) -> dict[str, list[str]]:
    colours = set(favourite.values())
    return {colour: sorted(who for who, liked in favourite.items() if liked == colour) for colour in colours}


@oracle("records")
def invoice(lines: list[tuple[str, int, int]]) -> int:
    return int(np.dot([line[1] for line in lines], [line[2] for line in lines])) if lines else 0


@oracle("records")
def changed_keys(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    same = {key for key in before if key in after and before[key] == after[key]}
    return sorted((set(before) | set(after)) - same)


@oracle("records", lambda rng: (list(text(rng, "abc")),))
def winner(votes: list[str]) -> str | None:
    return Counter(sorted(votes)).most_common(1)[0][0] if votes else None


@oracle("records")
def restock(stock: dict[str, int], changes: dict[str, int]) -> dict[str, int]:
    sums = {name: stock.get(name, 0) + changes.get(name, 0) for name in {*stock, *changes}}
    return {name: count for name, count in sums.items() if count != 0}


@oracle("records")
def ranking(scores: dict[str, int]) -> list[tuple[int, str]]:
    ordered = sorted(scores.values(), reverse=True)
    return sorted((ordered.index(score) + 1, name) for name, score in scores.items())


@oracle("records")
def flatten(tree: dict[str, Any]) -> dict[str, Any]:
    waiting: list[tuple[str, Any]] = list(tree.items())
    flat: dict[str, Any] = {}
    while waiting:
        key, value = waiting.pop()
        if value != {} and type(value) is dict:
            waiting += [(f"{key}.{inner}", leaf) for inner, leaf in value.items()]
        else:
            flat[key] = value
    return flat


@oracle("records")
def team_elders(members: list[tuple[str, str, int]]) -> dict[str, str]:
    by_age = sorted(members, key=lambda member: -member[2])
    return {team: name for team, name, _ in reversed(by_age)}


@oracle("records")
def raw_materials(recipes: dict[str, dict[str, int]], product: str, count: int) -> dict[str, int]:
    needed = defaultdict(int, {product: count} if count else {})
    while made := next((part for part in needed if part in recipes), None):
        times = needed.pop(made)
        for part, number in recipes[made].items():
            needed[part] += times * number
    return dict(needed)


@oracle("records")
def sheet_value(cells: dict[str, str], cell: str) -> int | None:
    formula = [cell]
    for _ in range(len(cells) + 1):  # longer than any chain that does not go round
        parts = [cells.get(part, "0").split("+") if not part.isdigit() else [part] for part in formula]
        formula = [part for inner in parts for part in inner]
    return sum(map(int, formula)) if all(part.isdigit() for part in formula) else None


@oracle("records")
def settle(payments: list[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    coins: Counter[str] = Counter()
    for payer, other, amount in payments:
        coins[payer] += amount
        coins[other] -= amount
    owing = sorted(name for name, count in coins.items() for _ in range(-count))
    owed = sorted(name for name, count in coins.items() for _ in range(count))
    paid = Counter(zip(owing, owed, strict=True))
    return sorted((debtor, creditor, amount) for (debtor, creditor), amount in paid.items())


@oracle("records")
def profile(settings: dict[str, dict[str, Any]], name: str) -> dict[str, Any]:
    line: list[dict[str, Any]] = []
    while name in settings:
        line.insert(0, settings[name])
        name = settings[name].get("from", "")
    leaves: dict[tuple[str, ...], Any] = {}
    for layer in line:
        for path, leaf in paths(json.loads(json.dumps(layer))):
            # A value takes the place of what lay above or below its path.
            gone = [p for p in leaves if p[: len(path)] == path or path[: len(p)] == p]
            if not (leaf == {} and any(len(p) > len(path) for p in gone)):
                leaves = {p: value for p, value in leaves.items() if p not in gone}
                leaves[path] = leaf
    leaves.pop(("from",), None)
    found: dict[str, Any] = {}
    for path, leaf in leaves.items():
        place = found
        for key in path[:-1]:
            place = place.setdefault(key, {})
        place[path[-1]] = leaf
    return found


def paths(tree: dict[str, Any]) -> list[tuple[tuple[str, ...], Any]]:
    every: list[tuple[tuple[str, ...], Any]] = []
    for key, value in tree.items():
        inner = paths(value) if isinstance(value, dict) and value else [((), value)]
        every += [((key, *path), leaf) for path, leaf in inner]
    return every


# --- the comparison --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", oracles.problems)
def test_the_expected_values_are_those_of_another_solution(name: str) -> None:
    oracles.check_cases(name)


@pytest.mark.parametrize("name", oracles.draws)
def test_the_reference_agrees_with_another_solution_on_drawn_inputs(name: str) -> None:
    oracles.check_drawn(name)
