import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainerControl, TrainerState
from transformers.trainer_callback import EarlyStoppingCallback

from art_trainer.best_model import BestModel, metric_name
from art_trainer.errors import ConfigError


def hear_all(best: BestModel, values: list[float]) -> list[tuple[bool, bool]]:
    verdicts = [best.hear(step, {"eval_reward": value}) for step, value in enumerate(values)]
    return [(verdict.improved, verdict.stop) for verdict in verdicts]


def test_the_best_is_the_first_of_the_highest():
    best = BestModel()
    assert [improved for improved, _ in hear_all(best, [0.1, 0.5, 0.5, 0.4])] == [True, True, False, False]
    assert (best.best_step, best.best_value) == (1, 0.5)


def test_success_is_compared_where_it_is_told_and_else_the_reward():
    best = BestModel()
    best.hear(0, {"eval_reward": 9.0, "eval_success": 0.25})
    assert (best.metric, best.best_value) == ("eval_success", 0.25)
    assert not best.hear(1, {"eval_reward": 10.0, "eval_success": 0.25}).improved


@pytest.mark.parametrize(("metric", "better"), [("turns", 1.0), ("invalid_actions", 1.0), ("reward", 3.0)])
def test_fewer_turns_and_more_reward_are_better(metric, better):
    best = BestModel(metric)
    for step, value in enumerate((2.0, 3.0, 1.0)):
        best.hear(step, {f"eval_{metric}": value})
    assert best.best_value == better
    upside_down = BestModel(metric, greater_is_better=better != 3.0)
    for step, value in enumerate((2.0, 3.0, 1.0)):
        upside_down.hear(step, {f"eval_{metric}": value})
    assert upside_down.best_value == 4.0 - better


def test_a_small_rise_is_the_best_but_does_not_count_as_getting_better():
    best = BestModel(patience=2, threshold=0.1)
    assert hear_all(best, [0.5, 0.55, 0.6]) == [(True, False), (True, False), (True, True)]


def test_a_rise_above_the_threshold_gives_new_patience():
    best = BestModel(patience=2, threshold=0.1)
    assert [stop for _, stop in hear_all(best, [0.5, 0.4, 0.7, 0.4, 0.4])] == [False] * 4 + [True]


@given(
    values=st.lists(st.floats(-100, 100, width=16), min_size=1, max_size=12),
    patience=st.integers(1, 4),
    threshold=st.sampled_from([0.0, 0.5, 10.0]),
    greater=st.booleans(),
)
def test_it_stops_when_transformers_would(values, patience, threshold, greater):
    class Arguments:
        metric_for_best_model = "eval_reward"
        greater_is_better = greater

    callback = EarlyStoppingCallback(patience, threshold)
    state, control = TrainerState(), TrainerControl()
    best = BestModel("eval_reward", greater_is_better=greater, patience=patience, threshold=threshold)
    for step, value in enumerate(values):
        control.should_training_stop = False
        callback.on_evaluate(Arguments(), state, control, {"eval_reward": value})
        verdict = best.hear(step, {"eval_reward": value})
        if state.best_metric is None or (value > state.best_metric if greater else value < state.best_metric):
            state.best_metric = value
            assert verdict.improved
        assert verdict.stop == control.should_training_stop
        assert best.best_value == state.best_metric


def test_a_resumed_run_goes_on_as_if_never_stopped():
    values = [0.2, 0.5, 0.4, 0.3, 0.6, 0.1, 0.1]
    whole = hear_all(BestModel(patience=3), values)
    for cut in range(len(values)):
        first, second = BestModel(patience=3), BestModel(patience=3)
        hear_all(first, values[:cut])
        second.restore(json.loads(json.dumps(first.state())))
        rest = [second.hear(step, {"eval_reward": values[step]}) for step in range(cut, len(values))]
        assert [(verdict.improved, verdict.stop) for verdict in rest] == whole[cut:]


def test_a_step_evaluated_again_counts_once():
    best = BestModel(patience=1)
    best.hear(0, {"eval_reward": 0.5})
    assert best.hear(0, {"eval_reward": 0.5}) == best.hear(0, {"eval_reward": 0.7})
    assert (best.best_value, best.hear(1, {"eval_reward": 0.6}).improved) == (0.5, True)


def test_what_is_no_number_is_never_the_best():
    best = BestModel(patience=2)
    assert hear_all(best, [math.nan, 0.1, math.nan, math.nan]) == [
        (False, False),
        (True, False),
        (False, False),
        (False, True),
    ]


def test_an_evaluation_without_figures_changes_nothing():
    best = BestModel("eval_success", patience=1)
    assert best.hear(0, {"eval_turns": 0.0}) == best.hear(1, {"eval_turns": 0.0})
    assert best.hear(2, {"eval_success": 0.5}).improved
    assert not best.hear(3, {"eval_reward": 0.5, "eval_turns": 0.0}).stop


def test_a_metric_the_environment_does_not_tell_is_refused_at_once():
    with pytest.raises(
        ConfigError, match=r"'eval_success', but the first evaluation has none.*'eval_reward'"
    ):
        BestModel("success").hear(0, {"eval_reward": 1.0, "eval_turns": 2.0})


def test_the_state_of_another_metric_is_left():
    other = BestModel("turns")
    other.hear(5, {"eval_turns": 2.0})
    best = BestModel("reward")
    best.restore(other.state())
    assert best.best_step is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"metric": "sucess"}, "did you mean `eval_success`"),
        ({"patience": 0}, "early_stopping_patience is 0"),
        ({"threshold": -0.1}, "early_stopping_threshold is -0.1"),
        ({"threshold": math.inf}, "early_stopping_threshold is inf"),
    ],
)
def test_settings_that_make_no_sense_are_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        BestModel(**arguments)


def test_a_metric_can_be_named_without_its_prefix():
    assert metric_name("reward") == metric_name("eval_reward") == "eval_reward"
