"""Problems about words and letters."""

from __future__ import annotations

from art_gym.envs.coding.problems.theme import Theme

THEME = Theme("text")


@THEME.function(
    level=1,
    public="""
    "ada byron king" -> "ABK"
    "Grace" -> "G"
    """,
    hidden="""
    "" -> ""
    "   " -> ""
    "  alan   mathison turing " -> "AMT"
    "e" -> "E"
    "John von Neumann" -> "JVN"
    "jean-luc picard" -> "JP"
    "a b c d e" -> "ABCDE"
    "MARIE curie" -> "MC"
    "7 of 9" -> "7O9"
    """,
    mutants="""
    .upper() =>
    split() => strip().split(" ")[:3]
    word[0] => word[-1]
    """,
)
def initials(name: str) -> str:
    """Return the first letter of each word of a name, in upper case and without anything between them.

    Words are separated by one or more blanks; there may also be blanks at both ends. What has no word has no
    initials.
    """
    return "".join(word[0] for word in name.split()).upper()


@THEME.function(
    level=1,
    public="""
    "bookkeeper" -> 3
    "Aardvark" -> 1
    "1001" -> 0
    """,
    hidden="""
    "" -> 0
    "a" -> 0
    "aaa" -> 2
    "Llama" -> 1
    "no  blanks  count" -> 0
    "Mississippi" -> 3
    "ab ba" -> 0
    "!!!" -> 0
    "zZzZ" -> 3
    "the end" -> 0
    """,
    mutants="""
    text.lower() => text
    and lowered[n].isalpha() =>
    len(lowered) - 1 => len(lowered) - 2
    """,
)
def count_doubles(text: str) -> int:
    """Count the places where a letter is followed by the same letter, upper and lower case being alike.

    In "aaa" there are two such places. Digits, blanks and marks are no letters.
    """
    lowered = text.lower()
    return sum(lowered[n] == lowered[n + 1] and lowered[n].isalpha() for n in range(len(lowered) - 1))


@THEME.function(
    level=1,
    public="""
    "The five boxing wizards jump quickly" -> ""
    "abcdefghijklm" -> "nopqrstuvwxyz"
    """,
    hidden="""
    "" -> "abcdefghijklmnopqrstuvwxyz"
    "Z" -> "abcdefghijklmnopqrstuvwxy"
    "zyx" -> "abcdefghijklmnopqrstuvw"
    "Pack my box with five dozen jugs" -> "lqr"
    "PACK MY BOX WITH FIVE DOZEN LIQUOR JUGS" -> ""
    "The quick brown fox jumps over the lazy cat" -> "dg"
    "bcdefghijklmnopqrstuvwxy" -> "az"
    "1234 aeiou" -> "bcdfghjklmnpqrstvwxyz"
    """,
    mutants="""
    not in => in
    text.lower() => text
    "abcdefghijklmnopqrstuvwxyz" => "abcdefghijklmnopqrstuvwxy"
    """,
)
def missing_letters(text: str) -> str:
    """Return the letters from a to z that do not occur in a text, in alphabetical order, in lower case.

    A letter occurs if it is there in upper or in lower case.
    """
    present = set(text.lower())
    return "".join(letter for letter in "abcdefghijklmnopqrstuvwxyz" if letter not in present)


@THEME.function(
    level=1,
    public="""
    "see you soon" -> "see you SOON"
    "now" -> "NOW"
    """,
    hidden="""
    "" -> ""
    "a b" -> "a B"
    "stop it" -> "stop IT"
    "one  two" -> "one  TWO"
    "ends with blank " -> "ends with blank "
    "already LOUD" -> "already LOUD"
    "x1 y2 z3" -> "x1 y2 Z3"
    "well-known fact-check" -> "well-known FACT-CHECK"
    "la la la" -> "la la LA"
    """,
    mutants="""
    rpartition => partition
    start + blank => start
    last.upper() => last.capitalize()
    """,
)
def stress_the_end(text: str) -> str:
    """Write what follows the last blank of a text in upper case and leave the rest as it is.

    A text without a blank is written in upper case as a whole.
    """
    start, blank, last = text.rpartition(" ")
    return start + blank + last.upper()


@THEME.function(
    level=2,
    public="""
    "aaabccd" -> "3ab2cd"
    "xyz" -> "xyz"
    """,
    hidden="""
    "" -> ""
    "a" -> "a"
    "aa" -> "2a"
    "aaaaaaaaaaaa" -> "12a"
    "abababa" -> "abababa"
    "aabbaa" -> "2a2b2a"
    "AAaa" -> "2A2a"
    "hello  world" -> "he2lo2 world"
    "zzzy" -> "3zy"
    "yzzz" -> "y3z"
    """,
    mutants="""
    count > 1 => count > 2
    text[end] == text[start] => text[end].lower() == text[start].lower()
    count = end - start => count = (end - start) % 10
    """,
)
def pack_runs(text: str) -> str:
    """Shorten runs of the same character: write the length of the run, then the character once.

    A run of length one is written without a number. The text contains no digits; upper and lower case differ.
    """
    packed, start = "", 0
    while start < len(text):
        end = start
        while end < len(text) and text[end] == text[start]:
            end += 1
        count = end - start
        packed += (str(count) if count > 1 else "") + text[start]
        start = end
    return packed


@THEME.function(
    level=2,
    public="""
    "the lord of the rings", ["of", "the"] -> "The Lord of the Rings"
    "war and peace", [] -> "War And Peace"
    """,
    hidden="""
    "", ["a"] -> ""
    "a tale of two cities", ["a", "of"] -> "A Tale of Two Cities"
    "of mice and men", ["of", "and"] -> "Of Mice and Men"
    "THE OLD MAN AND THE SEA", ["the", "and"] -> "The Old Man and the Sea"
    "emma", ["emma"] -> "Emma"
    "to the lighthouse", ["To", "the"] -> "To the Lighthouse"
    "catch-22", ["catch"] -> "Catch-22"
    "up and up and up", ["up"] -> "Up And up And up"
    """,
    mutants="""
    index == 0 or => index < 0 or
    text.lower() => text
    not in small => in small
    """,
)
def title(text: str, small: list[str]) -> str:
    """Write a title: words begin with a capital and go on in lower case, small words are in lower case.

    Words are separated by single blanks. The first word is never treated as a small word. The list of small
    words is compared as it is written, with the words in lower case.
    """
    words = text.lower().split(" ")
    return " ".join(
        word.capitalize() if index == 0 or word not in small else word for index, word in enumerate(words)
    )


@THEME.function(
    level=2,
    public="""
    "Attack at dawn!", 3 -> "Dwwdfn dw gdzq!"
    "xyz", 1 -> "yza"
    """,
    hidden="""
    "", 5 -> ""
    "abc", 0 -> "abc"
    "abc", 26 -> "abc"
    "abc", -1 -> "zab"
    "Zebra", 2 -> "Bgdtc"
    "Hello, World 42", 13 -> "Uryyb, Jbeyq 42"
    "mno", 1000 -> "yza"
    "ZzAa", -27 -> "YyZz"
    "n", 13 -> "a"
    "Café", 1 -> "Dbgé"
    """,
    mutants="""
    % 26 => % 25
    "A" if letter.isupper() else "a" => "a"
    letter not in string.ascii_letters => letter == " "
    letter not in string.ascii_letters => not letter.isalpha()
    + shift => - shift
    """,
)
def turn_letters(text: str, shift: int) -> str:
    """Replace each letter from a to z by the one ``shift`` places later, beginning again at a after z.

    A negative shift goes back. Upper case stays upper case; what is not one of these letters stays as it is.
    """
    import string

    turned = ""
    for letter in text:
        if letter not in string.ascii_letters:
            turned += letter
            continue
        first = ord("A" if letter.isupper() else "a")
        turned += chr(first + (ord(letter) - first + shift) % 26)
    return turned


@THEME.function(
    level=2,
    public="""
    "the quick brown fox", 9 -> ["the quick", "brown fox"]
    "a incomprehensible b", 5 -> ["a", "incomprehensible", "b"]
    """,
    hidden="""
    "", 10 -> []
    "word", 4 -> ["word"]
    "word", 3 -> ["word"]
    "one two three", 3 -> ["one", "two", "three"]
    "one two three", 7 -> ["one two", "three"]
    "one two three", 6 -> ["one", "two", "three"]
    "one two three", 100 -> ["one two three"]
    "a b c d e f", 3 -> ["a b", "c d", "e f"]
    "  extra   blanks here ", 12 -> ["extra blanks", "here"]
    "tail is longest", 7 -> ["tail is", "longest"]
    """,
    mutants="""
    <= width => < width
    len(lines[-1]) + 1 => len(lines[-1])
    text.split() => text.split(" ")
    """,
)
def wrap(text: str, width: int) -> list[str]:
    """Break a text into lines of at most ``width`` characters, each filled with as many words as fit.

    Words are separated by blanks; in a line there is one blank between two words. A word longer than a line
    stands in a line of its own, uncut. A text without words has no lines.
    """
    lines: list[str] = []
    for word in text.split():
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += " " + word
        else:
            lines.append(word)
    return lines


@THEME.function(
    level=2,
    public="""
    ["flowchart", "flower", "flow"] -> "flow"
    ["dog", "cat"] -> ""
    """,
    hidden="""
    [] -> ""
    ["alone"] -> "alone"
    ["", "abc"] -> ""
    ["same", "same", "same"] -> "same"
    ["ab", "abc", "abd"] -> "ab"
    ["Abc", "abc"] -> ""
    ["xab", "yab"] -> ""
    ["prefix", "pre", "prefixes", "press"] -> "pre"
    ["abcd", "abxd"] -> "ab"
    """,
    mutants="""
    break => continue
    else "" => else "-"
    min(words, key=len) => words[0][:-1]
    """,
)
def shared_start(words: list[str]) -> str:
    """Return the longest text that all the words begin with; for an empty list the empty text."""
    shared = ""
    shortest = min(words, key=len) if words else ""
    for position, letter in enumerate(shortest):
        if any(word[position] != letter for word in words):
            break
        shared += letter
    return shared


@THEME.function(
    level=2,
    public="""
    "banana" -> "abanan"
    "abc" -> "abc"
    """,
    hidden="""
    "" -> ""
    "z" -> "z"
    "ba" -> "ab"
    "cab" -> "abc"
    "aab" -> "aab"
    "baa" -> "aab"
    "abab" -> "abab"
    "dcba" -> "adcb"
    "mississippi" -> "imississipp"
    "Zaz" -> "Zaz"
    """,
    mutants="""
    min( => max(
    range(len(text)) => range(len(text) - 1)
    text[cut:] + text[:cut] => text[cut:] + text[:cut][::-1]
    """,
)
def first_rotation(text: str) -> str:
    """Return the rotation of a text that comes first in alphabetical order (the order of ``<`` on ``str``).

    A rotation moves some characters from the beginning to the end, in their order.
    """
    return min((text[cut:] + text[:cut] for cut in range(len(text))), default="")


@THEME.function(
    level=3,
    public="""
    "kitten", "sitting" -> 3
    "form", "from" -> 1
    """,
    hidden="""
    "", "" -> 0
    "abc", "" -> 3
    "", "ab" -> 2
    "same", "same" -> 0
    "ab", "ba" -> 1
    "abcd", "badc" -> 2
    "teh", "the" -> 1
    "Case", "case" -> 1
    "sunday", "saturday" -> 3
    "intention", "execution" -> 5
    "abcdef", "fabcde" -> 2
    "ca", "abc" -> 3
    """,
    mutants="""
    a[i - 2] == b[j - 1] => a[i - 2] == b[j - 2]
    (a[i - 1] != b[j - 1]) => 1
    rows[i][j - 1] + 1 => rows[i][j - 1] + 2
    rows[i - 2][j - 2] + 1 => rows[i - 2][j - 2]
    """,
)
def typing_slips(a: str, b: str) -> int:
    """Return the fewest slips that turn one text into another.

    A slip leaves a character out, puts one in, replaces one by another, or swaps two neighbours. No
    character takes part in a swap and in another slip too.
    """
    rows = [[0] * (len(b) + 1) for _ in range(len(a) + 1)]
    for i in range(len(a) + 1):
        for j in range(len(b) + 1):
            if i == 0 or j == 0:
                rows[i][j] = i + j
                continue
            best = min(rows[i - 1][j] + 1, rows[i][j - 1] + 1, rows[i - 1][j - 1] + (a[i - 1] != b[j - 1]))
            if i > 1 and j > 1 and a[i - 1] == b[j - 2] and a[i - 2] == b[j - 1]:
                best = min(best, rows[i - 2][j - 2] + 1)
            rows[i][j] = best
    return rows[-1][-1]


@THEME.function(
    level=3,
    public="""
    "xabbay" -> "abba"
    "abc" -> "a"
    """,
    hidden="""
    "" -> ""
    "z" -> "z"
    "aa" -> "aa"
    "racecar" -> "racecar"
    "abacdfgdcaba" -> "aba"
    "forgeeksskeegfor" -> "geeksskeeg"
    "abcbaXabcdcba" -> "cbaXabc"
    "aaaa" -> "aaaa"
    "babad" -> "bab"
    "Aba" -> "A"
    "abcdb" -> "a"
    "noon at noon" -> "noon"
    """,
    mutants="""
    (middle, middle + 1) => (middle, middle)
    > len(best) => >= len(best)
    start >= 0 => start > 0
    """,
)
def longest_mirror(text: str) -> str:
    """Return the longest part of a text that reads the same from both ends; of several the first.

    Upper and lower case differ, and blanks count.
    """
    best = ""
    for middle in range(len(text)):
        for start, end in ((middle, middle), (middle, middle + 1)):
            while start >= 0 and end < len(text) and text[start] == text[end]:
                start, end = start - 1, end + 1
            if end - start - 1 > len(best):
                best = text[start + 1 : end]
    return best


@THEME.function(
    level=3,
    public="""
    "report.txt", "*.txt" -> True
    "report.txt", "r?port" -> False
    """,
    hidden="""
    "", "" -> True
    "", "*" -> True
    "", "?" -> False
    "a", "" -> False
    "abc", "a*c" -> True
    "abc", "a*b" -> False
    "abc", "???" -> True
    "abc", "??" -> False
    "abcabc", "*abc" -> True
    "abcabd", "*abc" -> False
    "aab", "*a*b*" -> True
    "mississippi", "m*iss*p?" -> True
    "xbc", "abc" -> False
    "mississippi", "m*iss*x?" -> False
    "a.b", "a?b" -> True
    "xay", "x*?y" -> True
    "xy", "x*?y" -> False
    """,
    mutants="""
    in ("?", letter) => in ("?", "a", letter)
    row[0] and mark == "*" => False
    before or after[-1] => before
    if mark == "*" => if mark in "*?"
    """,
)
def fits(name: str, pattern: str) -> bool:
    """Whether a name fits a pattern as a whole.

    In a pattern ``?`` stands for exactly one character and ``*`` for any number of characters, none
    included. Every other character stands for itself.
    """
    row = [True] + [False] * len(name)  # row[n]: whether the pattern so far fits name[:n]
    for mark in pattern:
        after = [row[0] and mark == "*"]
        for position, letter in enumerate(name):
            before = row[position + 1]
            if mark == "*":
                after.append(before or after[-1])
            else:
                after.append(row[position] and mark in ("?", letter))
        row = after
    return row[-1]


@THEME.function(
    level=3,
    public="""
    "adobecodebanc", "abc" -> "banc"
    "hello", "oz" -> None
    """,
    hidden="""
    "", "a" -> None
    "abc", "" -> ""
    "a", "a" -> "a"
    "a", "aa" -> None
    "aabbcc", "abc" -> "abbc"
    "abcabc", "cab" -> "abc"
    "xaxbxcx", "cba" -> "axbxc"
    "aaab", "aab" -> "aab"
    "abAB", "AB" -> "AB"
    "cabwefgewcwaefgcf", "cae" -> "cwae"
    "zzzabzz", "zz" -> "zz"
    "abxba", "ab" -> "ab"
    """,
    mutants="""
    Counter(letters) => Counter(set(letters))
    < len(best) => <= len(best)
    missing[text[start]] < 0 => missing[text[start]] < -1
    """,
)
def shortest_part(text: str, letters: str) -> str | None:
    """Return the shortest part of a text that contains all the letters, each as often as it is listed.

    Of several shortest parts the first counts. ``None`` if there is none. If no letters are listed, the
    answer is the empty text.
    """
    from collections import Counter

    missing = Counter(letters)
    if not letters:
        return ""
    best, start, open_letters = None, 0, len(letters)
    for end, letter in enumerate(text):
        open_letters -= missing[letter] > 0
        missing[letter] -= 1
        while not open_letters and missing[text[start]] < 0:
            missing[text[start]] += 1
            start += 1
        if not open_letters and (best is None or end + 1 - start < len(best)):
            best = text[start : end + 1]
    return best
