"""The table of places in CONTRIBUTING.md is true."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
TABLE = TEXT.partition("## Where things are")[2].partition("## Rules")[0]
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ") and "`" in line]


@pytest.mark.parametrize("row", ROWS)
def test_each_row_names_at_most_three_places_that_exist(row):
    places = re.findall(r"`([\w./]+/[\w./*]*)`", row)
    assert 1 <= len(places) <= 3
    for place in places:
        assert any(ROOT.glob(place.rstrip("/"))), place


def test_make_targets_that_are_named_exist():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)`", TEXT)) <= targets


def test_the_slow_tests_exist():
    for line in (ROOT / "tests/slow.txt").read_text().splitlines():
        file, _, name = line.partition("::")
        assert line.startswith("#") or f"def {name}(" in (ROOT / file).read_text("utf-8"), line
