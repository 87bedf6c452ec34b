"""What each of several processes does in ``training/test_distributed.py``.

Called with the path of a JSON file, a list of ``{"folder": …, "jobs": [{"job": …, "name": …}]}``. For each,
two processes do the jobs one after the other and write what a job came to as ``NAME-RANK.pt``. With
``{"folder": …, "arguments": […], "beside": […]}`` both are ``art-trainer`` with the first arguments, and a
third process is with the others. Prints the exit codes. PyTorch is imported once, before the processes part:
that is most of their cost.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from art_trainer.cli import main as cli
from art_trainer.config import GRPOConfig
from art_trainer.errors import EngineError, StalledError
from art_trainer.training.distributed import ProcessGroup, init_distributed
from art_trainer.training.learner import Learner
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Episode
from tests.art_trainer.guess import SETTINGS, GuessEnv, guess_policy
from tests.art_trainer.made_episodes import made_groups
from tests.art_trainer.tiny_models import lora_model, tiny_model
from tests.art_trainer.updates import config, untimed, weights_of, with_rewards

TRAINER: dict[str, Any] = {**SETTINGS, "groups_per_step": 3, "eval_episodes": 4, "adam_epsilon": 1e-4}


def learn(options: Mapping[str, Any], processes: ProcessGroup) -> tuple[torch.Tensor, list[dict[str, float]]]:
    """Three updates of a tiny model on episodes made by hand; the weights, and the metrics but for times."""
    make = lora_model if options.get("lora") else tiny_model
    model = make(family=options.get("family", "qwen2"), hidden=32)
    model.to(getattr(torch, options.get("dtype", "float32")))
    groups = made_groups(model, groups=options.get("groups", 3), size=3)
    flat = options.get("flat", [])
    groups = [with_rewards(g, [0.5] * 3) if i in flat else g for i, g in enumerate(groups)]
    settings = {"learning_rate": 1e-2, "adam_epsilon": 1e-3, "tokens_per_microbatch": 96}
    learner = Learner(model, config(**{**settings, **options.get("config", {})}), processes)
    metrics = [learner.update(groups) for _ in range(3)]
    return weights_of(model), [untimed(one) for one in metrics]


class Watcher:
    """Records episodes and steps."""

    def __init__(self) -> None:
        self.episodes: list[tuple[int, str, float]] = []
        self.steps: list[float] = []

    def on_step(self, metrics: Mapping[str, float]) -> None:
        self.steps.append(metrics["step"])

    def on_episode(self, episode: Episode) -> None:
        self.episodes.append((episode.seed, "".join(t.reply for t in episode.turns), episode.reward))


class Reached(GuessEnv):
    """Sends its process a signal at the first move of the ``at``-th game."""

    games = 0
    at = 0
    number = signal.SIGINT

    def reset(self, **arguments: Any) -> Any:
        Reached.games += 1
        return super().reset(**arguments)

    def step(self, action: str) -> Any:
        if Reached.games == Reached.at:
            Reached.games += 1
            os.kill(os.getpid(), Reached.number)
        return super().step(action)


def make_trainer(options: Mapping[str, Any], processes: ProcessGroup) -> tuple[GRPOTrainer, Watcher]:
    """A trainer of a tiny model, resumed from a checkpoint if one is named."""
    watcher = Watcher()
    settings = GRPOConfig(**{**TRAINER, **options.get("config", {}), "output_dir": options["folder"]})
    policy = guess_policy(hidden=16, seed=processes.rank)  # the main process's weights are those that count
    policy.model.to(getattr(torch, options.get("dtype", "float32")))
    trainer = GRPOTrainer(policy, Reached, settings, callbacks=[watcher], processes=processes)
    if "resume" in options:
        trainer.load_checkpoint(options["resume"])
    return trainer, watcher


def train(options: Mapping[str, Any], processes: ProcessGroup) -> dict[str, Any]:
    """A run of GRPO; its weights and what its callback got. The second process may get a signal."""
    Reached.games, Reached.at = 0, options.get("at", -1) if processes.rank == 1 else -1
    Reached.number = options.get("signal", signal.SIGINT)
    trainer, watcher = make_trainer(options, processes)
    if "full_at" in options and processes.is_main:
        trainer.backend.publish = partial(publish_to_full_disk, at=options["full_at"])  # type: ignore[method-assign]
    result: dict[str, Any] = {"stopped": False, "fault": ""}
    try:
        trainer.train()
    except KeyboardInterrupt:
        result["stopped"] = True
    except (EngineError, StalledError) as error:
        result["fault"] = str(error)
    trainer.close()
    result |= {"weights": weights_of(trainer.policy.model), "step": trainer.step}
    return {**result, "episodes": watcher.episodes, "steps": watcher.steps}


def publish_to_full_disk(version: int, at: int) -> None:
    """Fail at a version, as a server does whose disk is full."""
    if version == at:
        raise EngineError("no room")


def exit_code(arguments: Sequence[str]) -> int:
    """Run ``art-trainer``; what it ends with."""
    try:
        cli.main(list(arguments))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def work(jobs: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Do jobs in one of several processes, and write down what each came to."""
    torch.set_num_threads(1)
    with init_distributed(timeout=20) as processes:
        for options in jobs:
            result = JOBS[options["job"]](options, processes)
            torch.save(result, folder / f"{options['name']}-{processes.rank}.pt")


def launch(one: Mapping[str, Any], size: int = 2) -> list[int]:
    """Do jobs in so many children of this process, as a launcher would; return their exit codes."""
    folder = Path(one["folder"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    children = []
    for rank in range(size + ("beside" in one)):
        child = os.fork()
        if not child:
            if rank < size:
                os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank)}
            else:
                del os.environ["WORLD_SIZE"]
            written = os.open(folder / f"output-{rank}.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(written, sys.stderr.fileno())
            os.dup2(written, sys.stdout.fileno())
            code = 1
            try:
                if "jobs" in one:
                    work(one["jobs"], folder)
                    code = 0
                else:
                    code = exit_code(one["arguments" if rank < size else "beside"])
            except BaseException:  # a forked child must not return into its parent's code
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


JOBS: dict[str, Callable[[Mapping[str, Any], ProcessGroup], Any]] = {
    "learn": learn,
    "train": train,
    "command": lambda options, processes: exit_code(options["arguments"]),
}


if __name__ == "__main__":
    codes = [launch(one) for one in json.loads(Path(sys.argv[1]).read_text())]
    print(json.dumps(codes))
