"""Problems about whole numbers and amounts."""

from __future__ import annotations

from art_gym.envs.coding.problems.theme import Theme

THEME = Theme("numbers")


@THEME.function(
    level=1,
    public="""
    12345 -> 3
    -7 -> 1
    """,
    hidden="""
    0 -> 0
    8 -> 0
    1111 -> 4
    -13579 -> 5
    2468 -> 0
    100 -> 1
    98765432123456789 -> 9
    -20 -> 0
    """,
    mutants="""
    "13579" => "1357"
    in "13579" => not in "13579"
    str(number) => str(number)[1:]
    """,
)
def count_odd_digits(number: int) -> int:
    """Count the digits of a whole number that are odd."""
    return sum(digit in "13579" for digit in str(number))


@THEME.function(
    level=1,
    public="""
    34 -> 30
    35 -> 40
    """,
    hidden="""
    0 -> 0
    4 -> 0
    5 -> 10
    10 -> 10
    99 -> 100
    25 -> 30
    -4 -> 0
    -5 -> 0
    -6 -> -10
    -15 -> -10
    1234567895 -> 1234567900
    """,
    mutants="""
    + 5 => + 4
    + 5) // 10 => ) // 10
    (number + 5) // 10 * 10 => round(number / 10) * 10
    """,
)
def nearest_ten(number: int) -> int:
    """Round a whole number to the nearest multiple of ten; the larger one if both are equally near."""
    return (number + 5) // 10 * 10


@THEME.function(
    level=1,
    public="""
    30 -> 0
    31 -> 2
    95 -> 4
    """,
    hidden="""
    0 -> 0
    1 -> 0
    90 -> 2
    91 -> 4
    150 -> 4
    151 -> 6
    390 -> 12
    450 -> 14
    451 -> 14
    1440 -> 14
    """,
    mutants="""
    -(-(minutes - 30) // 60) => round((minutes - 30) / 60)
    -(-(minutes - 30) // 60) => (minutes - 30) // 60 + 1
    min(14, => min(16,
    minutes - 30 => minutes
    """,
)
def parking_fee(minutes: int) -> int:
    """Return the fee for parking: half an hour is free, then each hour begun costs 2, but at most 14 in all.

    Exactly 30 minutes are still free, and exactly 90 minutes are one hour after that.
    """
    if minutes <= 30:
        return 0
    return min(14, 2 * -(-(minutes - 30) // 60))


@THEME.function(
    level=1,
    public="""
    10, 3 -> [4, 3, 3]
    6, 2 -> [3, 3]
    """,
    hidden="""
    0, 2 -> [0, 0]
    1, 1 -> [1]
    5, 5 -> [1, 1, 1, 1, 1]
    3, 5 -> [1, 1, 1, 0, 0]
    11, 4 -> [3, 3, 3, 2]
    100, 7 -> [15, 15, 14, 14, 14, 14, 14]
    99, 10 -> [10, 10, 10, 10, 10, 10, 10, 10, 10, 9]
    7, 1 -> [7]
    """,
    mutants="""
    place < total % people => place <= total % people
    place < total % people => people - place <= total % people
    total // people => total // people + 1
    """,
)
def fair_shares(total: int, people: int) -> list[int]:
    """Share ``total`` coins among people so that no two shares differ by more than one coin.

    Return the shares, larger ones first.
    """
    return [total // people + (place < total % people) for place in range(people)]


@THEME.function(
    level=1,
    public="""
    3, 9, 5 -> 5
    2, 2, 7 -> 2
    """,
    hidden="""
    1, 2, 3 -> 2
    3, 2, 1 -> 2
    2, 3, 1 -> 2
    4, 4, 4 -> 4
    -5, 0, -9 -> -5
    10, 1, 10 -> 10
    6, 1, 8 -> 6
    0, 100, 50 -> 50
    """,
    mutants="""
    - min(a, b, c) =>
    max(a, b, c) => max(a, b)
    min(a, b, c) => min(b, c)
    """,
)
def middle_one(a: int, b: int, c: int) -> int:
    """Return the one of three numbers that stands in the middle when they are sorted."""
    return a + b + c - min(a, b, c) - max(a, b, c)


@THEME.function(
    level=2,
    public="""
    38 -> 2
    7 -> 0
    """,
    hidden="""
    0 -> 0
    9 -> 0
    10 -> 1
    19 -> 2
    99 -> 2
    199 -> 3
    999999 -> 2
    1000000 -> 1
    19999999999999999999999 -> 4
    """,
    mutants="""
    number > 9 => number > 10
    steps += 1 => steps = 1
    steps = 0 => steps = 1
    """,
)
def sums_to_one_digit(number: int) -> int:
    """Return how often one must replace a number by the sum of its digits until one digit is left."""
    steps = 0
    while number > 9:
        number = sum(int(digit) for digit in str(number))
        steps += 1
    return steps


@THEME.function(
    level=2,
    public="""
    10, 2 -> "1010"
    255, 16 -> "ff"
    -5, 3 -> "-12"
    """,
    hidden="""
    0, 2 -> "0"
    1, 36 -> "1"
    35, 36 -> "z"
    36, 36 -> "10"
    -1, 2 -> "-1"
    7, 8 -> "7"
    8, 8 -> "10"
    -255, 16 -> "-ff"
    123456789, 10 -> "123456789"
    18446744073709551616, 16 -> "10000000000000000"
    """,
    mutants="""
    or "0" =>
    sign = "-" if number < 0 else "" => sign = ""
    digit + written => written + digit
    """,
)
def write_in_base(number: int, base: int) -> str:
    """Write a whole number in a base from 2 to 36, with the digits 0 to 9 and then a to z.

    A negative number begins with a minus sign. Nothing begins with a needless zero.
    """
    sign = "-" if number < 0 else ""
    left, written = abs(number), ""
    while left:
        left, rest = divmod(left, base)
        digit = "0123456789abcdefghijklmnopqrstuvwxyz"[rest]
        written = digit + written
    return sign + (written or "0")


@THEME.function(
    level=2,
    public="""
    12 -> [(1, 12), (2, 6), (3, 4)]
    9 -> [(1, 9), (3, 3)]
    """,
    hidden="""
    1 -> [(1, 1)]
    2 -> [(1, 2)]
    4 -> [(1, 4), (2, 2)]
    7 -> [(1, 7)]
    36 -> [(1, 36), (2, 18), (3, 12), (4, 9), (6, 6)]
    97 -> [(1, 97)]
    100 -> [(1, 100), (2, 50), (4, 25), (5, 20), (10, 10)]
    720 -> [(1, 720), (2, 360), (3, 240), (4, 180), (5, 144), (6, 120), (8, 90), (9, 80), (10, 72), (12,
    60), (15, 48), (16, 45), (18, 40), (20, 36), (24, 30)]
    9409 -> [(1, 9409), (97, 97)]
    """,
    mutants="""
    side * side <= area => side * side < area
    side * side <= area => side < area
    [], 1 => [], 2
    """,
)
def rectangles(area: int) -> list[tuple[int, int]]:
    """List the rectangles with whole sides and a given area, as (shorter, longer), the narrowest first."""
    found, side = [], 1
    while side * side <= area:
        if area % side == 0:
            found.append((side, area // side))
        side += 1
    return found


@THEME.function(
    level=2,
    public="""
    14 -> "XIV"
    2024 -> "MMXXIV"
    """,
    hidden="""
    1 -> "I"
    3 -> "III"
    4 -> "IV"
    5 -> "V"
    9 -> "IX"
    40 -> "XL"
    90 -> "XC"
    400 -> "CD"
    944 -> "CMXLIV"
    1888 -> "MDCCCLXXXVIII"
    3999 -> "MMMCMXCIX"
    """,
    mutants="""
    4: "IV" => 4: "IIII"
    90: "XC", =>
    number >= value => number > value
    """,
)
def roman(number: int) -> str:
    """Write a number from 1 to 3999 in Roman numerals.

    4, 9, 40, 90, 400 and 900 are IV, IX, XL, XC, CD and CM.
    """
    signs = {1000: "M", 900: "CM", 500: "D", 400: "CD", 100: "C", 90: "XC", 50: "L", 40: "XL", 10: "X"}
    signs |= {9: "IX", 5: "V", 4: "IV", 1: "I"}
    written = ""
    for value, sign in signs.items():
        while number >= value:
            written += sign
            number -= value
    return written


@THEME.function(
    level=2,
    public="""
    6 -> 16
    1 -> 1
    """,
    hidden="""
    2 -> 2
    3 -> 16
    5 -> 16
    7 -> 52
    8 -> 8
    15 -> 160
    27 -> 9232
    64 -> 64
    97 -> 9232
    255 -> 13120
    """,
    mutants="""
    peak = number => peak = 1
    peak = max(peak, number) => peak = number
    peak = max(peak, number) => peak += 1
    """,
)
def highest_hail(number: int) -> int:
    """Return the highest number that a hailstone reaches on its way to 1, its start included.

    From an even number it falls to the half; from an odd number n it goes to 3n + 1. At 1 it stops.
    """
    peak = number
    while number != 1:
        number = 3 * number + 1 if number % 2 else number // 2
        peak = max(peak, number)
    return peak


@THEME.function(
    level=2,
    tolerance=1e-9,
    public="""
    [9.0, 8.5, 9.5, 2.0] -> 8.75
    [7.0, 8.0] -> None
    """,
    hidden="""
    [] -> None
    [5.0] -> None
    [4.0, 6.0] -> None
    [1.0, 2.0, 3.0] -> 2.0
    [3.0, 3.0, 3.0] -> 3.0
    [10.0, 10.0, 0.0, 0.0] -> 5.0
    [0.1, 0.2, 0.3, 0.4] -> 0.25
    [-1.0, -2.0, -3.0, -5.0, -4.0] -> -3.0
    [1.0, 100.0, 1.0] -> 1.0
    [2.5, 3.5, 9.0, 8.0, 0.5] -> 4.666666666666667
    """,
    mutants="""
    len(marks) < 3 => len(marks) < 4
    [1:-1] => [1:]
    (len(marks) - 2) => len(marks)
    sorted(marks) => marks
    """,
)
def judges_mean(marks: list[float]) -> float | None:
    """Return the mean of the judges' marks without one highest and one lowest mark.

    With fewer than three marks there is no mean: ``None``.
    """
    if len(marks) < 3:
        return None
    return sum(sorted(marks)[1:-1]) / (len(marks) - 2)


@THEME.function(
    level=3,
    public="""
    10, [2, 3] -> 7
    20, [6, 4] -> 7
    """,
    hidden="""
    0, [3] -> 0
    100, [] -> 0
    100, [1, 7] -> 100
    6, [7] -> 0
    1000, [3, 5] -> 467
    30, [6, 10, 15] -> 8
    100, [4, 4] -> 25
    1000, [2, 4, 8] -> 500
    1000000000000, [2, 3, 5, 7, 11] -> 792207792208
    999999999999, [12, 18, 30] -> 122222222222
    """,
    mutants="""
    math.lcm(*chosen) => math.prod(chosen)
    range(1, len(divisors) + 1) => range(1, len(divisors))
    else -multiples => else 0
    range(1, len(divisors) + 1) => range(1, min(2, len(divisors)) + 1)
    """,
)
def count_multiples(limit: int, divisors: list[int]) -> int:
    """Count the numbers from 1 to ``limit`` that at least one of the divisors divides.

    The limit may be as large as 10 ** 12, so they cannot be tried one by one. There are at most ten divisors,
    all positive.
    """
    import itertools
    import math

    count = 0
    for size in range(1, len(divisors) + 1):
        for chosen in itertools.combinations(divisors, size):
            multiples = limit // math.lcm(*chosen)
            count += multiples if size % 2 else -multiples
    return count


@THEME.function(
    level=3,
    public="""
    5, [1, 2, 5] -> 4
    3, [2] -> 0
    """,
    hidden="""
    0, [1, 2] -> 1
    0, [] -> 1
    4, [] -> 0
    1, [1] -> 1
    10, [2, 5, 3, 6] -> 5
    7, [8, 9] -> 0
    100, [1, 5, 10, 25, 50] -> 292
    200, [1, 2, 5, 10, 20, 50, 100, 200] -> 73682
    12, [3, 4, 6] -> 4
    """,
    mutants="""
    range(coin, amount + 1) => range(coin, amount)
    ways = [1] => ways = [0]
    range(coin, amount + 1) => range(amount, coin - 1, -1)
    """,
)
def ways_to_pay(amount: int, coins: list[int]) -> int:
    """Count the ways to pay an amount exactly with coins of given different values, any number of each.

    Ways differ by how many coins of each value they use; the order does not matter. Nothing can be paid in
    one way: with no coin.
    """
    ways = [1] + [0] * amount
    for coin in coins:
        for paid in range(coin, amount + 1):
            ways[paid] += ways[paid - coin]
    return ways[amount]


@THEME.function(
    level=3,
    public="""
    36 -> 49
    11 -> None
    """,
    hidden="""
    1 -> 1
    7 -> 7
    10 -> 25
    12 -> 26
    26 -> None
    64 -> 88
    100 -> 455
    360 -> 589
    5040 -> 25789
    1000000 -> 55555588
    13 -> None
    22 -> None
    """,
    mutants="""
    range(9, 1, -1) => range(8, 1, -1)
    range(9, 1, -1) => range(2, 10)
    digits[::-1] => digits
    product > 1 => product > 11
    """,
)
def smallest_with_product(product: int) -> int | None:
    """Return the smallest positive number whose digits multiply to ``product``, or ``None``.

    The product is at least 1.
    """
    if product == 1:
        return 1
    digits = ""
    for digit in range(9, 1, -1):
        while product % digit == 0:
            digits += str(digit)
            product //= digit
    return None if product > 1 else int(digits[::-1])


@THEME.function(
    level=3,
    public="""
    7, [2, 3] -> 9
    4, [5] -> 125
    """,
    hidden="""
    1, [2, 3, 5] -> 1
    2, [7, 3] -> 3
    10, [2, 3, 5] -> 12
    11, [2, 3, 5] -> 15
    20, [3, 7] -> 2187
    12, [2] -> 2048
    100, [2, 3, 5] -> 1536
    1000, [2, 3, 5] -> 51200000
    50, [11, 13, 17] -> 594473
    """,
    mutants="""
    [1], {1} => sorted(primes), set(primes)
    range(count - 1) => range(count)
    number * prime not in seen => number != prime
    """,
)
def built_number(count: int, primes: list[int]) -> int:
    """Return the ``count``-th smallest number that has no prime factors but the given ones.

    The first such number is 1.
    For the primes 2 and 3 these numbers are 1, 2, 3, 4, 6, 8, 9, 12 and so on.
    """
    import heapq

    heap, seen = [1], {1}
    number = heapq.heappop(heap)
    for _ in range(count - 1):
        for prime in primes:
            if number * prime not in seen:
                seen.add(number * prime)
                heapq.heappush(heap, number * prime)
        number = heapq.heappop(heap)
    return number
