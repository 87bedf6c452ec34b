"""Several processes come to what one comes to. They talk by gloo."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from art_gym.wrappers.judging import JudgeFailed
from art_trainer.checkpoint import list_checkpoints
from art_trainer.errors import EngineError
from art_trainer.learner import Learner
from art_trainer.processes import Processes, jointly, shares
from art_trainer.run_folder import RunFolder
from tests.art_trainer import several_processes
from tests.art_trainer.several_processes import learn, train, weights_of
from tests.art_trainer.tiny_models import tiny_model
from tests.art_trainer.updates import config

pytestmark = pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")

ROOT = Path(__file__).parents[2]
HARD: dict[str, Any] = {
    # Only one of three groups says anything, so one process has none; the gradient is clipped.
    "flat": [0, 2],
    "config": {
        "beta": 0.1, "loss_type": "grpo", "num_iterations": 2, "max_grad_norm": 0.05,
        "scale_rewards": "batch", "entropy_coef": 0.01,
    },
}  # fmt: skip
UPDATES: dict[str, dict[str, Any]] = {
    "full": {},
    "hard": HARD,
    "dr_grpo": {
        "groups": 4,
        "config": {
            "loss_type": "dr_grpo", "steps_per_generation": 2, "top_p": 0.9, "weight_decay": 0.1,
            "advantage_estimator": "reinforce_plus_plus",
        },
    },
    "lora": {"lora": True, "config": {"beta": 0.1, "loss_type": "cispo", "epsilon_high": 5.0}},
    "experts": {"family": "deepseek-v3"},
    "ppo": {"config": {"advantage_estimator": "gae"}},
    "fsdp2-hard": {**HARD, "family": "llama", "config": {**HARD["config"], "sharding": "fsdp2"}},
    "fsdp2-ppo": {"config": {"sharding": "fsdp2", "advantage_estimator": "gae"}},
}  # fmt: skip


COMMAND = [
    "train", "--env", "tests.art_trainer.toy_envs:toy/Echo-v0", "--model", "scratch", "--max-steps", "2",
    "--groups-per-step", "3", "--num-generations", "4", "--eval-episodes", "4", "--threads", "1",
    "--set", "baselines=[]", "--set", "warm_start=random", "--set", "warm_start_episodes=24",
    "--set", "scratch={\"layers\": 1, \"hidden_size\": 32}", "--set", "max_completion_length=6",
    # Whatever the rewards are, there is something to learn from each group.
    "--set", "drop_zero_variance_groups=false", "--set", "entropy_coef=0.1", "--set", "adam_epsilon=0.001",
]  # fmt: skip


def start(launches: list[dict[str, Any]], file: Path) -> list[list[int]]:
    """Start processes for each launch; return their exit codes."""
    file.write_text(json.dumps(launches))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", several_processes.__name__, str(file)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=200, cwd=ROOT, check=True
    )
    codes: list[list[int]] = json.loads(done.stdout)
    return codes


def words(folder: Path, rank: int) -> str:
    """What a process printed as it went down."""
    return (folder / f"words-{rank}.txt").read_text()


def results(name: str, folder: Path) -> list[Any]:
    """What each process came to."""
    return [torch.load(folder / f"{name}-{rank}.pt", weights_only=False) for rank in range(2)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of all jobs that end well, done in one launch."""
    folder = tmp_path_factory.mktemp("processes")
    # A checkpoint that one process has written, for two to go on from.
    every = {"save_steps": 1, "save_total_limit": None}
    alone = {"name": "alone", "folder": str(folder / "alone"), "config": every}
    torch.save(train(alone, Processes()), folder / "alone-0.pt")
    first = str(list_checkpoints(folder / "alone" / "checkpoints")[0])
    jobs: list[dict[str, Any]] = [{"job": "learn", "name": name, **job} for name, job in UPDATES.items()]
    saving = {**every, "eval_steps": 2}
    jobs += [
        {"job": "train", "name": "together", "config": saving},
        {"job": "train", "name": "sharded", "config": {**saving, "sharding": "fsdp2"}},
        {"job": "train", "name": "resumed", "resume": first},
        {"job": "train", "name": "resumed-sharded", "resume": first, "config": {"sharding": "fsdp2"}},
        {"job": "train", "name": "dynamic", "config": {"dynamic_sampling": True, "groups_per_step": 5}},
        {"job": "train", "name": "interrupted", "interrupt": 1, "at": 8},
        {"job": "train", "name": "full-disk", "full_at": 1, "config": {"sharding": "fsdp2"}},
    ]
    jobs = [{"folder": str(folder / job["name"]), **job} for job in jobs]
    arguments = [*COMMAND, "--output-dir", str(folder / "command")]
    jobs.append({"job": "command", "name": "command", "arguments": arguments})
    (folder / "killed").mkdir()
    dying = {
        "job": "die",
        "name": "die",
        "folder": str(folder / "killed"),
        "at": 8,
        "config": {"save_steps": 1},
    }
    launches = [
        {"folder": str(folder), "jobs": jobs},
        {"folder": str(folder / "killed"), "jobs": [{**dying, "folder": str(folder / "killed")}]},
        serving(folder / "served"),
    ]
    well, killed, served = start(launches, folder / "launches.json")
    assert well == [0, 0], words(folder, 0) + words(folder, 1)
    assert killed == [1, -signal.SIGKILL]
    assert served == [0, 0, 0], "".join(words(folder / "served", rank) for rank in range(3))
    return folder


def serving(folder: Path) -> dict[str, Any]:
    """A launch of a server of two processes, with sharded weights, and of a worker."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    threads = COMMAND.index("--threads")
    flags = [*COMMAND[1:threads], *COMMAND[threads + 2 :]]
    for name in ("--groups-per-step", "--num-generations"):  # flags of train alone
        place = flags.index(name)
        flags[place : place + 2] = ["--set", f"{name[2:].replace('-', '_')}={flags[place + 1]}"]
    flags += ["--set", "threads=1", "--set", "sharding=fsdp2", "--save-steps", "1", "--no-api"]
    worker = ["worker", "--server", f"http://127.0.0.1:{port}", "--cache", str(folder / "cache")]
    return {
        "folder": str(folder),
        "arguments": ["serve", *flags, "--port", port, "--output-dir", str(folder / "run")],
        "beside": [*worker, "--allow-module", "tests.art_trainer.toy_envs"],
    }


@pytest.mark.parametrize("name", UPDATES)
def test_three_updates_give_the_weights_and_metrics_of_one_process(runs: Path, name: str) -> None:
    job = UPDATES[name]
    alone, metrics = learn(job, Processes())
    (first, found), (second, _) = results(name, runs)
    start = learn({**job, "config": {**job.get("config", {}), "learning_rate": 0.0}}, Processes())[0]
    assert (alone - start).abs().max() > 1e-3
    assert torch.equal(first, second)
    torch.testing.assert_close(first, alone, atol=1e-5, rtol=0)
    for ours, theirs in zip(metrics, found, strict=True):
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-6)


def run_alone(folder: Path, **options: Any) -> dict[str, Any]:
    return train({"folder": str(folder), **options}, Processes())


@pytest.mark.parametrize("name", ["together", "sharded"])
def test_a_run_plays_the_episodes_and_finds_the_weights_of_one_process(runs: Path, name: str) -> None:
    alone = torch.load(runs / "alone-0.pt", weights_only=False)
    main, other = results(name, runs)
    episodes = 3 * 4
    assert sorted(main["episodes"][:episodes]) == sorted(alone["episodes"][:episodes])
    assert sorted(main["episodes"]) == sorted(alone["episodes"])
    assert main["steps"] == [1, 2, 3]
    assert other["steps"] == other["episodes"] == []  # the main process alone tells
    assert torch.equal(main["weights"], other["weights"])
    torch.testing.assert_close(main["weights"], alone["weights"], atol=1e-5, rtol=0)


def metrics_of(folder: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(("time/", "tokens_per"))} for line in lines]


def test_the_main_process_alone_writes_what_one_process_writes(runs: Path, tmp_path: Path) -> None:
    run_alone(tmp_path, config={"eval_steps": 2})
    found, alone = metrics_of(runs / "together"), metrics_of(tmp_path)
    assert [line["step"] for line in found] == [0, 1, 2, 3]
    for ours, theirs in zip(alone, found, strict=True):
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", ["resumed", "resumed-sharded"])
def test_two_processes_go_on_from_the_checkpoint_of_one(runs: Path, name: str) -> None:
    alone = torch.load(runs / "alone-0.pt", weights_only=False)
    main, _ = results(name, runs)
    assert main["steps"] == [2, 3]
    torch.testing.assert_close(main["weights"], alone["weights"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["together", "sharded"])
def test_one_process_goes_on_from_the_checkpoint_of_two(runs: Path, name: str, tmp_path: Path) -> None:
    first = list_checkpoints(runs / name / "checkpoints")[0]
    # The same settings: one process has nothing to cut, whatever `sharding` says.
    sharding = {"sharding": "fsdp2"} if name == "sharded" else {}
    resumed = run_alone(tmp_path, resume=str(first), config=sharding)
    alone = torch.load(runs / "alone-0.pt", weights_only=False)
    torch.testing.assert_close(resumed["weights"], alone["weights"], atol=1e-5, rtol=0)


def test_groups_that_teach_nothing_are_replaced_as_in_one_process(runs: Path, tmp_path: Path) -> None:
    alone = run_alone(tmp_path, config={"dynamic_sampling": True, "groups_per_step": 5})
    main, _ = results("dynamic", runs)
    assert len(main["episodes"]) > 3 * 5 * 4  # some were replaced
    assert sorted(main["episodes"]) == sorted(alone["episodes"])
    torch.testing.assert_close(main["weights"], alone["weights"], atol=1e-5, rtol=0)


def test_an_interrupt_of_one_stops_all_at_one_step_with_a_checkpoint(runs: Path, tmp_path: Path) -> None:
    main, other = results("interrupted", runs)
    assert main["stopped"]
    assert other["stopped"]
    assert main["step"] == other["step"]
    assert 0 < main["step"] < 3
    (saved,) = list_checkpoints(runs / "interrupted" / "checkpoints")
    resumed = run_alone(tmp_path, resume=str(saved))
    alone = torch.load(runs / "alone-0.pt", weights_only=False)
    torch.testing.assert_close(resumed["weights"], alone["weights"], atol=1e-5, rtol=0)


def test_the_command_trains_in_all_processes_and_prints_in_one(runs: Path) -> None:
    assert results("command", runs) == [0, 0]
    main, other = words(runs, 0), words(runs, 1)
    assert main.count("2 processes train together.") == 1
    assert "step 2/2" in main
    assert "Report: " in main
    assert "step" not in other
    folder = RunFolder(runs / "command")
    assert [line["step"] for line in folder.metrics().records] == [1, 2]
    assert folder.settings()["threads"] == 1
    assert folder.report_file.exists()
    assert folder.evaluation("before") is not None
    assert folder.evaluation("after") is not None


def test_a_server_of_two_processes_publishes_whole_weights_and_learns_as_they_do(runs: Path) -> None:
    run = runs / "served" / "run"
    found, trained = metrics_of(run), metrics_of(runs / "command")
    assert [line["step"] for line in found] == [1, 2]
    for ours, theirs in zip(trained, found, strict=True):
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-5)
    # What workers played step 2 with is what step 1 taught, though no process trains whole weights.
    before, published = map(load_file, sorted((run / "weights").glob("weights-*.safetensors")))
    saved = load_file(run / "checkpoints" / "step-000001" / "model" / "model.safetensors")
    assert all(torch.equal(published[name], value) for name, value in saved.items())
    assert any(not torch.equal(before[name], value) for name, value in saved.items())
    main, other, worker = (words(runs / "served", rank) for rank in range(3))
    assert "Server: http" in main
    assert other == ""
    assert "done: training is over" in worker


def test_what_only_the_main_process_can_be_short_of_stops_all_with_a_checkpoint(
    runs: Path, tmp_path: Path
) -> None:
    main, other = results("full-disk", runs)
    assert (main["fault"], other["fault"]) == ("no room", "in process 0: no room")
    (saved,) = list_checkpoints(runs / "full-disk" / "checkpoints")
    resumed = run_alone(tmp_path, resume=str(saved))
    assert resumed["steps"] == [2, 3]
    alone = torch.load(runs / "alone-0.pt", weights_only=False)
    torch.testing.assert_close(resumed["weights"], alone["weights"], atol=1e-5, rtol=0)


def test_when_one_is_killed_the_other_says_so_and_ends(runs: Path, tmp_path: Path) -> None:
    said = words(runs / "killed", 0)
    assert "another process of this run is gone" in said
    assert "--resume from the last checkpoint" in said
    (saved,) = list_checkpoints(runs / "killed" / "checkpoints")
    resumed = run_alone(tmp_path, resume=str(saved))
    assert resumed["steps"] == [2, 3]
    alone = torch.load(runs / "alone-0.pt", weights_only=False)
    torch.testing.assert_close(resumed["weights"], alone["weights"], atol=1e-5, rtol=0)


@settings(max_examples=40)
@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 9))
def test_shares_hold_every_task_once_and_are_about_equal(costs: list[int], size: int) -> None:
    found = shares(costs, size)
    assert sorted(index for share in found for index in share) == list(range(len(costs)))
    loads = [sum(costs[index] for index in share) for share in found]
    # No share is ahead of another by more than its last, cheapest task.
    for share, load in zip(found, loads, strict=True):
        if share:
            assert load - min(costs[index] for index in share) <= min(loads)


class Twin(Processes):
    """A process with a made-up other."""

    size = 2

    def __init__(self, other: Mapping[str, Any]) -> None:
        self.other = other

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other]


def test_who_works_jointly_is_stopped_jointly() -> None:
    def other(kind: str | None, reason: str | None = None) -> Twin:
        return Twin({"result": 2, "stopped": kind, "reason": reason, "words": "no room"})

    assert jointly(other(None), lambda: 1) == [1, 2]
    with pytest.raises(KeyboardInterrupt):
        jointly(other("KeyboardInterrupt"), lambda: 1)
    with pytest.raises(JudgeFailed, match="process 1: no room") as caught:
        jointly(other("JudgeFailed", "budget"), lambda: 1)
    assert caught.value.reason == "budget"
    with pytest.raises(EngineError, match="process 1: no room"):
        jointly(other("EngineError"), lambda: 1)


def test_a_process_alone_is_not_cut() -> None:
    learner = Learner(tiny_model(), config(sharding="fsdp2"))
    assert learner.whole_optimizer() is learner.optimizer
    assert weights_of(learner.model).numel() == sum(
        p.numel() for group in learner.optimizer.param_groups for p in group["params"]
    )
