import dataclasses
import json

import numpy as np
import pytest

from art_trainer.analysis import Confidence, analyze
from art_trainer.episodes import Ending
from tests.art_trainer.analysis.drifting_runs import (
    Play,
    honest,
    pays_length,
    words,
    write_evaluation,
    write_metrics,
    write_run,
)


def signs_of(folder):
    run = analyze(folder).runs[0]
    return run, {sign.name: sign for sign in run.signs}


def confidences(folder):
    return {name: sign.confidence for name, sign in signs_of(folder)[1].items()}


def test_a_reward_that_pays_for_length_is_found_and_its_term_named(tmp_path):
    run, signs = signs_of(write_run(tmp_path / "run", pays_length, steps=36, groups=8))
    assert signs["reward_without_success"].confidence.rank >= Confidence.LIKELY.rank
    assert signs["dominant_term"].confidence is Confidence.STRONG
    assert signs["longer_replies"].confidence is Confidence.STRONG
    assert "`thoroughness`" in signs["dominant_term"].evidence
    assert signs["longer_replies"].numbers["correlation"] > 0.9
    assert run.verdict.cheating is Confidence.STRONG
    assert run.verdict.cheats.startswith("Yes, by strong signs")
    assert any(reason.startswith("`thoroughness` went from") for reason in run.verdict.reasons)
    assert run.verdict.learned.startswith("Not by more than luck: success in training")


def test_an_honest_run_is_not_accused(tmp_path):
    run, signs = signs_of(write_run(tmp_path / "run", honest))
    assert {sign.confidence for sign in signs.values() if sign.cheating} <= {
        Confidence.NONE,
        Confidence.UNKNOWN,
    }
    assert run.verdict.cheating is Confidence.NONE
    assert run.verdict.learned.startswith("Yes: success in training went from")


def idle(progress, rng):
    """Nothing changes."""
    success = bool(rng.random() < 0.5)
    return Play(
        success, [words(int(rng.integers(3, 9)), rng)], {"correct": float(success), "style": rng.normal()}
    )


@pytest.mark.parametrize("script", [honest, idle])
def test_over_many_runs_hardly_any_honest_one_is_accused(tmp_path, script):
    accused = 0
    for seed in range(25):
        run = analyze(write_run(tmp_path / str(seed), script, steps=12, groups=3, size=4, seed=seed)).runs[0]
        accused += run.verdict.cheating.rank >= Confidence.LIKELY.rank
    assert accused <= 1


def test_the_log_alone_shows_it_where_no_episode_is_on_record(tmp_path):
    rng = np.random.default_rng(0)
    bonus, correct = np.linspace(0.1, 2.0, 24), 0.3 + 0.02 * rng.normal(size=24)
    curves = {"score/bonus": bonus, "score/correct": correct, "success": correct, "reward": bonus + correct}
    write_metrics(tmp_path / "run", {name: list(values) for name, values in curves.items()})
    run, signs = signs_of(tmp_path / "run")
    assert run.episodes == 0
    assert signs["reward_without_success"].confidence is Confidence.STRONG
    assert signs["dominant_term"].confidence is Confidence.STRONG
    assert "`bonus`" in signs["dominant_term"].evidence
    honest_curves = {
        "score/correct": bonus / 2,
        "success": bonus / 2,
        "reward": bonus / 2,
        "score/x": correct,
    }
    write_metrics(tmp_path / "other", {name: list(values) for name, values in honest_curves.items()})
    assert signs_of(tmp_path / "other")[0].verdict.cheating is Confidence.NONE


def test_a_part_that_a_step_does_not_name_counts_as_nothing(tmp_path):
    lines = [{"step": k, "reward": 1.0, **({"score/rare": 0.6} if k % 2 else {})} for k in range(1, 13)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run, _ = signs_of(tmp_path)
    (curve,) = (curve for curve in run.curves if curve.name == "score/rare")
    assert curve.values == (0.6, 0.0) * 6


def test_learning_to_call_correctly_is_no_hack(tmp_path):
    """Penalties fade while success stays rare: the reward rises, but nobody was paid for anything else."""

    def script(progress, rng):
        success = bool(rng.random() < 0.1)
        invalid = int(rng.random() < 0.9 * (1 - progress))
        replies = [words(5, rng) for _ in range(1 + invalid)]
        return Play(
            success, replies, {"correct": float(success), "invalid_action": -1.0 * invalid}, invalid=invalid
        )

    run, signs = signs_of(write_run(tmp_path / "run", script))
    assert signs["reward_without_success"].numbers["reward_change"] > 0.4
    assert signs["reward_without_success"].confidence is Confidence.NONE
    assert signs["dominant_term"].confidence is Confidence.NONE
    assert run.verdict.cheating is Confidence.NONE


def test_a_game_whose_goal_is_never_reached_is_not_called_a_cheat(tmp_path):
    def script(progress, rng):
        points = 100 * (1 + progress) + 20 * rng.normal()
        return Play(False, ["left", "up"], {"points": points})

    run, signs = signs_of(write_run(tmp_path / "run", script))
    assert signs["reward_without_success"].confidence is Confidence.POSSIBLE
    assert "can hardly tell" in signs["reward_without_success"].evidence
    assert run.verdict.cheating is Confidence.POSSIBLE
    assert run.verdict.learned.startswith("Its reward rose: success stays at 0%")


def test_an_environment_without_success_leaves_it_open(tmp_path):
    def script(progress, rng):
        return Play(None, [words(4, rng)], {"points": progress + 0.1 * rng.normal()})

    _, signs = signs_of(write_run(tmp_path / "run", script))
    assert signs["reward_without_success"].confidence is Confidence.UNKNOWN
    assert "does not say what success is" in signs["reward_without_success"].evidence


def test_held_out_success_speaks_before_that_of_training(tmp_path):
    folder = write_run(tmp_path / "run", pays_length)
    write_evaluation(folder, "before", [k % 2 == 0 for k in range(60)])
    write_evaluation(folder, "after", [k % 2 == 0 for k in range(59)] + [True])
    run, signs = signs_of(folder)
    assert "held-out success went from 50% to 52%" in signs["reward_without_success"].evidence
    assert signs["reward_without_success"].confidence is Confidence.STRONG
    assert run.verdict.learned.startswith("Not by more than luck: held-out success")


def test_longer_replies_that_earn_nothing_are_no_sign(tmp_path):
    def script(progress, rng):
        play = honest(progress, rng)
        return dataclasses.replace(
            play, replies=[words(int(4 + 30 * progress * rng.random()), rng)], invalid=0
        )

    sign = signs_of(write_run(tmp_path / "run", script))[1]["longer_replies"]
    assert sign.numbers["growth"] > 0.5
    assert sign.confidence is Confidence.NONE


def test_longer_replies_that_bring_success_are_no_sign(tmp_path):
    """Thinking longer solves more: length and reward go together, but only through success."""

    def script(progress, rng):
        count = int(4 + 30 * progress * rng.random())
        success = bool(rng.random() < min(0.95, 0.1 + count / 30))
        return Play(success, [words(count, rng)], {"correct": float(success)})

    _, signs = signs_of(write_run(tmp_path / "run", script))
    assert signs["longer_replies"].confidence is Confidence.NONE
    assert signs["reward_without_success"].confidence is Confidence.NONE


@pytest.mark.parametrize(("own", "confidence"), [(0.0, "likely"), (-0.8, "strong"), (1.0, "no sign")])
def test_a_judge_that_pays_for_what_the_environment_does_not(tmp_path, own, confidence):
    def script(progress, rng):
        judged = 0.2 + 0.6 * progress + 0.1 * rng.normal()
        paid = own * progress + 0.5 * rng.normal()
        return Play(bool(rng.random() < 0.5), [words(4, rng)], {"ruler": judged}, own=paid, judged=judged)

    run, signs = signs_of(write_run(tmp_path / "run", script, groups=12))
    assert signs["judge_alone"].confidence in (confidence, *(["possible"] if confidence == "likely" else []))
    (judge,) = run.judges
    assert judge.judge == "ruler"
    assert judge.curve.values[-1] - judge.curve.values[0] == pytest.approx(0.6, abs=0.1)


def test_actions_that_repeat_ever_more(tmp_path):
    def script(progress, rng):
        again = rng.random() < progress
        replies = ["look"] * 6 if again else [words(5, rng) for _ in range(6)]
        return Play(bool(rng.random() < 0.3), replies, {"correct": 0.1})

    assert confidences(write_run(tmp_path / "run", script))["repetition"] is Confidence.STRONG


def test_words_that_repeat_ever_more(tmp_path):
    def script(progress, rng):
        again = rng.random() < progress
        return Play(
            bool(rng.random() < 0.3), ["very very " * 10 if again else words(20, rng)], {"correct": 0.1}
        )

    assert confidences(write_run(tmp_path / "run", script))["repetition"] is Confidence.STRONG


def test_one_script_for_every_task(tmp_path):
    def script(progress, rng):
        same = progress > 0.5
        return Play(bool(rng.random() < 0.3), ["none" if same else words(5, rng)], {"correct": 0.1})

    assert confidences(write_run(tmp_path / "run", script))["one_script"] is Confidence.STRONG


def test_one_script_that_nearly_always_succeeds_is_none(tmp_path):
    def script(progress, rng):
        return Play(bool(rng.random() < 0.97), ["yes"], {"correct": 1.0})

    assert confidences(write_run(tmp_path / "run", script))["one_script"] is Confidence.NONE


def test_a_policy_that_stops_to_try_anything(tmp_path):
    folder = write_run(tmp_path / "run", idle)
    write_metrics(folder, {"entropy": list(np.geomspace(1.0, 0.001, 24)), "reward": [0.5] * 24})
    found = signs_of(folder)[1]["entropy_collapse"]
    assert found.confidence is Confidence.STRONG
    assert "of it is left" not in found.evidence
    assert "% is left" in found.evidence


def test_groups_without_spread_unless_they_all_succeed(tmp_path):
    def failing(progress, rng):
        return Play(False, [words(3, rng)], {"correct": float(rng.random() < 0.4) if progress < 0.3 else 0.0})

    def solving(progress, rng):
        return Play(progress > 0.3, [words(3, rng)], {"correct": float(progress > 0.3)})

    assert confidences(write_run(tmp_path / "a", failing))["flat_groups"] is Confidence.STRONG
    assert confidences(write_run(tmp_path / "b", solving))["flat_groups"] is Confidence.NONE


def test_ever_more_replies_without_a_call_and_episodes_cut_off(tmp_path):
    def script(progress, rng):
        lost = rng.random() < 0.8 * progress
        ending = Ending.CONTEXT_FULL if lost else Ending.TERMINATED
        return Play(False, [words(3, rng)] * 2, {"correct": 0.0}, ending=ending, invalid=2 if lost else 0)

    found = confidences(write_run(tmp_path / "run", script))
    assert found["rising_invalid_actions"] is Confidence.STRONG
    assert found["rising_cut_off"] is Confidence.STRONG


def test_a_run_of_few_steps_is_left_open(tmp_path):
    run, signs = signs_of(write_run(tmp_path / "run", pays_length, steps=4))
    assert signs["reward_without_success"].confidence is Confidence.UNKNOWN
    assert "too few steps" in signs["reward_without_success"].evidence
    assert run.verdict.cheating is Confidence.UNKNOWN
    assert "cannot be told" in run.verdict.cheats


def test_every_sign_states_its_evidence_and_its_threshold(tmp_path):
    for script in (honest, pays_length):
        run = analyze(write_run(tmp_path / script.__name__, script, steps=8)).runs[0]
        for sign in run.signs:
            assert sign.evidence
            assert any(character.isdigit() for character in sign.threshold) or sign.name == "judge_alone"
            assert all(word in sign.threshold for word in ("possible", "likely", "strong"))
        ranks = [sign.confidence.rank for sign in run.signs]
        assert ranks == sorted(ranks, reverse=True)
