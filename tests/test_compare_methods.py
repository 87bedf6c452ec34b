"""The comparison of methods over seeds."""

from itertools import pairwise

import compare_methods as script
import pytest
import yaml

from art_trainer.cli.run_config import gather_settings


def test_the_interval_of_a_difference_is_students_over_the_seeds():
    # Differences 1, 2, 3: mean 2, standard deviation 1, and 4.303 of it by the square root of 3.
    mean, low, high = script.difference([5.0, 5.0, 5.0], [6.0, 7.0, 8.0])
    assert (mean, low, high) == pytest.approx((2, 2 - 4.303 / 3**0.5, 2 + 4.303 / 3**0.5))
    assert script.difference([0.5, 0.5], [0.7, 0.7]) == pytest.approx((0.2, 0.2, 0.2))


def test_every_method_is_a_run_that_is_not_refused():
    for methods in (methods for tasks in script.EXPERIMENTS.values() for methods in tasks.values()):
        found = []
        for words in map(str.split, methods.values()):
            given = dict(word.split("=", 1) for flag, word in pairwise(words) if flag == "--set")
            overrides = {name: yaml.safe_load(value) for name, value in given.items()}
            recipe = words[words.index("--recipe") + 1]
            found.append(gather_settings({"output_dir": "x"}, overrides=overrides, recipe=recipe).config)
        assert len(found) == len(set(found)) > 1  # no two are the same
