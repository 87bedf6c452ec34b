"""Problems whose solution is a program that reads standard input and prints."""

from __future__ import annotations

from art_gym.envs.coding.problems.theme import Theme

THEME = Theme("scripts")


@THEME.script(
    level=1,
    public=r"""
    "3\n4 5 6\n" -> "15\n"
    "1\n-7\n" -> "-7\n"
    """,
    hidden=r"""
    "0\n\n" -> "0\n"
    "2\n0 0\n" -> "0\n"
    "4\n1 2\n3 4\n" -> "10\n"
    "5\n10 -10 20 -20 1\n" -> "1\n"
    "3\n1000000 1000000 1000000\n" -> "3000000\n"
    "2\n  8   9  \n" -> "17\n"
    "3\n1\n2\n3\n" -> "6\n"
    "2\n5 5 5\n" -> "10\n"
    """,
    mutants="""
    numbers[1 : 1 + numbers[0]] => numbers
    numbers[1 : 1 + numbers[0]] => numbers[1:]
    numbers[1 : 1 + numbers[0]] => numbers[1 : numbers[0]]
    """,
)
def add_up() -> None:
    """Read a number n, then n whole numbers, and print their sum.

    The numbers are separated by blanks or line breaks. What follows after the n numbers does not count.
    """
    import sys

    numbers = [int(word) for word in sys.stdin.read().split()]
    print(sum(numbers[1 : 1 + numbers[0]]))


@THEME.script(
    level=1,
    public=r"""
    "one\ntwo\nthree\n" -> "three\ntwo\none\n"
    "alone\n" -> "alone\n"
    """,
    hidden=r"""
    "a\nb" -> "b\na\n"
    "b\na\n" -> "a\nb\n"
    "x\n\ny\n" -> "y\n\nx\n"
    "  indented\nplain\n" -> "plain\n  indented\n"
    "1\n2\n3\n4\n5\n" -> "5\n4\n3\n2\n1\n"
    "same\nsame\n" -> "same\nsame\n"
    "A line with words\nanother line\n" -> "another line\nA line with words\n"
    "10\n9\n100\n" -> "100\n9\n10\n"
    """,
    mutants="""
    lines[::-1] => sorted(lines, reverse=True)
    lines[::-1] => lines
    lines[::-1] => [line[::-1] for line in lines]
    """,
)
def backwards() -> None:
    """Print the lines of the input in reverse order."""
    import sys

    lines = sys.stdin.read().splitlines()
    print("\n".join(lines[::-1]))


@THEME.script(
    level=1,
    public=r"""
    "to be or\nnot to be\n" -> "2 lines, 6 words\n"
    "hello\n" -> "1 line, 1 word\n"
    """,
    hidden=r"""
    "" -> "0 lines, 0 words\n"
    "\n" -> "1 line, 0 words\n"
    "a b\n" -> "1 line, 2 words\n"
    "a\nb\n" -> "2 lines, 2 words\n"
    "a\n\nb\n" -> "3 lines, 2 words\n"
    "  two   words  \n" -> "1 line, 2 words\n"
    "no line break at the end" -> "1 line, 6 words\n"
    "\n\n\n" -> "3 lines, 0 words\n"
    """,
    mutants="""
    '' if count == 1 else 's' => 's'
    '' if count == 1 else 's' => '' if count <= 1 else 's'
    text.split() => text.split(" ")
    """,
)
def count_text() -> None:
    """Count the lines and the words of the input and print them as in the examples.

    Words are separated by blanks and line breaks. It says "line" and "word" for 1, else "lines" and "words".
    """
    import sys

    text = sys.stdin.read()
    counts = {"line": len(text.splitlines()), "word": len(text.split())}
    print(", ".join(f"{count} {what}{'' if count == 1 else 's'}" for what, count in counts.items()))


@THEME.script(
    level=1,
    public=r"""
    "3 4\n" -> "3 6 9 12\n"
    "5 1\n" -> "5\n"
    """,
    hidden=r"""
    "1 10\n" -> "1 2 3 4 5 6 7 8 9 10\n"
    "0 3\n" -> "0 0 0\n"
    "-2 3\n" -> "-2 -4 -6\n"
    "12 12\n" -> "12 24 36 48 60 72 84 96 108 120 132 144\n"
    "7 2\n" -> "7 14\n"
    "100 5\n" -> "100 200 300 400 500\n"
    "9\n3\n" -> "9 18 27\n"
    "  6   2  \n" -> "6 12\n"
    """,
    mutants="""
    range(1, count + 1) => range(count)
    range(1, count + 1) => range(1, count)
    number * n => number + n
    """,
)
def times_table() -> None:
    """Read a number and a count, and print that many multiples of the number in one line.

    The first one is the number itself.
    """
    import sys

    number, count = (int(word) for word in sys.stdin.read().split())
    print(*(number * n for n in range(1, count + 1)))


@THEME.script(
    level=2,
    public=r"""
    "banana\n" -> "a ###\nn ##\nb #\n"
    "Hi, hi!\n" -> "h ##\ni ##\n"
    """,
    hidden=r"""
    "\n" -> ""
    "z\n" -> "z #\n"
    "abc\n" -> "a #\nb #\nc #\n"
    "cba cba ca\n" -> "a ###\nc ###\nb ##\n"
    "AaBb\nab\n" -> "a ###\nb ###\n"
    "123 !?\n" -> ""
    "hello world\n" -> "l ###\no ##\nd #\ne #\nh #\nr #\nw #\n"
    "the end\nthe start\n" -> "t ####\ne ###\nh ##\na #\nd #\nn #\nr #\ns #\n"
    """,
    mutants="""
    .lower() =>
    (-counts[letter], letter) => (counts[letter], letter)
    (-counts[letter], letter) => (-counts[letter], -ord(letter))
    """,
)
def letter_bars() -> None:
    """Print for each letter of the input a bar of as many "#" as it occurs, longest bars first.

    Upper and lower case count as the same letter, printed in lower case. Bars of the same length are in
    alphabetical order. Only the letters a to z count; without any nothing is printed.
    """
    import sys
    from collections import Counter

    counts = Counter(letter for letter in sys.stdin.read().lower() if "a" <= letter <= "z")
    for letter in sorted(counts, key=lambda letter: (-counts[letter], letter)):
        print(letter, "#" * counts[letter])


@THEME.script(
    level=2,
    public=r"""
    "2 apple 0.50\n1 bread 2.20\n" -> "apple 1.00\nbread 2.20\ntotal 3.20\n"
    "" -> "total 0.00\n"
    """,
    hidden=r"""
    "1 pin 0.01\n" -> "pin 0.01\ntotal 0.01\n"
    "10 pin 0.01\n" -> "pin 0.10\ntotal 0.10\n"
    "3 tea 1.10\n" -> "tea 3.30\ntotal 3.30\n"
    "100 nail 0.07\n2 hammer 12.99\n" -> "nail 7.00\nhammer 25.98\ntotal 32.98\n"
    "0 gift 99.00\n" -> "gift 0.00\ntotal 0.00\n"
    "1 a 0.10\n1 a 0.20\n" -> "a 0.10\na 0.20\ntotal 0.30\n"
    "7 egg 0.29\n7 egg 0.29\n7 egg 0.29\n" -> "egg 2.03\negg 2.03\negg 2.03\ntotal 6.09\n"
    "1 cheap 0.05\n" -> "cheap 0.05\ntotal 0.05\n"
    "2 yacht 1000000.00\n" -> "yacht 2000000.00\ntotal 2000000.00\n"
    """,
    mutants="""
    cents // 100 => cents // 10
    % 100:02} => % 100}
    total += cents => total = cents
    int(count) * int(price.replace(".", "")) => int(price.replace(".", ""))
    """,
)
def receipt() -> None:
    """Print a receipt. Each line of input has how many, of what, and the price of one with two decimals.

    Print for each line what it is and what it costs in all, then the total, as in the examples. Names are
    single words.
    """
    import sys

    def show(name: str, cents: int) -> None:
        print(f"{name} {cents // 100}.{cents % 100:02}")

    total = 0
    for line in sys.stdin:
        count, name, price = line.split()
        cents = int(count) * int(price.replace(".", ""))
        total += cents
        show(name, cents)
    show("total", total)


@THEME.script(
    level=2,
    public=r"""
    "5 2\n3 1 4 1 5\n1 3\n2 5\n" -> "8\n11\n"
    "1 1\n9\n1 1\n" -> "9\n"
    """,
    hidden=r"""
    "3 0\n1 2 3\n" -> ""
    "3 3\n1 2 3\n1 1\n2 2\n3 3\n" -> "1\n2\n3\n"
    "4 1\n-1 -2 -3 -4\n1 4\n" -> "-10\n"
    "2 2\n5 -5\n1 2\n2 2\n" -> "0\n-5\n"
    "6 3\n10 20 30 40 50 60\n1 6\n2 5\n6 6\n" -> "210\n140\n60\n"
    "4 2\n0 0 0 7\n1 3\n4 4\n" -> "0\n7\n"
    "3 2\n100 200 300\n1 2\n2 3\n" -> "300\n500\n"
    "5 1\n1 1 1 1 1\n3 5\n" -> "3\n"
    """,
    mutants="""
    first - 1 : last => first : last
    first - 1 : last => first - 1 : last - 1
    range(queries) => range(1, queries)
    """,
)
def stretch_sums() -> None:
    """Answer questions about the sum of a stretch of numbers.

    The input has n and q, then n numbers, then q pairs: the place of a stretch's first number and of its last
    one, counted from 1. Print the sum of each stretch in a line of its own.
    """
    import sys

    words = [int(word) for word in sys.stdin.read().split()]
    count, queries = words[:2]
    numbers, pairs = words[2 : 2 + count], words[2 + count :]
    for n in range(queries):
        first, last = pairs[2 * n : 2 * n + 2]
        print(sum(numbers[first - 1 : last]))


@THEME.script(
    level=2,
    public=r"""
    "set x 5\nadd x 3\nshow x\n" -> "8\n"
    "show y\n" -> "unknown\n"
    """,
    hidden=r"""
    "" -> ""
    "set a 1\n" -> ""
    "set a 1\nset a 2\nshow a\n" -> "2\n"
    "add z 4\nshow z\n" -> "4\n"
    "set a 1\nset b 2\nadd a 10\nshow b\nshow a\n" -> "2\n11\n"
    "set n -3\nadd n -4\nshow n\nshow n\n" -> "-7\n-7\n"
    "show q\nset q 0\nshow q\n" -> "unknown\n0\n"
    "set a 5\ndrop a\nshow a\n" -> "unknown\n"
    "drop nothing\nset k 9\nshow k\n" -> "9\n"
    "set a 5\ndrop a\nadd a 2\nshow a\n" -> "2\n"
    """,
    mutants="""
    values.get(name, 0) + => values.get(name, 1) +
    values.pop(name, None) => pass
    values.get(name, "unknown") => values.get(name, 0)
    """,
)
def memory() -> None:
    """Carry out the commands of the input, one a line, on numbers that have names.

    "set x 5" gives x the value 5; "add x 3" adds to it, to 0 if it has none; "drop x" takes its value away if
    it has one; "show x" prints its value, or "unknown".
    """
    import sys

    values: dict[str, int] = {}
    for line in sys.stdin:
        command, name, *number = line.split()
        if command == "set":
            values[name] = int(number[0])
        elif command == "add":
            values[name] = values.get(name, 0) + int(number[0])
        elif command == "drop":
            values.pop(name, None)
        else:
            print(values.get(name, "unknown"))


@THEME.script(
    level=2,
    public=r"""
    "a/b\na/c\nd\n" -> "a\n  b\n  c\nd\n"
    "x\n" -> "x\n"
    """,
    hidden=r"""
    "" -> ""
    "a/b/c/d\n" -> "a\n  b\n    c\n      d\n"
    "b\na\n" -> "a\nb\n"
    "a\na/b\n" -> "a\n  b\n"
    "a/b\na/b\n" -> "a\n  b\n"
    "z/y\nz/x\na/z\n" -> "a\n  z\nz\n  x\n  y\n"
    "a/b/c\na/d\na/b/e\n" -> "a\n  b\n    c\n    e\n  d\n"
    "lib/x/y\nbin\nlib/x/z\nlib/a\n" -> "bin\nlib\n  a\n  x\n    y\n    z\n"
    """,
    mutants="""
    sorted(tree) => tree
    "  " * depth => " " * depth
    show(tree[name], depth + 1) => show(tree[name], depth)
    """,
)
def outline() -> None:
    """Read paths such as "a/b/c", one a line, and print them as a tree.

    Each name stands once below the one it belongs to, two blanks further to the right, and the names that
    belong together are in alphabetical order.
    """
    import sys
    from typing import Any

    root: dict[str, Any] = {}
    for path in sys.stdin.read().split():
        place = root
        for part in path.split("/"):
            place = place.setdefault(part, {})

    def show(tree: dict[str, Any], depth: int) -> None:
        for name in sorted(tree):
            print("  " * depth + name)
            show(tree[name], depth + 1)

    show(root, 0)


@THEME.script(
    level=3,
    public=r"""
    "cold\nwarm\ncord card ward warm\n" -> "4\n"
    "cat\ndog\ncot\n" -> "no way\n"
    """,
    hidden=r"""
    "a\na\nb\n" -> "0\n"
    "a\nb\nb\n" -> "1\n"
    "a\nb\nc\n" -> "no way\n"
    "aaa\nbba\nbaa zaa zba bba\n" -> "2\n"
    "hit\ncog\nhot dot dog lot log cog\n" -> "4\n"
    "hit\ncog\nhot dot dog lot log\n" -> "no way\n"
    "aa\nbb\nab bb ba\n" -> "2\n"
    "lead\ngold\nload goad gold loan\n" -> "3\n"
    "red\ntax\nted tex rex tax tad den\n" -> "3\n"
    "abc\nxyz\nxbc xyc xyz abz ayz\n" -> "3\n"
    """,
    mutants="""
    == 1 => <= 2
    steps + 1 => steps + 2
    queue.pop(0) => queue.pop()
    """,
)
def word_ladder() -> None:
    """Print the fewest steps from one word to another, or "no way".

    The input has the two words in a line each and then the words one may step on, separated by blanks. A step
    changes one letter and must lead to one of these words. All words are of the same length.
    """
    import sys

    start, goal, *words = sys.stdin.read().split()
    queue, left = [(start, 0)], set(words) - {start}
    while queue:
        word, steps = queue.pop(0)
        if word == goal:
            print(steps)
            return
        near = {other for other in left if sum(a != b for a, b in zip(word, other, strict=True)) == 1}
        left -= near
        queue += [(other, steps + 1) for other in sorted(near)]
    print("no way")


@THEME.script(
    level=3,
    public=r"""
    "arrive ann 2\narrive bob 5\nnext\nnext\n" -> "bob\nann\n"
    "next\n" -> "nobody\n"
    """,
    hidden=r"""
    "" -> ""
    "arrive a 1\n" -> ""
    "arrive a 3\narrive b 3\nnext\nnext\nnext\n" -> "a\nb\nnobody\n"
    "arrive b 3\narrive a 3\nnext\nnext\n" -> "b\na\n"
    "arrive a 1\nleave a\nnext\n" -> "nobody\n"
    "arrive a 1\narrive b 2\nleave b\nnext\n" -> "a\n"
    "arrive a 10\narrive b 9\nnext\n" -> "a\n"
    "next\narrive a 4\nnext\nnext\n" -> "nobody\na\nnobody\n"
    "arrive x 1\narrive y 2\narrive z 3\nnext\narrive w 5\nnext\nnext\nnext\n" -> "z\nw\ny\nx\n"
    "arrive a 2\nleave b\narrive b 7\nleave a\narrive a 1\nnext\nnext\n" -> "b\na\n"
    """,
    mutants="""
    max(waiting, key=lambda each: => min(waiting, key=lambda each:
    int(words[2]) => words[2]
    waiting.pop(words[1], None) => waiting.clear()
    """,
)
def emergency() -> None:
    """Print who is called next in an emergency room.

    "arrive ann 5" is somebody who comes with an urgency; "leave ann" takes it back, if she waits;
    "next" prints who of those waiting is most urgent, of several who came first, and this person waits no
    longer; "nobody" if nobody waits. Nobody arrives who is waiting already.
    """
    import sys

    waiting: dict[str, int] = {}
    for line in sys.stdin:
        words = line.split()
        if words[0] == "arrive":
            waiting[words[1]] = int(words[2])
        elif words[0] == "leave":
            waiting.pop(words[1], None)
        elif waiting:
            called = max(waiting, key=lambda each: waiting[each])
            del waiting[called]
            print(called)
        else:
            print("nobody")


@THEME.script(
    level=3,
    public=r"""
    "10\n5 10\n4 40\n6 30\n3 50\n" -> "90\n"
    "0\n1 1\n" -> "0\n"
    """,
    hidden=r"""
    "5\n" -> "0\n"
    "5\n5 7\n" -> "7\n"
    "4\n5 7\n" -> "0\n"
    "10\n6 60\n5 50\n5 50\n" -> "100\n"
    "50\n10 60\n20 100\n30 120\n" -> "220\n"
    "6\n3 4\n3 4\n3 4\n" -> "8\n"
    "7\n2 3\n3 4\n4 5\n5 6\n" -> "9\n"
    "9\n8 100\n3 60\n3 60\n3 1\n" -> "121\n"
    "15\n12 4\n2 2\n1 1\n4 10\n1 2\n" -> "15\n"
    """,
    mutants="""
    range(room, weight - 1, -1) => range(weight, room + 1)
    best[load - weight] + value => best[load - weight] + 1
    range(room, weight - 1, -1) => range(room, weight, -1)
    """,
)
def rucksack() -> None:
    """Print the largest value that fits into a rucksack.

    The input has the weight that it can carry, then a line for each thing: its weight (1 or more) and its
    value. Each thing can be taken once.
    """
    import sys

    words = [int(word) for word in sys.stdin.read().split()]
    room, things = words[0], words[1:]
    best = [0] * (room + 1)
    for weight, value in zip(things[::2], things[1::2], strict=True):
        for load in range(room, weight - 1, -1):
            best[load] = max(best[load], best[load - weight] + value)
    print(best[room])


@THEME.script(
    level=3,
    public=r"""
    "4\n1 2 3 4\n2\n2 1 4 3\n1 2\n" -> "yes\nno\n"
    "1\n7\n1\n7\n" -> "yes\n"
    """,
    hidden=r"""
    "2\n1 2\n2\n1 2\n2 1\n" -> "yes\nyes\n"
    "3\n1 2 3\n3\n3 2 1\n3 1 2\n2 3 1\n" -> "yes\nno\nyes\n"
    "5\n1 2 3 4 5\n2\n4 5 3 2 1\n4 3 5 1 2\n" -> "yes\nno\n"
    "3\n5 6 7\n2\n5 6 7\n5 6\n" -> "yes\nno\n"
    "3\n1 2 3\n1\n1 2 4\n" -> "no\n"
    "3\n1 2 3\n1\n1 2 3 3\n" -> "no\n"
    "4\n9 8 7 6\n2\n6 7 8 9\n8 9 6 7\n" -> "yes\nyes\n"
    "6\n1 2 3 4 5 6\n2\n3 2 5 6 4 1\n1 5 3 2 4 6\n" -> "yes\nno\n"
    """,
    mutants="""
    while stack and => if stack and
    done == row and not stack => sorted(row) == sorted(wagons)
    stack[-1:] == => stack[:1] ==
    """,
)
def siding() -> None:
    """Say whether wagons can leave a siding in a given order.

    The wagons come one after the other, in the order given, into a siding with one open end: only the wagon
    that came last can leave it, at any time. The input has n, the n different numbers of the wagons, then q,
    then q lines with an order each. Print "yes" or "no" for each: whether exactly this order of all the
    wagons is possible.
    """
    import sys

    lines = [[int(word) for word in line.split()] for line in sys.stdin.read().splitlines()]
    wagons = lines[1]
    for row in lines[3:]:
        stack: list[int] = []
        done: list[int] = []
        for wagon in wagons:
            stack.append(wagon)
            while stack and stack[-1:] == row[len(done) : len(done) + 1]:
                done.append(stack.pop())
        print("yes" if done == row and not stack else "no")
