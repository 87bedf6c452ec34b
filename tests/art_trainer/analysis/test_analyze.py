import dataclasses

import numpy as np
import pytest

from art_trainer.analysis import analyze, episode_records
from art_trainer.analysis.run_records import Sums, read_run
from art_trainer.errors import ConfigError
from art_trainer.tracking.run_dir import RunFolder
from art_trainer.types import Ending, Span, TokenHistory
from tests.art_trainer.analysis.drifting_runs import (
    Play,
    episode_of,
    honest,
    pays_length,
    write_evaluation,
    write_metrics,
    write_records,
    write_run,
)


@pytest.fixture
def run(tmp_path):
    folder = write_run(tmp_path / "run", honest, steps=24, groups=4, size=4)
    RunFolder(folder).write_settings(
        {"env": "toy/Env-v0", "model": "tiny", "groups_per_step": 8, "num_generations": 4}
    )
    write_metrics(folder, {"num_tokens": [100.0] * 24, "entropy": list(np.linspace(1, 0.8, 24))})
    write_evaluation(folder, "before", [False] * 30 + [True] * 10)
    write_evaluation(folder, "after", [True] * 28 + [False] * 12)
    return folder


def test_every_question_of_a_run_is_answered(run):
    found = analyze(run).runs[0]
    assert (found.env, found.model, found.steps, found.episodes) == ("toy/Env-v0", "tiny", 24, 384)
    assert found.recorded_share == pytest.approx(0.5)
    assert found.success.count == 384
    assert len(found.windows) == 8
    assert [row.episodes for row in found.windows] == [48] * 8
    assert [row.steps for row in found.windows[::7]] == ["1–3", "22–24"]
    assert found.windows[-1].success.value > found.windows[0].success.value + 0.3
    assert {"score/correct", "score/invalid_action"} <= found.windows[0].means.keys()
    reward, correct, penalty = found.gains
    assert (reward.name, correct.name, penalty.name) == ("reward", "correct", "invalid_action")
    assert correct.change + penalty.change == pytest.approx(reward.change)
    assert (correct.penalty, penalty.penalty) == (False, True)
    assert correct.unexplained == pytest.approx(0.0, abs=1e-9)
    assert found.endings == {"terminated": 1.0}


@pytest.mark.parametrize(("wins", "low"), [([8, 0], 0.29), ([4, 4], 0.42), ([0, 0], 0.0), ([8, 8], 0.84)])
def test_attempts_of_one_group_belong_together_in_the_interval_of_success(tmp_path, wins, low):
    """By Wilson: of 20 groups that each say one thing, or of 160 attempts that differ by luck alone."""
    members = [[episode_of(Play(k < n, [""], {}), g, g) for k in range(8)] for g, n in enumerate(wins * 10)]
    found = analyze(write_records(tmp_path, {1: members})).runs[0].success
    assert (found.value, found.count) == (sum(wins) / 16, 160)
    assert found.low == pytest.approx(low, abs=0.01)


def test_actions_are_counted_by_turn_the_late_ones_together(run, tmp_path):
    tools = analyze(run).runs[0].tools
    first = {tool.tool: tool for tool in tools if tool.turn == 1}
    assert set(first) == {"say", "(invalid)"}
    assert first["say"].count + first["(invalid)"].count == 384
    assert first["say"].share + first["(invalid)"].share == pytest.approx(1.0)
    assert first["(invalid)"].early > first["(invalid)"].late
    long = write_run(
        tmp_path / "long", lambda _, rng: Play(True, ["x"] * 30, {"a": 1.0}), steps=2, groups=1, size=2
    )
    tools = analyze(long).runs[0].tools
    assert [tool.count for tool in tools] == [4] * 10 + [80]
    assert (tools[-1].turn, tools[-1].later) == (11, True)


def test_tasks_are_rated_in_evaluation_and_training(run):
    evaluated, trained = analyze(run).runs[0].tasks
    assert (evaluated.tasks, evaluated.always, evaluated.sometimes, evaluated.never) == (40, 28, 0, 12)
    assert all(rate.rate == 0 for rate in evaluated.hardest)
    assert trained.of == "training"
    assert trained.always + trained.sometimes + trained.never == trained.tasks


def test_tasks_whose_ids_differ_in_numbers_are_one_kind(tmp_path):
    def attempt(kind, success, k):
        return dataclasses.replace(
            episode_of(Play(success, ["x"], {"a": 1.0}), k, k), task_id=f"{kind}-{k:03d}"
        )

    groups = [
        [attempt(kind, k % 10 < wins, k)] for k in range(20) for kind, wins in (("easy", 9), ("hard", 1))
    ]
    found = analyze(write_records(tmp_path, {1: groups})).runs[0]
    assert [(one.task_id, one.successes) for one in found.tasks[0].families] == [("hard", 2), ("easy", 18)]
    assert "worst are tasks of the kind `hard`" in found.verdict.failures


def test_tokens_as_logged_or_recorded(run, tmp_path):
    assert analyze(run).runs[0].usage == {"sampled": 2400.0, "evaluated": 800.0}
    spans = (Span((1, 2, 3)), Span((4, 5), 0, (-0.5, -0.5)), Span((6,)))
    plain = episode_of(Play(True, ["x"], {"a": 1.0}), 0, 0)
    folder = tmp_path / "tokens"
    write_records(folder, {1: [[dataclasses.replace(plain, histories=(TokenHistory(spans),))]]})
    found = analyze(folder).runs[0]
    assert found.usage == {"sampled": 2.0, "read": 4.0, "per_episode": 2.0, "evaluated": 0.0}
    assert found.windows[0].means["tokens"] == 2.0


def test_an_evaluation_that_is_missing_is_named(run, tmp_path):
    with pytest.raises(ConfigError, match=r"no evaluation 'aftr'; did you mean `after`\?"):
        analyze(run, between=("before", "aftr"))
    bare = write_run(tmp_path / "bare", honest, steps=1)
    with pytest.raises(ConfigError, match="bare has no evaluation to compare"):
        analyze([run, bare], compare=True)


def test_the_episodes_as_records(run, tmp_path):
    other = write_run(tmp_path / "other", pays_length, steps=2, groups=1, size=3)
    records = list(episode_records([run, other]))
    assert len(records) == 384 + 6
    assert np.mean([one["success"] for one in records if one["run"] == str(run) and one["step"] > 16]) > 0.5
    assert all(("score/thoroughness" in one) == (one["run"] == str(other)) for one in records)
    assert list(episode_records([tmp_path])) == []


def test_faults_are_counted_and_in_no_average(tmp_path):
    def script(progress, rng):
        ending = Ending.ENV_ERROR if rng.random() < 0.3 else Ending.TERMINATED
        return Play(None if ending is Ending.ENV_ERROR else True, ["x"], {"a": 1.0}, ending=ending)

    found = analyze(write_run(tmp_path / "run", script, steps=8)).runs[0]
    assert 0.2 < found.faults / (found.faults + found.episodes) < 0.4
    assert found.success.value == 1.0
    assert found.errors[0].kind == "env_error"


def test_a_run_without_records_and_folders_without_a_run(tmp_path):
    (tmp_path / "run").mkdir()
    with pytest.raises(ConfigError, match="holds no run: it has no"):
        analyze(tmp_path / "run")
    (tmp_path / "run" / "run.yaml").touch()
    with pytest.raises(ConfigError, match=r"holds no run: name one of those in it, as in .*/run$"):
        analyze(tmp_path)
    found = analyze(tmp_path / "run").runs[0]
    assert (found.episodes, found.steps, found.windows, found.gains) == (0, 0, (), ())
    assert found.verdict.learned.startswith("Unknown")
    assert found.verdict.failures.startswith("Unknown")
    with pytest.raises(FileNotFoundError, match="missing"):
        analyze(tmp_path / "missing")
    with pytest.raises(ConfigError, match="at least one"):
        analyze([])


def test_what_a_killed_run_left_is_counted_not_fatal(run):
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write('[1]\n{"step": NaN, "reward": "x"}\n{"step": 25, "rew')
    records = next(run.glob("episodes*"))
    records.write_bytes(records.read_bytes()[:-200])
    found = analyze(run).runs[0]
    assert found.broken_lines == 2
    assert [words.partition("run/")[2] for words in found.damage] == [
        "metrics.jsonl has 1 lines that cannot be read",
        "episodes.jsonl.zst ends at step 23, metrics.jsonl at step 24",
    ]
    assert 0 < found.episodes < 384
    assert found.verdict.learned.startswith("Yes")


def test_the_part_of_the_reward_without_a_name_is_shown(tmp_path):
    steps = {}
    for step in range(1, 9):
        episode = episode_of(Play(True, ["x"], {"a": 1.0}), 0, step)
        turn = dataclasses.replace(episode.turns[0], reward=1.0 + step)
        steps[step] = [[dataclasses.replace(episode, turns=(turn,))]]
    gains = {gain.name: gain for gain in analyze(write_records(tmp_path, steps)).runs[0].gains}
    assert gains["(unnamed)"].share == pytest.approx(1.0)
    assert gains["a"].change == 0.0


def test_the_size_of_the_statistics_does_not_grow_with_the_run(tmp_path):
    curve = list(np.linspace(0.0, 1.0, 5_000))
    write_metrics(tmp_path, {"reward": curve})
    (found,) = [curve for curve in analyze(tmp_path).runs[0].curves if curve.name == "reward"]
    assert 40 <= len(found.steps) <= 96
    assert found.values[0] == pytest.approx(0.0, abs=0.02)
    assert found.values[-1] == pytest.approx(1.0, abs=0.02)
    assert np.mean(found.values) == pytest.approx(0.5, abs=0.01)


def test_sums_of_ranges_add_up_to_those_of_the_whole(run):
    records = read_run(run)
    early, late = records.thirds
    middle = [sums for _, sums in records.windows.ranges()][8:16]
    whole = records.whole
    assert Sums([early, *middle, late]) == pytest.approx(whole)
    rewards = np.array([one["reward"] for one in episode_records([run])])
    assert whole.mean("reward") == pytest.approx(rewards.mean())
    assert whole.std("reward") == pytest.approx(rewards.std(ddof=1))
