import json
import math

import numpy as np
import polars
import pytest

from art_trainer.analysis import Prices, analyze
from art_trainer.episodes import Ending, Group, Span, TokenHistory
from art_trainer.errors import ConfigError
from art_trainer.records import EpisodeWriter
from art_trainer.run_folder import RunFolder
from tests.art_trainer.analysis.drifting_runs import (
    Play,
    episode_of,
    honest,
    pays_length,
    write_evaluation,
    write_metrics,
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
    assert (found.env, found.model, found.steps, found.episodes, found.faults) == (
        "toy/Env-v0",
        "tiny",
        24,
        384,
        0,
    )
    assert found.recorded_share == pytest.approx(0.5)
    assert found.success.count == 384
    assert len(found.windows) == 8
    assert [row.episodes for row in found.windows] == [48] * 8
    assert (found.windows[0].first_step, found.windows[0].last_step, found.windows[-1].last_step) == (
        1,
        3,
        24,
    )
    assert found.windows[-1].success.value > found.windows[0].success.value + 0.3
    assert found.windows[0].terms.keys() == {"correct", "invalid_action"}
    reward, correct, penalty = found.gains
    assert (reward.name, correct.name, penalty.name) == ("reward", "correct", "invalid_action")
    assert correct.change + penalty.change == pytest.approx(reward.change)
    assert (correct.penalty, penalty.penalty) == (False, True)
    assert correct.unexplained == pytest.approx(0.0, abs=1e-9)
    assert found.endings == {"terminated": 1.0}


def test_actions_are_counted_by_turn(run):
    tools = analyze(run).runs[0].tools
    first = {tool.tool: tool for tool in tools if tool.turn == 1}
    assert set(first) == {"say", "(invalid)"}
    assert first["say"].count + first["(invalid)"].count == 384
    assert first["say"].share + first["(invalid)"].share == pytest.approx(1.0)
    assert first["(invalid)"].early > first["(invalid)"].late
    assert {tool.tool for tool in tools if tool.turn == 2} == {"say"}


def test_late_turns_are_counted_together(tmp_path):
    write_run(
        tmp_path / "run", lambda progress, rng: Play(True, ["x"] * 30, {"a": 1.0}), steps=2, groups=1, size=2
    )
    tools = analyze(tmp_path / "run").runs[0].tools
    assert [tool.count for tool in tools] == [4] * 10 + [80]
    assert (tools[-1].turn, tools[-1].later) == (11, True)


def test_tasks_are_rated_in_evaluation_and_training(run):
    evaluated, trained = analyze(run).runs[0].tasks
    assert (evaluated.of, evaluated.tasks, evaluated.always, evaluated.never) == (
        "the evaluation",
        40,
        28,
        12,
    )
    assert all(rate.rate == 0 for rate in evaluated.hardest)
    assert trained.of == "training"
    assert trained.always + trained.sometimes + trained.never == trained.tasks
    assert trained.seen_again.value > 0


def test_kinds_of_tasks_are_told_by_their_ids(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "episodes").mkdir()
    lines = []
    for k in range(20):
        for kind, rate in (("easy", 0.9), ("hard", 0.1)):
            play = Play(bool(rng.random() < rate), ["x"], {"a": 1.0})
            data = episode_of(play, k, k).to_json() | {"task_id": f"{kind}-{k:03d}"}
            lines.append(json.dumps(data) + "\n")
    (tmp_path / "episodes" / "step-000001.jsonl").write_text("".join(lines))
    found = analyze(tmp_path).runs[0]
    assert [family.task_id for family in found.tasks[0].families] == ["hard", "easy"]
    assert "worst are tasks of the kind `hard`" in found.verdict.fails


def test_two_evaluations_are_told_apart_by_name(run):
    write_evaluation(run, "step-12", [True] * 20 + [False] * 20)
    change = analyze(run, between=("step-12", "after")).runs[0].change
    assert (change.first, change.second, change.won, change.lost) == ("step-12", "after", 8, 0)
    with pytest.raises(ConfigError, match=r"no evaluation 'aftr'; did you mean `after`\?"):
        analyze(run, between=("before", "aftr"))


def test_tokens_and_their_cost(run):
    usage = analyze(run, prices=Prices(sampled=2.0)).runs[0].usage
    assert (usage.sampled, usage.evaluated, usage.read) == (2400.0, 800.0, None)
    assert usage.cost == pytest.approx(2.0 * 3200 / 1e6)
    assert analyze(run).runs[0].usage.cost is None


def test_tokens_of_records_are_counted_each_once(tmp_path):
    spans = (Span((1, 2, 3)), Span((4, 5), 0, (-0.5, -0.5)), Span((6,)))
    plain = episode_of(Play(True, ["x"], {"a": 1.0}), 0, 0)
    whole = [
        type(plain)(
            **{**{f: getattr(plain, f) for f in plain.__slots__}, "histories": (TokenHistory(spans),)}
        )
    ]
    writer = EpisodeWriter(tmp_path)
    writer.begin({}, 0, None)
    writer.write_step(1, [Group(tuple(whole))])
    found = analyze(tmp_path, prices=Prices(1e6, 1e5)).runs[0]
    assert (found.usage.sampled, found.usage.read, found.usage.per_episode) == (2.0, 4.0, 2.0)
    assert found.usage.cost == pytest.approx(2.4)
    assert found.windows[0].tokens == 2.0


def test_runs_are_held_against_each_other(run, tmp_path):
    other = write_run(tmp_path / "other", pays_length, steps=6)
    write_evaluation(other, "after", [True] * 14 + [False] * 26)
    analysis = analyze([run, other], compare=True)
    (change,) = analysis.comparisons
    assert (change.first, change.second) == (str(run), str(other))
    assert (change.won, change.lost) == (0, 14)
    bare = write_run(tmp_path / "bare", honest, steps=1)
    with pytest.raises(ConfigError, match="bare has no evaluation to compare"):
        analyze([run, bare], compare=True)


def test_the_analysis_is_plain_json(run):
    def check(value):
        assert isinstance(value, dict | list | str | int | float | bool | None)
        if isinstance(value, float):
            assert math.isfinite(value)
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(inner)

    data = json.loads(json.dumps(analyze(run).to_json(), allow_nan=False))
    check(data)
    assert data["runs"][0]["verdict"]["cheating"] == "no sign"


def test_the_episodes_as_a_frame(run, tmp_path):
    other = write_run(tmp_path / "other", pays_length, steps=2, groups=1, size=3)
    frame = analyze([run, other]).episodes_frame()
    assert isinstance(frame, polars.DataFrame)
    assert frame.height == 384 + 6
    late = frame.filter((polars.col("run") == str(run)) & (polars.col("step") > 16))["success"].mean()
    assert late > 0.5
    assert frame.filter(polars.col("run") == str(other))["term/thoroughness"].null_count() == 0
    assert frame.filter(polars.col("run") == str(run))["term/thoroughness"].null_count() == 384
    assert analyze(tmp_path).episodes_frame().height == 0


def test_faults_are_counted_and_in_no_average(tmp_path):
    def script(progress, rng):
        ending = Ending.ENV_ERROR if rng.random() < 0.3 else Ending.TERMINATED
        return Play(None if ending is Ending.ENV_ERROR else True, ["x"], {"a": 1.0}, ending=ending)

    found = analyze(write_run(tmp_path / "run", script, steps=8)).runs[0]
    assert 0.2 < found.faults / (found.faults + found.episodes) < 0.4
    assert found.success.value == 1.0
    assert found.errors[0].kind == "env_error"


def test_an_empty_folder_and_a_missing_one(tmp_path):
    found = analyze(tmp_path).runs[0]
    assert (found.episodes, found.steps, found.windows, found.gains) == (0, 0, (), ())
    assert "cannot be told" in found.verdict.learned
    assert found.verdict.fails == "Nothing is on record that tells."
    with pytest.raises(FileNotFoundError, match=r"no run folder at .*missing"):
        analyze(tmp_path / "missing")
    with pytest.raises(ConfigError, match="at least one"):
        analyze([])


def test_what_a_killed_run_left_is_counted_not_fatal(run):
    with (run / "metrics.jsonl").open("a") as stream:
        stream.write('[1]\n{"step": NaN, "reward": "x"}\n{"step": 25, "rew')
    (run / "episodes" / "step-000024.jsonl").write_text('{"task_id": "cut')
    found = analyze(run).runs[0]
    assert found.broken_lines == 2
    assert found.episodes == 384 - 16
    assert "step-000024.jsonl, line 1" in found.damage[0]
    assert found.verdict.learned.startswith("Yes")


def test_a_part_of_the_reward_without_a_name_is_shown(tmp_path):
    (tmp_path / "episodes").mkdir()
    for step in range(1, 9):
        data = episode_of(Play(True, ["x"], {"a": 1.0}), 0, step).to_json()
        data["turns"][0]["reward"] = 1.0 + step
        (tmp_path / "episodes" / f"step-{step:06d}.jsonl").write_text(json.dumps(data) + "\n")
    gains = {gain.name: gain for gain in analyze(tmp_path).runs[0].gains}
    assert gains["(unnamed)"].share == pytest.approx(1.0)
    assert gains["a"].change == 0.0
