"""Several processes learn and train as one does. They talk by gloo."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file

from art_gym.wrappers.judging import JudgeFailedError
from art_trainer.errors import EngineError
from art_trainer.tracking.run_dir import RunFolder, list_checkpoints
from art_trainer.training.distributed import ProcessGroup, run_on_all_ranks, shares
from art_trainer.training.learner import Learner
from tests.art_trainer import several_processes
from tests.art_trainer.several_processes import learn, train
from tests.art_trainer.tiny_models import tiny_model
from tests.art_trainer.updates import config, logged_metrics

ROOT = Path(__file__).parents[3]
HARD: dict[str, Any] = {
    # Only one of three groups has a signal, so one process has none; the gradient is clipped.
    "flat": [0, 2],
    "config": {
        "beta": 0.1, "loss_type": "grpo", "num_iterations": 2, "max_grad_norm": 0.05,
        "scale_rewards": "batch", "entropy_coef": 0.01,
    },
}  # fmt: skip
FSDP = {"sharding": "fsdp2"}
UPDATES: dict[str, dict[str, Any]] = {
    "full": {},
    "hard": HARD,
    "dr_grpo": {
        "groups": 4,
        "config": {
            "loss_type": "dr_grpo", "steps_per_generation": 2, "top_p": 0.9, "weight_decay": 0.1,
            "advantage_estimator": "leave_one_out",
        },
    },
    "lora": {"lora": True, "config": {"beta": 0.1, "loss_type": "cispo", "epsilon_high": 5.0}},
    "experts": {"family": "deepseek-v3"},
    "ppo": {"config": {"advantage_estimator": "gae"}},
    "fsdp2-hard": {**HARD, "family": "llama", "config": {**HARD["config"], "sharding": "fsdp2"}},
    "fsdp2-bfloat16": {"dtype": "bfloat16", "config": FSDP},
    "bfloat16": {"dtype": "bfloat16"},
    "fsdp2-bfloat16-lora": {"dtype": "bfloat16", "lora": True, "config": FSDP},
    "fsdp2-lora": {"lora": True, "config": {**FSDP, "beta": 0.1}},
    "fsdp2-ppo": {"config": {"sharding": "fsdp2", "advantage_estimator": "gae"}},
}  # fmt: skip
EVERY = {"save_steps": 1, "save_total_limit": None}
DYNAMIC = {"dynamic_sampling": True, "groups_per_step": 5}
TRAININGS: dict[str, dict[str, Any]] = {
    "together": {"config": {**EVERY, "eval_steps": 2}},
    "sharded": {"config": {**EVERY, **FSDP}},
    "sharded-bfloat16": {"dtype": "bfloat16", "config": {**EVERY, **FSDP}},
    "resumed": {},
    "resumed-sharded": {"config": FSDP},
    "dynamic": {"config": DYNAMIC},
    "interrupted": {"at": 8},
    "full-disk": {"full_at": 1, "config": FSDP},
    # So cold that the attempts at a task are all alike.
    "stalled": {"config": {"temperature": 1e-4, "max_steps": 12, "groups_per_step": 2}},
}
COMMAND = [
    "--env", "tests.art_trainer.toy_envs:toy/Echo-v0", "--model", "scratch", "--max-steps", "2",
    "--eval-episodes", "4", "--set", "threads=1", "--set", "groups_per_step=3", "--set", "num_generations=4",
    "--set", "baselines=[]", "--set", "warm_start=random", "--set", "warm_start_episodes=24",
    "--set", "scratch={\"layers\": 1, \"hidden_size\": 32}", "--set", "max_completion_length=6",
    # Whatever the rewards are, there is something to learn from each group.
    "--set", "drop_zero_variance_groups=false", "--set", "entropy_coef=0.1", "--set", "adam_epsilon=0.001",
]  # fmt: skip


def output(folder: Path, rank: int) -> str:
    """What a process printed."""
    return (folder / f"output-{rank}.txt").read_text()


def results(name: str, folder: Path) -> list[Any]:
    """The result of a job in each process."""
    return [torch.load(folder / f"{name}-{rank}.pt", weights_only=False) for rank in range(2)]


def serving(folder: Path) -> dict[str, Any]:
    """A launch of a server of two processes, with sharded weights, and of a worker."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    flags = ["--set", "sharding=fsdp2", "--save-steps", "1", "--no-api", "--output-dir", str(folder / "run")]
    worker = ["worker", "--server", f"http://127.0.0.1:{port}", "--cache", str(folder / "cache")]
    return {
        "folder": str(folder),
        "arguments": ["serve", *COMMAND, *flags, "--port", port],
        "beside": [*worker, "--allow-module", "tests.art_trainer.toy_envs"],
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of all jobs, done in three launches."""
    folder = tmp_path_factory.mktemp("processes")
    torch.save(run_alone(folder / "alone", config=EVERY), folder / "alone.pt")
    # A checkpoint that one process has written, for two to go on from.
    first = str(list_checkpoints(folder / "alone" / "checkpoints")[0])
    jobs: list[dict[str, Any]] = [{"job": "learn", "name": name, **job} for name, job in UPDATES.items()]
    for name, job in TRAININGS.items():
        resume = {"resume": first} if name.startswith("resumed") else {}
        jobs.append({"job": "train", "name": name, "folder": str(folder / name), **resume, **job})
    arguments = ["train", *COMMAND, "--output-dir", str(folder / "command")]
    jobs.append({"job": "command", "name": "command", "arguments": arguments})
    killed = folder / "killed"
    killed.mkdir()
    dying = {"job": "train", "name": "killed", "folder": str(killed), "at": 8, "config": {"save_steps": 1}}
    dying["signal"] = signal.SIGKILL
    launches = [
        {"folder": str(folder), "jobs": jobs},
        {"folder": str(killed), "jobs": [dying]},
        serving(folder / "served"),
    ]
    (folder / "launches.json").write_text(json.dumps(launches))
    done = subprocess.run(
        [sys.executable, "-m", several_processes.__name__, str(folder / "launches.json")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=1000, cwd=ROOT, check=True,
    )  # fmt: skip
    well, dead, served = json.loads(done.stdout)
    assert well == [0, 0], output(folder, 0) + output(folder, 1)
    assert dead == [1, -signal.SIGKILL]
    assert served == [0, 0, 0], "".join(output(folder / "served", rank) for rank in range(3))
    return folder


def run_alone(folder: Path, **options: Any) -> dict[str, Any]:
    return train({"folder": str(folder), **options}, ProcessGroup())


def assert_close(found: torch.Tensor, runs: Path) -> None:
    """Weights are those of the run in one process, but for the order of sums."""
    alone = torch.load(runs / "alone.pt", weights_only=False)
    torch.testing.assert_close(found, alone["weights"], atol=1e-5, rtol=0)


def assert_same_metrics(found: list[dict[str, float]], wanted: list[dict[str, float]]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


@pytest.mark.e2e
@pytest.mark.parametrize("name", UPDATES)
def test_three_updates_give_the_weights_and_metrics_of_one_process(runs: Path, name: str) -> None:
    job = UPDATES[name]
    alone, metrics = learn(job, ProcessGroup())
    (first, found), (second, _) = results(name, runs)
    start = learn({**job, "config": {**job.get("config", {}), "learning_rate": 0.0}}, ProcessGroup())[0]
    assert (alone - start).abs().max() > 1e-3
    assert torch.equal(first, second)
    if first.dtype == torch.bfloat16:  # other micro-batches are rounded in another way
        assert (first - alone).float().norm() < 0.05 * (alone - start).float().norm()
        return
    torch.testing.assert_close(first, alone, atol=1e-5, rtol=0)
    assert_same_metrics(found, metrics)


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["together", "sharded"])
def test_a_run_plays_the_episodes_and_finds_the_weights_of_one_process(
    runs: Path, name: str, tmp_path: Path
) -> None:
    alone = torch.load(runs / "alone.pt", weights_only=False)
    main, other = results(name, runs)
    assert sorted(main["episodes"]) == sorted(alone["episodes"])
    assert main["steps"] == [1, 2, 3]
    assert other["steps"] == other["episodes"] == []  # only the main process reports
    assert torch.equal(main["weights"], other["weights"])
    assert_close(main["weights"], runs)
    # One process resumes from the checkpoint of two; it has nothing to cut, whatever `sharding` says.
    first = list_checkpoints(runs / name / "checkpoints")[0]
    settings = FSDP if name == "sharded" else {}
    assert_close(run_alone(tmp_path, resume=str(first), config=settings)["weights"], runs)


@pytest.mark.e2e
def test_the_main_process_alone_writes_what_one_process_writes(runs: Path, tmp_path: Path) -> None:
    run_alone(tmp_path, config={"eval_steps": 2})
    found = logged_metrics(runs / "together")
    assert [line["step"] for line in found] == [0, 1, 2, 3]
    assert_same_metrics(found, logged_metrics(tmp_path))


@pytest.mark.e2e
def test_one_process_goes_on_from_the_float32_pieces_of_two(runs: Path, tmp_path: Path) -> None:
    main, _ = results("sharded-bfloat16", runs)
    first = list_checkpoints(runs / "sharded-bfloat16" / "checkpoints")[0]
    saved = load_file(first / "optimizer.safetensors")
    copies = [value for name, value in saved.items() if name.endswith("/master")]
    assert {value.dtype for value in copies} == {torch.float32}
    assert any((value != value.bfloat16()).any() for value in copies)
    alone = run_alone(tmp_path, resume=str(first), dtype="bfloat16")["weights"]
    assert alone.dtype == main["weights"].dtype == torch.bfloat16
    assert (alone - main["weights"]).float().abs().mean() < 1e-4


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["resumed", "resumed-sharded"])
def test_two_processes_go_on_from_the_checkpoint_of_one(runs: Path, name: str) -> None:
    main, _ = results(name, runs)
    assert main["steps"] == [2, 3]
    assert_close(main["weights"], runs)


@pytest.mark.e2e
def test_groups_without_signal_are_replaced_as_in_one_process(runs: Path, tmp_path: Path) -> None:
    alone = run_alone(tmp_path, config=DYNAMIC)
    main, _ = results("dynamic", runs)
    assert len(main["episodes"]) > 3 * 5 * 4  # some were replaced
    assert sorted(main["episodes"]) == sorted(alone["episodes"])
    torch.testing.assert_close(main["weights"], alone["weights"], atol=1e-5, rtol=0)


@pytest.mark.e2e
@pytest.mark.parametrize("name", ["interrupted", "full-disk", "killed"])
def test_what_stops_one_stops_all_at_one_step_with_a_checkpoint(
    runs: Path, name: str, tmp_path: Path
) -> None:
    if name == "killed":
        assert "another rank of this run is gone" in output(runs / name, 0)
        assert "--resume" in output(runs / name, 0)
    else:
        main, other = results(name, runs)
        assert (main["stopped"], other["stopped"]) == (name == "interrupted",) * 2
        faults = ("no room", "in process 0: no room") if name == "full-disk" else ("", "")
        assert (main["fault"], other["fault"]) == faults
        assert 0 < main["step"] == other["step"] < 3
    (saved,) = list_checkpoints(runs / name / "checkpoints")
    assert_close(run_alone(tmp_path, resume=str(saved))["weights"], runs)


@pytest.mark.e2e
def test_a_run_that_cannot_learn_stops_in_all_processes_at_one_step(runs: Path) -> None:
    main, other = results("stalled", runs)
    assert main["step"] == other["step"] == 10
    assert main["fault"] == other["fault"]
    assert "no step from 1 to 10 had a gradient" in main["fault"]


@pytest.mark.e2e
def test_the_command_trains_in_all_processes_and_prints_in_one(runs: Path) -> None:
    assert results("command", runs) == [0, 0]
    main, other = output(runs, 0), output(runs, 1)
    assert main.count("2 processes train together.") == 1
    assert "step 2/2" in main
    assert "step" not in other
    folder = RunFolder(runs / "command")
    assert [line["step"] for line in folder.metrics().records] == [1, 2]
    assert folder.settings()["threads"] == 1
    assert folder.report_file.exists()
    assert None not in (folder.evaluation("before"), folder.evaluation("after"))


@pytest.mark.e2e
def test_a_server_of_two_processes_publishes_whole_weights_and_learns_as_they_do(runs: Path) -> None:
    run = runs / "served" / "run"
    assert_same_metrics(logged_metrics(run), logged_metrics(runs / "command"))
    # What workers played step 2 with is what step 1 taught, though no process trains whole weights.
    before, published = map(load_file, sorted((run / "weights").glob("weights-*.safetensors")))
    saved = load_file(run / "checkpoints" / "step-000001" / "model" / "model.safetensors")
    assert all(torch.equal(published[name], value) for name, value in saved.items())
    assert any(not torch.equal(before[name], value) for name, value in saved.items())
    main, other, worker = (output(runs / "served", rank) for rank in range(3))
    assert "Server: http" in main
    assert other == ""
    assert "done: training is over" in worker


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 9))
def test_shares_hold_every_task_once_and_are_about_equal(costs: list[int], size: int) -> None:
    found = shares(costs, size)
    assert sorted(index for share in found for index in share) == list(range(len(costs)))
    loads = [sum(costs[index] for index in share) for share in found]
    # No share is ahead of another by more than its last, cheapest task.
    for share, load in zip(found, loads, strict=True):
        if share:
            assert load - min(costs[index] for index in share) <= min(loads)


def test_all_processes_are_stopped_by_what_stops_one() -> None:
    def other(kind: str | None, reason: str | None = None) -> ProcessGroup:
        """A process beside one that stopped for this."""
        group = ProcessGroup()
        stopped = {"result": 2, "stopped": kind, "reason": reason, "error": "no room"}
        group.gather = lambda value: [value, stopped]  # type: ignore[method-assign]
        return group

    assert run_on_all_ranks(other(None), lambda: 1) == [1, 2]
    with pytest.raises(KeyboardInterrupt):
        run_on_all_ranks(other("KeyboardInterrupt"), lambda: 1)
    with pytest.raises(JudgeFailedError, match="process 1: no room") as caught:
        run_on_all_ranks(other("JudgeFailedError", "budget"), lambda: 1)
    assert caught.value.reason == "budget"
    with pytest.raises(EngineError, match="process 1: no room"):
        run_on_all_ranks(other("EngineError"), lambda: 1)


def test_a_process_alone_is_not_sharded() -> None:
    learner = Learner(tiny_model(), config(sharding="fsdp2"))
    assert learner.full_optimizer() is learner.optimizer
    trained = sum(p.numel() for group in learner.optimizer.param_groups for p in group["params"])
    assert trained == sum(p.numel() for p in learner.model.parameters())
