"""Problems about times of day, dates and intervals, without any calendar library."""

from __future__ import annotations

from art_gym.envs.coding.problems.theme import Theme

THEME = Theme("times")


@THEME.function(
    level=1,
    public="""
    "08:15", "09:00" -> 45
    "23:50", "00:10" -> 20
    """,
    hidden="""
    "00:00", "00:00" -> 0
    "12:00", "12:00" -> 0
    "00:00", "23:59" -> 1439
    "23:59", "00:00" -> 1
    "10:30", "10:29" -> 1439
    "09:59", "10:00" -> 1
    "18:05", "06:05" -> 720
    "07:07", "19:08" -> 721
    """,
    mutants="""
    % 1440 =>
    % 1440 => % 720
    return 60 * => return 100 *
    """,
)
def minutes_until(now: str, then: str) -> int:
    """Return how many minutes pass from one time of day to the next time the clock shows another one.

    Times are written as "HH:MM" from "00:00" to "23:59". If both are the same, no time passes.
    """

    def minutes(clock: str) -> int:
        return 60 * int(clock[:2]) + int(clock[3:])

    return (minutes(then) - minutes(now)) % 1440


@THEME.function(
    level=1,
    public="""
    (1, 5), (3, 9) -> 2
    (1, 3), (3, 4) -> 0
    """,
    hidden="""
    (0, 0), (0, 10) -> 0
    (0, 10), (2, 4) -> 2
    (2, 4), (0, 10) -> 2
    (0, 10), (0, 10) -> 10
    (5, 9), (1, 6) -> 1
    (1, 2), (8, 9) -> 0
    (8, 9), (1, 2) -> 0
    (-5, 5), (-3, 100) -> 8
    (0, 7), (6, 7) -> 1
    """,
    mutants="""
    max(0, => (
    min(a[1], b[1]) => max(a[1], b[1])
    max(a[0], b[0]) => b[0]
    """,
)
def overlap(a: tuple[int, int], b: tuple[int, int]) -> int:
    """Return for how long two intervals (start, end) overlap; 0 if they only touch or do not meet."""
    return max(0, min(a[1], b[1]) - max(a[0], b[0]))


@THEME.function(
    level=1,
    public="""
    10, 8, 18 -> True
    1, 20, 2 -> True
    18, 8, 18 -> False
    """,
    hidden="""
    8, 8, 18 -> True
    7, 8, 18 -> False
    17, 8, 18 -> True
    20, 20, 2 -> True
    2, 20, 2 -> False
    19, 20, 2 -> False
    0, 20, 2 -> True
    23, 20, 2 -> True
    12, 20, 2 -> False
    0, 0, 23 -> True
    23, 0, 23 -> False
    """,
    mutants="""
    hour < closes if => hour <= closes if
    opens <= hour or => opens < hour or
    if opens < closes => if True
    """,
)
def is_open(hour: int, opens: int, closes: int) -> bool:
    """Whether a bar is open at an hour of the day (0 to 23), given the hours at which it opens and closes.

    It is open at the hour it opens and closed at the hour it closes. It may close after midnight: then the
    hour it closes is smaller than the hour it opens. The two are never equal.
    """
    return opens <= hour and hour < closes if opens < closes else opens <= hour or hour < closes


@THEME.function(
    level=1,
    public="""
    3725 -> "1h 2m 5s"
    60 -> "1m"
    """,
    hidden="""
    0 -> "0s"
    1 -> "1s"
    59 -> "59s"
    61 -> "1m 1s"
    3600 -> "1h"
    3601 -> "1h 1s"
    3660 -> "1h 1m"
    7199 -> "1h 59m 59s"
    86400 -> "24h"
    360000 -> "100h"
    """,
    mutants="""
    if count => if count > 1
    or "0s" =>
    seconds // 3600 => seconds // 3600 % 24
    seconds // 60 % 60 => seconds // 60
    """,
)
def spell_duration(seconds: int) -> str:
    """Write a number of seconds as hours, minutes and seconds, leaving out what is 0; but 0 is "0s"."""
    parts = ((seconds // 3600, "h"), (seconds // 60 % 60, "m"), (seconds % 60, "s"))
    return " ".join(f"{count}{unit}" for count, unit in parts if count) or "0s"


@THEME.function(
    level=2,
    public="""
    [(5, 8), (1, 3), (2, 4)] -> [(1, 4), (5, 8)]
    [(1, 2), (2, 3)] -> [(1, 3)]
    """,
    hidden="""
    [] -> []
    [(4, 6)] -> [(4, 6)]
    [(1, 10), (2, 3)] -> [(1, 10)]
    [(2, 3), (1, 10), (4, 5)] -> [(1, 10)]
    [(1, 2), (3, 4)] -> [(1, 2), (3, 4)]
    [(6, 8), (1, 9), (2, 4), (4, 7)] -> [(1, 9)]
    [(0, 1), (1, 2), (2, 3), (5, 6)] -> [(0, 3), (5, 6)]
    [(1, 2), (5, 7), (6, 9)] -> [(1, 2), (5, 9)]
    [(1, 9), (20, 30), (22, 25), (40, 41)] -> [(1, 9), (20, 30), (40, 41)]
    [(-5, -1), (-2, 4)] -> [(-5, 4)]
    [(3, 5), (3, 5), (3, 4)] -> [(3, 5)]
    """,
    mutants="""
    start <= merged[-1][1] => start < merged[-1][1]
    max(merged[-1][1], end) => end
    sorted(bookings) => bookings
    """,
)
def merge_bookings(bookings: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge bookings (start, end) that overlap or touch; return what is booked, sorted."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(bookings):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


@THEME.function(
    level=2,
    public="""
    [(10, 12), (14, 15)], 9, 17, 1 -> [(9, 10), (12, 14), (15, 17)]
    [], 9, 17, 3 -> [(9, 17)]
    """,
    hidden="""
    [], 9, 17, 9 -> []
    [(9, 17)], 9, 17, 1 -> []
    [(9, 10), (16, 17)], 9, 17, 2 -> [(10, 16)]
    [(14, 15), (10, 12)], 9, 17, 2 -> [(12, 14), (15, 17)]
    [(10, 14), (11, 12)], 9, 17, 1 -> [(9, 10), (14, 17)]
    [(8, 10), (16, 20)], 9, 17, 1 -> [(10, 16)]
    [(1, 5)], 9, 17, 1 -> [(9, 17)]
    [(20, 22)], 9, 17, 1 -> [(9, 17)]
    [(10, 11), (11, 12), (13, 14)], 9, 15, 1 -> [(9, 10), (12, 13), (14, 15)]
    """,
    mutants="""
    max(free_from, end) => end
    min(start, closes) => start
    sorted(busy) => busy
    until - free_from >= least => until - free_from > least
    """,
)
def free_slots(busy: list[tuple[int, int]], opens: int, closes: int, least: int) -> list[tuple[int, int]]:
    """List the free times of a day, each as long as can be and at least ``least`` hours long (1 or more).

    The day goes from ``opens`` to ``closes``. Busy times may overlap, may be in any order, and may lie
    partly or wholly outside of the day.
    """
    free, free_from = [], opens
    for start, end in [*sorted(busy), (closes, closes)]:
        until = min(start, closes)
        if until - free_from >= least:
            free.append((free_from, until))
        free_from = max(free_from, end)
    return free


@THEME.function(
    level=2,
    public="""
    2023, 3, 1 -> 60
    2024, 3, 1 -> 61
    """,
    hidden="""
    2023, 1, 1 -> 1
    2023, 12, 31 -> 365
    2024, 12, 31 -> 366
    1900, 3, 1 -> 60
    2000, 3, 1 -> 61
    2024, 2, 29 -> 60
    2100, 12, 31 -> 365
    2023, 9, 30 -> 273
    2016, 7, 4 -> 186
    2023, 2, 28 -> 59
    """,
    mutants="""
    month > 2 and => month > 1 and
    or year % 400 == 0 =>
    and year % 100 != 0 =>
    lengths[: month - 1] => lengths[:month]
    """,
)
def day_of_year(year: int, month: int, day: int) -> int:
    """Return which day of its year a date is; January 1 is day 1.

    Every fourth year is a leap year, but of the full centuries only those that 400 divides.
    """
    leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    return sum(lengths[: month - 1]) + day + (month > 2 and leap)


@THEME.function(
    level=2,
    public="""
    [(1, 5), (2, 6), (5, 7)] -> 2
    [(1, 2)] -> 1
    """,
    hidden="""
    [] -> 0
    [(1, 2), (2, 3)] -> 1
    [(1, 2), (1, 2), (1, 2)] -> 3
    [(0, 10), (1, 9), (2, 8), (3, 7)] -> 4
    [(1, 3), (5, 7), (6, 9), (2, 4)] -> 2
    [(0, 5), (5, 10), (5, 6)] -> 2
    [(4, 6), (1, 9), (7, 8)] -> 2
    [(1, 100), (50, 51), (60, 61)] -> 2
    [(3, 4), (2, 4), (1, 4), (4, 5)] -> 3
    """,
    mutants="""
    came <= moment < went => came <= moment <= went
    came <= moment < went => came < moment < went
    default=0 => default=1
    """,
)
def most_guests(visits: list[tuple[int, int]]) -> int:
    """Return the most guests who were there at the same time, given when each came and went.

    A guest who goes at a moment is gone for those who come at this moment. Everybody stays for a while.
    """
    return max((sum(came <= moment < went for came, went in visits) for moment, _ in visits), default=0)


@THEME.function(
    level=2,
    public="""
    "09:00", 90, ["09:30-10:00"] -> "11:00"
    "08:00", 30, [] -> "08:30"
    """,
    hidden="""
    "08:00", 0, [] -> "08:00"
    "08:00", 60, ["09:00-10:00"] -> "09:00"
    "08:00", 61, ["09:00-10:00"] -> "10:01"
    "09:15", 10, ["09:00-10:00"] -> "10:10"
    "12:00", 60, ["09:00-10:00"] -> "13:00"
    "09:00", 120, ["09:30-10:00", "10:15-11:00"] -> "12:15"
    "10:00", 30, ["10:00-10:45"] -> "11:15"
    "10:45", 30, ["10:00-10:45"] -> "11:15"
    "07:05", 600, ["12:00-12:30", "15:00-15:10"] -> "17:45"
    """,
    mutants="""
    opens - clock >= left => opens - clock > left
    clock = max(clock, closes) => clock = closes
    left -= max(0, opens - clock) => left -= opens - clock
    """,
)
def done_at(start: str, minutes: int, breaks: list[str]) -> str:
    """Return when a job is done that takes a number of minutes and rests during breaks.

    Times are "HH:MM" and breaks "HH:MM-HH:MM", sorted and apart from each other. A job that would be done at
    the moment a break begins is done then; a job that begins within a break waits for the break's end. All
    is over before midnight.
    """

    def read(time: str) -> int:
        return 60 * int(time[:2]) + int(time[3:])

    clock, left = read(start), minutes
    for pause in breaks:
        opens, closes = (read(time) for time in pause.split("-"))
        if opens - clock >= left:
            break
        left -= max(0, opens - clock)
        clock = max(clock, closes)
    clock += left
    return f"{clock // 60:02}:{clock % 60:02}"


@THEME.function(
    level=3,
    public="""
    [(1, 4), (3, 5), (4, 7)] -> 2
    [] -> 0
    """,
    hidden="""
    [(1, 2)] -> 1
    [(1, 2), (2, 3), (3, 4)] -> 3
    [(1, 10), (2, 3), (4, 5), (6, 7)] -> 3
    [(1, 3), (1, 3), (1, 3)] -> 1
    [(1, 4), (3, 5), (0, 6), (5, 7), (3, 9), (5, 9), (6, 10), (8, 11), (8, 12), (2, 14), (12, 16)] -> 4
    [(5, 6), (1, 2), (3, 4)] -> 3
    [(0, 100), (1, 99), (2, 98)] -> 1
    [(1, 5), (4, 6), (5, 9)] -> 2
    [(1, 2), (1, 9), (8, 10), (9, 12)] -> 2
    """,
    mutants="""
    key=lambda talk: talk[1] => key=lambda talk: talk[0]
    key=lambda talk: talk[1] => key=lambda talk: talk[1] - talk[0]
    start >= free_from => start > free_from
    """,
)
def most_talks(talks: list[tuple[int, int]]) -> int:
    """Return the most talks (start, end) that one person can hear from start to end.

    One may begin at the very moment at which the one before ends. All times are 0 or more.
    """
    heard, free_from = 0, 0
    for start, end in sorted(talks, key=lambda talk: talk[1]):
        if start >= free_from:
            heard, free_from = heard + 1, end
    return heard


@THEME.function(
    level=3,
    public="""
    [(0, 4), (3, 9), (5, 10)], 10 -> 3
    [(0, 3), (4, 8)], 8 -> None
    """,
    hidden="""
    [], 5 -> None
    [], 0 -> 0
    [(0, 5)], 5 -> 1
    [(0, 9)], 5 -> 1
    [(1, 5)], 5 -> None
    [(0, 2), (2, 4), (4, 6)], 6 -> 3
    [(0, 2), (0, 3), (1, 6), (2, 7), (6, 8)], 8 -> 3
    [(0, 4), (2, 6), (3, 9), (5, 12)], 11 -> 3
    [(3, 10), (0, 3)], 10 -> 2
    [(0, 6), (1, 2), (2, 3), (6, 7)], 7 -> 2
    [(0, 5), (1, 4)], 6 -> None
    """,
    mutants="""
    start <= covered => start < covered
    default=covered => default=length
    count += 1 => count = len(lamps)
    covered < length => covered <= length
    """,
)
def fewest_lamps(lamps: list[tuple[int, int]], length: int) -> int | None:
    """Return the fewest lamps that light a street from 0 to ``length`` without a gap, or ``None``.

    A lamp (start, end) lights all from its start to its end; two that touch leave no gap. A street of length
    0 needs no lamp.
    """
    covered = count = 0
    while covered < length:
        farthest = max((end for start, end in lamps if start <= covered), default=covered)
        farthest = max(farthest, covered)
        if farthest == covered:
            return None
        covered = farthest
        count += 1
    return count


@THEME.function(
    level=3,
    public="""
    [(1, 3, 5), (2, 5, 6), (4, 6, 5)] -> 10
    [(1, 10, 7), (2, 3, 1)] -> 7
    """,
    hidden="""
    [] -> 0
    [(1, 2, 9)] -> 9
    [(1, 2, 1), (2, 3, 1)] -> 2
    [(1, 4, 3), (2, 6, 5), (4, 7, 2), (6, 8, 4)] -> 9
    [(3, 4, 10), (1, 5, 12), (5, 6, 1)] -> 13
    [(1, 3, 50), (2, 100, 200), (3, 5, 20), (6, 19, 100)] -> 200
    [(1, 3, 20), (2, 5, 20), (3, 10, 100), (4, 6, 70), (6, 9, 60)] -> 150
    [(1, 3, 5), (1, 3, 7), (1, 3, 6)] -> 7
    [(9, 10, 1), (5, 6, 2), (1, 2, 3)] -> 6
    [(1, 9, 10), (1, 4, 5), (4, 9, 4)] -> 10
    """,
    mutants="""
    done <= start => done < start
    best.append((end, max(best[-1][1], before + pay))) => best.append((end, before + pay))
    key=lambda job: job[1] => key=lambda job: -job[2]
    """,
)
def best_pay(jobs: list[tuple[int, int, int]]) -> int:
    """Return the most that one person can earn with jobs (start, end, pay), one at a time.

    A job must be done from start to end; the next may begin at the moment the last one ends.
    """
    best = [(0, 0)]  # (end, most earned with jobs that end by then)
    for start, end, pay in sorted(jobs, key=lambda job: job[1]):
        before = max(earned for done, earned in best if done <= start)
        best.append((end, max(best[-1][1], before + pay)))
    return best[-1][1]


@THEME.function(
    level=3,
    public="""
    2000, 1, 1 -> "Saturday"
    2024, 2, 29 -> "Thursday"
    """,
    hidden="""
    1999, 12, 31 -> "Friday"
    1900, 1, 1 -> "Monday"
    1900, 3, 1 -> "Thursday"
    2000, 3, 1 -> "Wednesday"
    2023, 1, 1 -> "Sunday"
    2100, 2, 28 -> "Sunday"
    2100, 3, 1 -> "Monday"
    1969, 7, 20 -> "Sunday"
    1600, 2, 29 -> "Tuesday"
    2400, 12, 31 -> "Sunday"
    2024, 12, 31 -> "Tuesday"
    2001, 1, 1 -> "Monday"
    1815, 6, 18 -> "Sunday"
    """,
    mutants="""
    - before // 100 =>
    + before // 400 =>
    month > 2 => month >= 2
    before = year - 1 => before = year
    """,
)
def weekday(year: int, month: int, day: int) -> str:
    """Return the English name of the weekday of a date from 1600 on, in the calendar of today.

    Every fourth year is a leap year, but of the full centuries only those that 400 divides. January 1, 2000
    was a Saturday. Do it without a calendar library.
    """
    before = year - 1
    leap = (year % 4 == 0 and year % 100 != 0) or year % 400 == 0
    lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
    days = 365 * before + before // 4 - before // 100 + before // 400
    days += sum(lengths[: month - 1]) + day + (month > 2 and leap)
    names = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"]
    return names[days % 7]
