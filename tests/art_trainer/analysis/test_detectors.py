import dataclasses
import json

import numpy as np
import pytest

from art_trainer.analysis import Confidence, analyze
from art_trainer.types import Ending
from tests.art_trainer.analysis.drifting_runs import (
    Play,
    honest,
    pays_length,
    words,
    write_evaluation,
    write_metrics,
    write_run,
)

STRONG, POSSIBLE, NONE, UNKNOWN = Confidence.STRONG, Confidence.POSSIBLE, Confidence.NONE, Confidence.UNKNOWN


def findings_of(folder):
    run = analyze(folder).runs[0]
    return run, {finding.name: finding for finding in run.findings}


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
        accused += run.verdict.confidence.rank >= Confidence.LIKELY.rank
    assert accused <= 1


def test_the_log_alone_shows_it_if_no_episode_is_on_record(tmp_path):
    rng = np.random.default_rng(0)
    bonus, correct = np.linspace(0.1, 2.0, 24), 0.3 + 0.02 * rng.normal(size=24)
    curves = {"score/bonus": bonus, "score/correct": correct, "success": correct, "reward": bonus + correct}
    write_metrics(tmp_path / "run", {name: list(values) for name, values in curves.items()})
    run, findings = findings_of(tmp_path / "run")
    assert run.episodes == 0
    assert findings["reward_without_success"].confidence is STRONG
    assert findings["dominant_term"].confidence is STRONG
    assert "`bonus`" in findings["dominant_term"].evidence
    honest_curves = {"score/correct": bonus, "success": bonus, "reward": bonus, "score/x": correct}
    write_metrics(tmp_path / "other", {name: list(values / 2) for name, values in honest_curves.items()})
    assert findings_of(tmp_path / "other")[0].verdict.confidence is NONE


def test_a_term_that_a_step_does_not_log_counts_as_zero(tmp_path):
    lines = [{"step": k, "reward": 1.0, **({"score/rare": 0.6} if k % 2 else {})} for k in range(1, 13)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run, _ = findings_of(tmp_path)
    (curve,) = (curve for curve in run.curves if curve.name == "score/rare")
    assert curve.values == (0.6, 0.0) * 6


def learns_calls(progress, rng):
    """Penalties fade while success stays rare: the reward rises, but nobody was paid for anything else."""
    success = bool(rng.random() < 0.1)
    invalid = int(rng.random() < 0.9 * (1 - progress))
    replies = [words(5, rng) for _ in range(1 + invalid)]
    terms = {"correct": float(success), "invalid_action": -1.0 * invalid}
    return Play(success, replies, terms, invalid=invalid)


def gives_up(progress, rng):
    """Penalties fade because the model answers less and less: fewer of its answers are wrong, and right."""
    answers = rng.random() < 1 - 0.9 * progress
    success = bool(answers and rng.random() < 0.2)
    wrong = -1.0 * (answers and not success)
    return Play(success, [words(5, rng) if answers else "pass"], {"correct": float(success), "wrong": wrong})


def scores_points(progress, rng):
    """A game whose goal is never reached."""
    return Play(False, ["left", "up"], {"points": 100 * (1 + progress) + 20 * rng.normal()})


def without_success(progress, rng):
    return Play(None, [words(4, rng)], {"points": progress + 0.1 * rng.normal()})


def longer_for_nothing(progress, rng):
    play = honest(progress, rng)
    return dataclasses.replace(play, replies=[words(int(4 + 30 * progress * rng.random()), rng)], invalid=0)


def longer_and_better(progress, rng):
    """Thinking longer solves more: length and reward go together, but only through success."""
    count = int(4 + 30 * progress * rng.random())
    success = bool(rng.random() < min(0.95, 0.1 + count / 30))
    return Play(success, [words(count, rng)], {"correct": float(success)})


def repeats_calls(progress, rng):
    replies = ["look"] * 6 if rng.random() < progress else [words(5, rng) for _ in range(6)]
    return Play(bool(rng.random() < 0.3), replies, {"correct": 0.1})


def repeats_words(progress, rng):
    reply = "very very " * 10 if rng.random() < progress else words(20, rng)
    return Play(bool(rng.random() < 0.3), [reply], {"correct": 0.1})


def one_template(progress, rng):
    return Play(bool(rng.random() < 0.3), ["none" if progress > 0.5 else words(5, rng)], {"correct": 0.1})


def one_template_that_succeeds(progress, rng):
    return Play(bool(rng.random() < 0.97), ["yes"], {"correct": 1.0})


def fails_alike(progress, rng):
    return Play(False, [words(3, rng)], {"correct": float(rng.random() < 0.4) if progress < 0.3 else 0.0})


def solves_alike(progress, rng):
    return Play(progress > 0.3, [words(3, rng)], {"correct": float(progress > 0.3)})


def loses_its_way(progress, rng):
    lost = rng.random() < 0.8 * progress
    ending = Ending.CONTEXT_FULL if lost else Ending.TERMINATED
    return Play(False, [words(3, rng)] * 2, {"correct": 0.0}, ending=ending, invalid=2 if lost else 0)


@pytest.mark.parametrize(
    ("script", "found"),
    [
        (pays_length, {"dominant_term": STRONG, "longer_replies": STRONG}),
        (learns_calls, {"reward_without_success": NONE, "dominant_term": NONE}),
        (gives_up, {"reward_without_success": STRONG}),
        (scores_points, {"reward_without_success": POSSIBLE}),
        (without_success, {"reward_without_success": UNKNOWN}),
        (longer_for_nothing, {"longer_replies": NONE}),
        (longer_and_better, {"longer_replies": NONE, "reward_without_success": NONE}),
        (repeats_calls, {"repetition": STRONG}),
        (repeats_words, {"repetition": STRONG}),
        (one_template, {"template_replies": STRONG}),
        (one_template_that_succeeds, {"template_replies": NONE}),
        (fails_alike, {"zero_variance_groups": STRONG}),
        (solves_alike, {"zero_variance_groups": NONE}),
        (loses_its_way, {"rising_invalid_actions": STRONG, "rising_cut_off": STRONG}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_each_drift_shows(tmp_path, script, found):
    run, findings = findings_of(write_run(tmp_path, script))
    assert {name: findings[name].confidence for name in found} == found
    hacking = [finding.confidence for finding in run.findings if finding.reward_hacking]
    expected = max(hacking, key=lambda confidence: confidence.rank)
    assert run.verdict.confidence is expected
    ranks = [finding.confidence.rank for finding in run.findings]
    assert ranks == sorted(ranks, reverse=True)
    if script is scores_points:
        assert run.verdict.learned.startswith("Its reward rose: success stays at 0%")


def test_a_reward_that_rises_without_any_success_is_no_yes(tmp_path):
    folder = write_run(tmp_path, scores_points)
    write_evaluation(folder, "before", [0.0] * 60)
    write_evaluation(folder, "after", [0.5] * 60)
    run, _ = findings_of(folder)
    assert run.verdict.learned.startswith(
        "Only its reward rose: success stays at 0%, and the held-out reward"
    )


def test_held_out_success_counts_before_that_of_training(tmp_path):
    folder = write_run(tmp_path, pays_length)
    write_evaluation(folder, "before", [k % 2 == 0 for k in range(60)])
    write_evaluation(folder, "after", [k % 2 == 0 for k in range(59)] + [True])
    run, findings = findings_of(folder)
    assert "held-out success went from 50% to 52%" in findings["reward_without_success"].evidence
    assert findings["reward_without_success"].confidence is STRONG
    assert run.verdict.learned.startswith("Not by more than chance: held-out success")


@pytest.mark.parametrize(
    ("own", "expected"), [(0.0, {"likely", "possible"}), (-0.8, {"strong"}), (1.0, {"no sign"})]
)
def test_a_judge_that_pays_for_what_the_environment_does_not(tmp_path, own, expected):
    def script(progress, rng):
        judged = 0.2 + 0.6 * progress + 0.1 * rng.normal()
        paid = own * progress + 0.5 * rng.normal()
        return Play(bool(rng.random() < 0.5), [words(4, rng)], {"ruler": judged}, own=paid, judged=judged)

    run, findings = findings_of(write_run(tmp_path, script, groups=12))
    assert findings["judge_env_divergence"].confidence in expected
    (judged,) = (curve for curve in run.curves if curve.name == "judge/ruler")
    assert judged.values[-1] - judged.values[0] == pytest.approx(0.6, abs=0.1)


def test_a_policy_that_stops_exploring(tmp_path):
    folder = write_run(tmp_path, idle)
    write_metrics(folder, {"entropy": list(np.geomspace(1.0, 0.001, 24)), "reward": [0.5] * 24})
    assert findings_of(folder)[1]["entropy_collapse"].confidence is STRONG


def test_what_a_step_could_not_measure_is_no_sign(tmp_path):
    """The entropy of a step that trained nothing, and equal rewards in groups of one (PPO)."""
    steps = {"entropy": [1.0] * 12 + [0.0] * 12, "trained_tokens": [9.0] * 12 + [0.0] * 12}
    write_metrics(tmp_path, {**steps, "reward": [0.5] * 24, "frac_reward_zero_std": [1.0] * 24})
    (tmp_path / "run.yaml").write_text("num_generations: 1")
    findings = findings_of(tmp_path)[1]
    assert findings["entropy_collapse"].confidence is NONE
    assert findings["zero_variance_groups"].confidence is UNKNOWN


def test_a_run_of_few_steps_is_left_open(tmp_path):
    run, findings = findings_of(write_run(tmp_path, pays_length, steps=4))
    assert findings["reward_without_success"].confidence is UNKNOWN
    assert run.verdict.confidence is UNKNOWN
    for finding in run.findings:
        assert finding.evidence
        assert "runs with the fault" in finding.reliability
        assert all(word in finding.threshold for word in ("possible", "likely", "strong"))
