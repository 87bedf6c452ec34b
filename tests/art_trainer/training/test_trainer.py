import asyncio
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch

from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.rollout.evaluate import evaluate
from art_trainer.tracking.episode_store import iter_steps
from art_trainer.tracking.run_dir import RunFolder, list_checkpoints
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Episode
from tests.art_trainer.guess import SETTINGS, GuessEnv, guess_policy
from tests.art_trainer.updates import logged_metrics, untimed, weights_of

Make = Callable[..., GRPOTrainer]


class Watcher:
    """Records steps and episodes; it may interrupt the process at one of them."""

    def __init__(self, stop_at_step: int | None = None, stop_at_episode: int | None = None) -> None:
        self.steps: list[dict[str, float]] = []
        self.episodes = 0
        self.stop_at_step, self.stop_at_episode = stop_at_step, stop_at_episode

    def on_step(self, metrics: Mapping[str, float]) -> None:
        self.steps.append(dict(metrics))
        if len(self.steps) == self.stop_at_step:
            signal.raise_signal(signal.SIGINT)

    def on_episode(self, episode: Episode) -> None:
        self.episodes += 1
        if self.episodes == self.stop_at_episode:
            signal.raise_signal(signal.SIGINT)


class Doomed(gym.Wrapper):  # type: ignore[type-arg]
    """Pays nothing in tasks of odd seeds, whatever is done."""

    def reset(self, *, seed: int, options: Any = None) -> Any:
        self.flat = bool(seed % 2)
        return self.env.reset(seed=seed, options=options)

    def step(self, action: str) -> Any:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, 0.0 if self.flat else reward, terminated, truncated, info


@pytest.fixture
def make_trainer(tmp_path: Path) -> Iterator[Make]:
    made = []

    def make(
        folder: str, *callbacks: Watcher, policy_seed: int = 0, env: Any = GuessEnv, **settings: Any
    ) -> GRPOTrainer:
        config = GRPOConfig(output_dir=str(tmp_path / folder), **{**SETTINGS, "eval_episodes": 8, **settings})
        made.append(GRPOTrainer(guess_policy(policy_seed, hidden=16), env, config, callbacks=callbacks))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


def lines(trainer: GRPOTrainer) -> list[dict[str, float]]:
    return logged_metrics(trainer.log.path)


def same_weights(one: GRPOTrainer, other: GRPOTrainer) -> bool:
    return torch.equal(weights_of(one.policy.model), weights_of(other.policy.model))


def test_the_loop_written_out_is_train(make_trainer: Make) -> None:
    watcher = Watcher()
    whole, parts = make_trainer("whole", watcher), make_trainer("parts")
    whole.train()
    while parts.step < parts.config.max_steps:
        metrics = parts.update_policy(parts.collect_episodes())
    assert same_weights(whole, parts)
    assert lines(whole)[-1] == untimed(metrics)
    assert {"policy_loss", "kl", "reward", "entropy", "grad_norm", "learning_rate", "success"} <= set(metrics)
    assert metrics["tokens_per_second"] > 0
    assert parts.policy.version == 3
    assert [step["step"] for step in watcher.steps] == [1, 2, 3]
    assert watcher.episodes == 3 * 16
    assert make_trainer("c").collect_episodes() != make_trainer("d", seed=7).collect_episodes()


def test_stopping_and_resuming_gives_the_numbers_of_never_stopping(make_trainer: Make) -> None:
    settings = {"max_steps": 6, "steps_per_generation": 2}
    straight = make_trainer("straight", **settings)
    straight.train()
    stopped = make_trainer("stopped", Watcher(stop_at_step=3), **settings)
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    (saved,) = list_checkpoints(stopped.log.checkpoints)
    resumed = make_trainer("stopped", policy_seed=9, **settings)
    resumed.load_checkpoint(saved)
    assert resumed.step == 3
    with (resumed.log.path / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 4, "rew')  # a killed run's last line
    resumed.train()
    assert same_weights(straight, resumed)
    assert lines(straight) == lines(resumed)


def test_a_run_interrupted_while_it_collects_loses_only_that_batch(make_trainer: Make) -> None:
    straight = make_trainer("straight")
    straight.train()
    stopped = make_trainer("stopped", Watcher(stop_at_episode=20))
    with pytest.raises(KeyboardInterrupt):
        stopped.train()
    assert stopped.step == 1
    stopped.train()  # the same trainer can go on
    assert same_weights(straight, stopped)


def test_an_interrupt_lets_the_last_checkpoint_be_written(make_trainer: Make, monkeypatch: Any) -> None:
    trainer = make_trainer("run")
    monkeypatch.setattr(trainer.log, "sync", lambda: signal.raise_signal(signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert [path.name for path in list_checkpoints(trainer.log.checkpoints)] == ["step-000003"]


def test_a_run_leaves_settings_metrics_episodes_and_checkpoints(make_trainer: Make) -> None:
    trainer = make_trainer("run", save_steps=1, save_total_limit=2, logging_steps=2)
    trainer.train()
    folder = trainer.log.path
    assert GRPOConfig.from_mapping(RunFolder(folder).settings()) == trainer.config
    assert [path.name for path in list_checkpoints(folder / "checkpoints")] == ["step-000002", "step-000003"]
    # Of every step, also of those whose metrics are not logged.
    records = list(iter_steps(folder))
    assert [(r.step, r.left_out, len(r.groups)) for r in records] == [(n, 0, 4) for n in (1, 2, 3)]
    episode = records[0].groups[0].episodes[0]
    assert episode.observation == "GUESS"
    assert episode.sampled_tokens == len(episode.turns) > 0


def test_evaluations_come_when_asked_for_and_change_nothing(make_trainer: Make) -> None:
    plain, watched = make_trainer("plain"), make_trainer("watched", eval_steps=2)
    plain.train()
    watched.train()
    assert same_weights(plain, watched)
    assert [line["step"] for line in lines(watched) if "eval_reward" in line] == [0, 2, 3]
    assert watched.evaluate() == watched.evaluate()
    assert watched.policy.sampling.temperature == 1.0


def test_it_trains_beside_a_running_event_loop_and_can_be_stopped(make_trainer: Make) -> None:
    trainer = make_trainer("run", max_steps=1000)
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


def test_an_environment_may_be_an_id_or_made_by_gym(make_trainer: Make) -> None:
    for env in ("toy/Guess-v0", gym.make("toy/Guess-v0")):
        assert evaluate(guess_policy(), env, episodes=1).env_id == "toy/Guess-v0"
        assert make_trainer("run", env=env).collect_episodes()[0].episodes[0].env_id == "toy/Guess-v0"
    for other in (GuessEnv(), gym.Wrapper(gym.make("toy/Guess-v0")), 3):
        with pytest.raises(TypeError, match="callable that makes one"):
            make_trainer("run", env=other)
    with pytest.raises(ConfigError, match="no split 'train'"):
        make_trainer("run", train_split="train")
    for cart in ("CartPole-v1", gym.make("CartPole-v1")):
        with pytest.raises(ConfigError, match="CartPole-v1 is not a text environment"):
            make_trainer("run", env=cart)
    with pytest.raises(TypeError, match=r"from_pretrained .* not 'art-tiny'"):
        GRPOTrainer("art-tiny", GuessEnv)  # type: ignore[arg-type]
    for wrong in ({"config": {"max_steps": 3}}, {"callbacks": [Watcher]}, {"reward": len}):
        with pytest.raises(
            TypeError, match=r"(config|each callback|reward) must be .*, not (\{|<class|<built-in)"
        ):
            GRPOTrainer(guess_policy(), GuessEnv, **wrong)  # type: ignore[arg-type]


def test_a_reply_that_is_as_long_as_a_context_is_refused(make_trainer: Make) -> None:
    with pytest.raises(ConfigError, match=r"max_completion_length is 64, but .* holds 64 tokens"):
        make_trainer("run", max_completion_length=64)


def test_a_reply_that_was_cut_off_costs_its_penalty(make_trainer: Make) -> None:
    whole = [make_trainer(f"run-{x}", truncation_penalty=x).collect_episodes() for x in (0.0, 0.5)]
    free, priced = ([episode for group in groups for episode in group.episodes] for groups in whole)
    cut = [sum(turn.cut for turn in episode.turns) for episode in free]
    assert 0 < sum(cut) < sum(len(episode.turns) for episode in free)
    for count, one, other in zip(cut, free, priced, strict=True):
        assert other.reward - one.reward == other.score_terms.get("truncated", 0) == -0.5 * count


def test_groups_without_signal_are_replaced_counted_resumed_and_replayed(make_trainer: Make) -> None:
    def run(folder: str, stop: int, resume: GRPOTrainer | None = None) -> GRPOTrainer:
        settings = {"groups_per_step": 6, "max_steps": stop, "max_resampled_groups": 20, "seed": 3}
        trainer = make_trainer(folder, env=lambda: Doomed(GuessEnv()), dynamic_sampling=True, **settings)
        if resume is not None:
            trainer.load_checkpoint(list_checkpoints(resume.log.checkpoints)[-1])
        trainer.train()
        return trainer

    whole = run("whole", 2)
    assert all(line["resampled_groups"] >= 1 for line in lines(whole))
    # The mean is over all that was played, not over the chosen.
    assert lines(whole)[0]["frac_reward_zero_std"] > 0
    assert same_weights(run("rest", 2, resume=run("half", 1)), whole)


@pytest.mark.e2e
@pytest.mark.parametrize(
    "settings",
    [
        {"groups_per_step": 32, "num_generations": 8, "steps_per_generation": 4, "entropy_coef": 0.01},
        {
            "advantage_estimator": "gae", "value_learning_rate": 1e-2, "groups_per_step": 64,
            "num_generations": 1, "num_iterations": 2, "steps_per_generation": 2,
        },
    ],
    ids=["GRPO", "PPO"],
)  # fmt: skip
def test_reward_rises_from_random_weights(settings: dict[str, Any], tmp_path: Path) -> None:
    watcher = Watcher()
    config = GRPOConfig(
        output_dir=str(tmp_path), max_steps=24, learning_rate=2e-3, max_completion_length=1, **settings
    )
    GRPOTrainer(guess_policy(), GuessEnv, config, callbacks=[watcher]).train()
    rewards = [metrics["reward"] for metrics in watcher.steps]
    invalid = [metrics["invalid_actions"] for metrics in watcher.steps]
    assert sum(rewards[-5:]) > 1.4 * sum(rewards[:5])
    assert max(invalid[-5:]) < 0.1 < 0.2 < invalid[0]
