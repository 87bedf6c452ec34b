"""``make bench-check``: which figures are compared, and when one has fallen."""

import json
from pathlib import Path

import check_baselines as script
import pytest

BASELINES = Path(__file__).parents[1] / "benchmarks" / "baselines"


def test_numbers_are_found_below_places_in_objects_and_lists():
    found = {"ways": [{"times": 3}, {"times": 5, "rate": 2}], "ratios": {"a": {"b": 1.5}}, "cores": 2}
    assert script.figures_in(found, ["ways/1/times", "ratios"]) == {"ways/1/times": 5, "ratios/a/b": 1.5}


@pytest.mark.parametrize(("name", "sign"), [("launches", 1), ("sandbox", -1)])
def test_a_figure_has_fallen_if_it_is_worse_by_more_than_the_noise(name, sign):
    first = script.make_baseline(name, "a", [{"n": 9, "m": 1, "r": 1.5}])
    more = [{"n": value, "m": 1, "r": 1.5} for value in (10, 11)]
    baseline = script.make_baseline(name, "b", more, first)
    assert baseline["commits"] == ["a", "b"]
    noise = [script.median_and_noise(values)[1] for values in baseline["figures"].values()]
    assert noise == [4, 0, pytest.approx(0.03)]

    def fallen(**found):
        figures = baseline["figures"].items()
        return [
            one for one, values in figures if script.has_fallen(baseline["better"], values, found.get(one))
        ]

    assert fallen(n=10 + 5 * sign, m=1 + sign, r=1.5) == ["n", "m"]
    assert fallen(n=10 - 5 * sign, m=1 - sign, r=1.5 + 0.02 * sign) == []
    assert fallen(n=10 + 4 * sign, m=1) == ["r"], "missing"


@pytest.mark.parametrize("file", sorted(BASELINES.glob("*.json")), ids=lambda file: file.stem)
def test_a_baseline_says_how_it_was_made(file):
    baseline = json.loads(file.read_text())
    assert baseline["command"] == f"python benchmarks/{script.COMPARED[file.stem][0]} --quick"
    assert {"machine", "cores", "figures"} <= baseline.keys()
    assert baseline["commits"]
    assert not any("dirty" in commit for commit in baseline["commits"])
