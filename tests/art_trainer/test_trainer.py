import asyncio
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

from art_trainer.checkpoint import list_checkpoints
from art_trainer.config import GRPOConfig
from art_trainer.episodes import Episode
from art_trainer.errors import ConfigError
from art_trainer.interrupt import Interruptible, terminated_as_interrupted
from art_trainer.records import iter_steps
from art_trainer.records.replay import replay
from art_trainer.trainer import GRPOTrainer
from tests.art_trainer.guess import GuessEnv, guess_policy

SETTINGS: dict[str, Any] = {
    "learning_rate": 2e-3,
    "lr_final_ratio": 0.1,
    "groups_per_step": 4,
    "num_generations": 4,
    "max_completion_length": 1,
    "eval_episodes": 8,
}


class Watcher:
    """Remembers what it was told, and does something at one step or episode."""

    def __init__(
        self, at_step: Mapping[int, Callable[[], None]] | None = None, at_episode: Any = None
    ) -> None:
        self.steps: list[dict[str, float]] = []
        self.episodes = 0
        self._at_step = at_step or {}
        self._at_episode = at_episode or {}

    def on_step(self, metrics: Mapping[str, float]) -> None:
        self.steps.append(dict(metrics))
        self._at_step.get(len(self.steps), lambda: None)()

    def on_episode(self, episode: Episode) -> None:
        self.episodes += 1
        self._at_episode.get(self.episodes, lambda: None)()


@pytest.fixture
def make_trainer(tmp_path: Path) -> Iterator[Callable[..., GRPOTrainer]]:
    made = []

    def make(
        watcher: Watcher | None = None, *, seed: int = 0, folder: str = "run", **settings: Any
    ) -> GRPOTrainer:
        config = GRPOConfig(output_dir=str(tmp_path / folder), **{**SETTINGS, "max_steps": 3, **settings})
        callbacks = [] if watcher is None else [watcher]
        made.append(GRPOTrainer(guess_policy(seed, hidden=16), GuessEnv, config, callbacks=callbacks))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


def lines(trainer: GRPOTrainer) -> list[dict[str, float]]:
    return [json.loads(line) for line in (trainer.log.folder / "metrics.jsonl").read_text().splitlines()]


def timeless(metrics: Mapping[str, float]) -> dict[str, float]:
    return {k: v for k, v in metrics.items() if not k.startswith("time/") and k != "tokens_per_second"}


def weights_of(trainer: GRPOTrainer) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.policy.model.parameters()])


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_the_loop_written_out_is_train(make_trainer: Any) -> None:
    whole, parts = make_trainer(folder="whole"), make_trainer(folder="parts")
    whole.train()
    while parts.step < parts.config.max_steps:
        groups = parts.collect_episodes()
        metrics = parts.update_policy(groups)
    assert torch.equal(weights_of(whole), weights_of(parts))
    assert timeless(lines(whole)[-1]) == timeless(metrics)
    assert {"policy_loss", "kl", "reward", "entropy", "grad_norm", "learning_rate", "success"} <= set(metrics)
    assert metrics["tokens_per_second"] > 0
    assert parts.policy.version == 3


def test_groups_are_attempts_at_one_task_and_tasks_differ_between_steps(make_trainer: Any) -> None:
    trainer = make_trainer()
    first, second = trainer.collect_episodes(), trainer.collect_episodes()
    assert [len(group.episodes) for group in first] == [4, 4, 4, 4]
    seeds = [group.episodes[0].seed for group in first + second]
    assert len(set(seeds)) == 8
    attempts = {episode.histories[0].token_ids for group in first for episode in group.episodes}
    assert len(attempts) > 4


def test_the_seed_decides_everything(make_trainer: Any) -> None:
    first, again, other = make_trainer(folder="a"), make_trainer(folder="b"), make_trainer(folder="c", seed=0)
    object.__setattr__(other.config, "seed", 7)
    assert first.collect_episodes() == again.collect_episodes()
    assert [g.task_id for g in first.collect_episodes()] != [g.task_id for g in other.collect_episodes()]


def test_stopping_and_resuming_gives_the_numbers_of_never_stopping(make_trainer: Any) -> None:
    straight = make_trainer(folder="straight", max_steps=6, steps_per_generation=2)
    straight.train()
    stopped = make_trainer(Watcher({3: interrupt}), folder="stopped", max_steps=6, steps_per_generation=2)
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    (saved,) = list_checkpoints(stopped.log.checkpoints)
    resumed = make_trainer(folder="stopped", seed=9, max_steps=6, steps_per_generation=2)
    resumed.load_checkpoint(saved)
    assert resumed.step == 3
    resumed.train()
    assert torch.equal(weights_of(straight), weights_of(resumed))
    assert [timeless(m) for m in lines(straight)] == [timeless(m) for m in lines(resumed)]


def test_a_run_interrupted_while_it_collects_loses_only_that_batch(make_trainer: Any) -> None:
    straight = make_trainer(folder="straight")
    straight.train()
    stopped = make_trainer(Watcher(at_episode={20: interrupt}), folder="stopped")
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    assert stopped.step == 1
    stopped.train()  # the same trainer can go on
    assert torch.equal(weights_of(straight), weights_of(stopped))


def test_metrics_of_steps_done_again_are_not_doubled(make_trainer: Any) -> None:
    trainer = make_trainer(save_steps=1, save_total_limit=None)
    trainer.train()
    again = make_trainer()
    again.load_checkpoint(list_checkpoints(trainer.log.checkpoints)[0])
    with (trainer.log.folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 4, "rew')  # a killed run's last line
    again.train()
    assert [line["step"] for line in lines(again)] == [1, 2, 3]


def test_a_run_leaves_config_metrics_episodes_and_checkpoints(make_trainer: Any) -> None:
    trainer = make_trainer(save_steps=1, save_total_limit=2, logging_steps=2)
    trainer.train()
    folder = trainer.log.folder
    assert GRPOConfig.from_mapping(json.loads((folder / "config.json").read_text())) == trainer.config
    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == ["step-000002", "step-000003"]
    # Of every step, also of those whose metrics are not logged.
    records = list(iter_steps(folder))
    assert [(record.step, record.complete, len(record.groups)) for record in records] == [
        (1, True, 4), (2, True, 4), (3, True, 4),
    ]  # fmt: skip
    episode = records[0].groups[0].episodes[0]
    assert episode.turns
    assert episode.observation == "GUESS"
    assert episode.sampled_tokens > 0


def test_a_finished_run_can_be_replayed_from_its_start(make_trainer: Any) -> None:
    trainer = make_trainer(save_steps=2, dynamic_sampling=True)
    trainer.train()
    result = replay(trainer.log.folder, 2, build=lambda checkpoint: guess_policy(0, hidden=16).model)
    assert result.start is None
    assert result.equal
    assert replay(trainer.log.folder, 3, build=lambda checkpoint: guess_policy(0, hidden=16).model).equal


@pytest.mark.parametrize(("kept", "counts"), [(0, []), (3, [3, 3, 3])])
def test_fewer_episodes_are_kept_where_fewer_are_asked_for(
    kept: int, counts: list[int], make_trainer: Any
) -> None:
    trainer = make_trainer(log_episodes=kept)
    trainer.train()
    records = list(iter_steps(trainer.log.folder))
    assert [sum(len(group.episodes) for group in record.groups) for record in records] == counts
    assert not any(record.complete for record in records)


def test_evaluations_are_greedy_come_when_asked_for_and_disturb_nothing(make_trainer: Any) -> None:
    plain, watched = make_trainer(folder="plain"), make_trainer(folder="watched", eval_steps=2)
    plain.train()
    watched.train()
    assert torch.equal(weights_of(plain), weights_of(watched))
    evaluated = [line["step"] for line in lines(watched) if "eval_reward" in line]
    assert evaluated == [0, 2, 3]
    assert watched.evaluate() == watched.evaluate()
    assert watched.policy.sampling.temperature == 1.0


def test_callbacks_are_told_of_every_step_and_episode(make_trainer: Any) -> None:
    watcher = Watcher()
    make_trainer(watcher).train()
    assert [metrics["step"] for metrics in watcher.steps] == [1, 2, 3]
    assert watcher.episodes == 3 * 16


def test_it_trains_beside_a_running_event_loop_and_can_be_stopped(make_trainer: Any) -> None:
    trainer = make_trainer(max_steps=1000)
    ticks = 0

    async def main() -> None:
        nonlocal ticks
        training = asyncio.create_task(asyncio.to_thread(trainer.train))
        while trainer.step < 2:
            await asyncio.sleep(0.01)
            ticks += 1
        trainer.stop()
        await training

    asyncio.run(main())
    assert ticks > 0
    assert 2 <= trainer.step < 1000
    assert len(list_checkpoints(trainer.log.checkpoints)) == 1


def test_an_environment_may_be_an_id_or_made_by_gym(tmp_path: Path) -> None:
    config = GRPOConfig(output_dir=str(tmp_path), **SETTINGS)
    gym.register("GuessForTrainer-v0", entry_point=GuessEnv, disable_env_checker=True)
    try:
        for env in ("GuessForTrainer-v0", gym.make("GuessForTrainer-v0")):
            trainer = GRPOTrainer(guess_policy(hidden=16), env, config)
            assert trainer.collect_episodes()[0].episodes[0].env_id == "GuessForTrainer-v0"
    finally:
        gym.registry.pop("GuessForTrainer-v0")


def test_an_environment_that_cannot_be_made_again_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="pass a callable that makes one, or the id"):
        GRPOTrainer(guess_policy(hidden=16), GuessEnv(), GRPOConfig(output_dir=str(tmp_path)))


def test_a_split_the_environment_does_not_have_is_refused(make_trainer: Any) -> None:
    with pytest.raises(ConfigError, match="GuessEnv has no split 'train'; it has none"):
        make_trainer(train_split="train")


def test_reward_rises_from_random_weights(tmp_path: Path) -> None:
    watcher = Watcher()
    config = GRPOConfig(
        output_dir=str(tmp_path),
        max_steps=24,
        groups_per_step=32,
        num_generations=8,
        steps_per_generation=4,
        learning_rate=2e-3,
        entropy_coef=0.01,
        max_completion_length=1,
    )
    GRPOTrainer(guess_policy(), GuessEnv, config, callbacks=[watcher]).train()
    rewards = [metrics["reward"] for metrics in watcher.steps]
    invalid = [metrics["invalid_actions"] for metrics in watcher.steps]
    assert sum(rewards[-5:]) > 1.4 * sum(rewards[:5])
    assert invalid[0] > 0.2
    assert max(invalid[-5:]) < 0.1


def test_a_second_interrupt_breaks_through_the_shield() -> None:
    def act() -> None:
        with Interruptible() as interruptible, interruptible.shielded():
            interrupt()
            reached.append("after the first")
            interrupt()
            reached.append("after the second")

    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        act()
    assert reached == ["after the first"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_sigterm_that_a_launcher_hands_on_again_does_not_break_a_shield() -> None:
    def act() -> None:
        with terminated_as_interrupted(), Interruptible() as interruptible, interruptible.shielded():
            for _ in range(2):
                signal.raise_signal(signal.SIGTERM)
            reached.append("the update is whole")

    reached: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        act()
    assert reached == ["the update is whole"]
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_in_another_thread_signals_are_left_alone() -> None:
    found: list[Any] = []

    def run() -> None:
        with Interruptible() as interruptible, interruptible.shielded():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


class Doomed(gym.Wrapper):  # type: ignore[type-arg]
    """Pays the same whatever is done, for tasks of odd seeds."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.flat = bool((seed or 0) % 2)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, 0.0 if self.flat else reward, terminated, truncated, info


def test_tasks_that_teach_nothing_are_replaced_and_counted(tmp_path: Path) -> None:
    def run(folder: str, stop: int, resume: str | None = None) -> GRPOTrainer:
        config = GRPOConfig(
            output_dir=str(tmp_path / folder), **{**SETTINGS, "groups_per_step": 6}, max_steps=stop,
            dynamic_sampling=True, max_resampled_groups=20, seed=3,
        )  # fmt: skip
        trainer = GRPOTrainer(guess_policy(), lambda: Doomed(GuessEnv()), config)
        if resume is not None:
            trainer.load_checkpoint(list_checkpoints(tmp_path / resume / "checkpoints")[-1])
        trainer.train()
        trainer.close()
        return trainer

    whole = run("whole", 2)
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert all(line["resampled_groups"] >= 1 for line in lines)
    # The mean is over all that was played, not over the chosen.
    assert lines[0]["frac_reward_zero_std"] > 0
    run("half", 1)
    resumed = run("rest", 2, resume="half")
    for name, weights in whole.policy.model.state_dict().items():
        assert torch.equal(weights, resumed.policy.model.state_dict()[name])
