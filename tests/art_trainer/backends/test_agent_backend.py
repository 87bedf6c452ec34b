import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from art_gym.wrappers.judging import Attempt, Rubric, Score
from art_trainer.agent_server import AgentServer
from art_trainer.backends import EnvlessBackend
from art_trainer.backends.agents import AgentBackend
from art_trainer.checkpoint import list_checkpoints
from art_trainer.config import GRPOConfig
from art_trainer.episodes import Episode, Group
from art_trainer.errors import ConfigError
from art_trainer.judging import RewardMix, RewardModel
from art_trainer.monitoring.traces import RunIdentity, Sampling, episode_trace
from art_trainer.starts import GroupTask
from art_trainer.timings import Timings
from art_trainer.trainer import GRPOTrainer
from art_trainer.transformers_policy import TransformersPolicy
from tests.art_trainer.agent_server.agent_helpers import tiny_policy, user
from tests.art_trainer.guess import GuessEnv

TASKS, HELD_OUT = ["a", "b", "c"], [{"id": "held", "words": "d"}, "e"]
SETTINGS: dict[str, Any] = {
    "learning_rate": 1e-2,
    "lr_scheduler_type": "constant",
    "scale_rewards": "group",
    "groups_per_step": 2,
    "num_generations": 8,
    "max_completion_length": 4,
    "max_steps": 4,
    "eval_episodes": 4,
}


class Asker:
    """An agent over plain HTTP: it asks once, and is paid for capital letters."""

    __name__ = "asker"

    def __init__(self) -> None:
        self.http = httpx.Client(timeout=60)
        self.tasks: list[Any] = []
        self.watch: Callable[[], float] = lambda: 0.0
        self.watched: list[float] = []

    def __call__(self, base_url: str, api_key: str, task: Any) -> float:
        self.tasks.append(task)
        self.watched.append(self.watch())
        if task == "fails":
            raise KeyError("no such thing")
        answer = self.http.post(
            f"{base_url}/chat/completions",
            json={"messages": [user(f"Capitals, please: {task}")]},
            headers={"authorization": f"Bearer {api_key}"},
        )
        words = answer.json()["choices"][0]["message"]["content"] or " "
        return sum("A" <= letter <= "Z" for letter in words) / len(words)


@pytest.fixture
def asker() -> Iterator[Asker]:
    agent = Asker()
    yield agent
    agent.http.close()


@pytest.fixture
def make_backend(asker: Asker) -> Iterator[Callable[..., AgentBackend]]:
    made = []

    def make(policy: TransformersPolicy, tasks: Sequence[Any] = TASKS, **options: Any) -> AgentBackend:
        made.append(AgentBackend(asker, tasks, policy, **{"eval_tasks": HELD_OUT, **options}))
        return made[-1]

    yield make
    for backend in made:
        backend.close()


@pytest.fixture
def make_trainer(make_backend: Any, tmp_path: Path) -> Iterator[Callable[..., GRPOTrainer]]:
    made = []

    def make(folder: str = "run", reward: RewardModel | None = None, **settings: Any) -> GRPOTrainer:
        policy = tiny_policy()
        config = GRPOConfig(output_dir=str(tmp_path / folder), **{**SETTINGS, **settings})
        made.append(GRPOTrainer(policy, None, config, backend=make_backend(policy), reward=reward))
        return made[-1]

    yield make
    for trainer in made:
        trainer.close()


def tokens_of(groups: list[Group]) -> list[Any]:
    return [[[h.token_ids for h in e.histories] for e in group.episodes] for group in groups]


def lines(trainer: GRPOTrainer) -> list[dict[str, float]]:
    written = (trainer.log.folder / "metrics.jsonl").read_text().splitlines()
    return [
        {k: v for k, v in json.loads(line).items() if not k.startswith("time/") and k != "tokens_per_second"}
        for line in written
    ]


def test_groups_are_attempts_at_the_task_that_their_seed_picks(make_backend: Any) -> None:
    backend = make_backend(tiny_policy())
    assert isinstance(backend, EnvlessBackend)
    wanted = [GroupTask(7, 3, (1, 0)), GroupTask(7, 2, (1, 1)), GroupTask(2, 1, (1, 2))]
    ended: list[Episode] = []
    whole: dict[int, Group] = {}
    groups = backend.collect(wanted, on_episode=ended.append, on_group=whole.__setitem__)
    assert [group.task_id for group in groups] == ["task-1", "task-1", "task-2"]
    assert [len(group.episodes) for group in groups] == [3, 2, 1]
    assert [[e.seed for e in group.episodes] for group in groups] == [[7] * 3, [7] * 2, [2]]
    assert [whole[place] for place in range(3)] == groups
    assert sorted(map(id, ended)) == sorted(id(e) for group in groups for e in group.episodes)
    said = [tokens for group in tokens_of(groups) for (tokens,) in group]
    assert len(set(said)) == 6
    # Played alone and again, a group is the same.
    again = backend.collect(wanted[1:2], on_episode=ended.append)
    assert tokens_of(again) == tokens_of(groups[1:2])


def test_timings_are_of_each_reply_and_of_the_agents_work_between_two(make_backend: Any) -> None:
    backend = make_backend(tiny_policy())
    backend.collect([GroupTask(0, 2, (0,))], on_episode=lambda _: None)  # without, nobody asks for them
    began, timings = time.time(), Timings()
    groups = backend.collect([GroupTask(0, 2, (0,))], on_episode=lambda _: None, timings=timings)
    for timing in timings.of(groups):
        assert timing is not None
        assert began <= timing.started <= time.time()
        (only,) = timing.turns
        assert only.reply_seconds is not None
        assert only.reply_seconds > 0
        assert only.action_seconds is None


def test_the_time_of_an_agents_work_is_from_a_reply_to_the_next_request(tmp_path: Path) -> None:
    def works(base_url: str, api_key: str, task: Any) -> float:
        messages = [user("one")]
        with httpx.Client(timeout=60, headers={"authorization": f"Bearer {api_key}"}) as client:
            for _ in range(2):
                answer = client.post(f"{base_url}/chat/completions", json={"messages": messages})
                time.sleep(0.05)
                messages += [answer.json()["choices"][0]["message"], user("and")]
        return 1.0

    backend = AgentBackend(works, ["a"], tiny_policy())
    timings = Timings()
    try:
        groups = backend.collect([GroupTask(0, 1, (0,))], on_episode=lambda _: None, timings=timings)
    finally:
        backend.close()
    (timing,) = timings.of(groups)
    assert timing is not None
    first, last = timing.turns
    assert len(groups[0].episodes[0].turns) == 2
    assert first.action_seconds is not None
    assert first.action_seconds >= 0.05
    assert last.action_seconds is None
    trace = episode_trace(groups[0].episodes[0], RunIdentity("run", 0), 1, "1-0", Sampling("tiny"), timing)
    assert trace.timed
    assert [action.seconds for action in trace.actions] == [first.action_seconds, None]


def test_a_trainer_without_an_environment_learns_and_is_evaluated_on_tasks_held_out(
    make_trainer: Any, asker: Asker
) -> None:
    trainer = make_trainer(max_steps=8, num_generations=16, eval_steps=4, save_steps=4)
    trainer.train()
    log = lines(trainer)
    assert [line["step"] for line in log if "eval_reward" in line] == [0, 4, 8]
    assert log[1]["reward"] < 0.2
    assert log[-1]["reward"] > 0.5
    assert log[-1]["eval_reward"] > 0.5
    assert [path.name for path in list_checkpoints(trainer.log.checkpoints)] == ["step-000004", "step-000008"]
    assert {str(task) for task in asker.tasks} == {str(task) for task in [*TASKS, *HELD_OUT]}
    assert sum(task in HELD_OUT for task in asker.tasks) == 3 * SETTINGS["eval_episodes"]


def test_evaluations_are_greedy_and_disturb_nothing(make_trainer: Any, asker: Asker) -> None:
    trainer = make_trainer()
    asker.watch = lambda: trainer.policy.sampling.temperature
    assert trainer.evaluate() == trainer.evaluate()
    assert asker.watched == [0.0] * 2 * SETTINGS["eval_episodes"]
    trainer.collect_episodes()
    assert asker.watched[-1] == 1.0
    result = trainer.backend.evaluate(episodes=3, seed=5)
    assert [one.task_id for one in result.results] == ["held", "task-1", "held"]
    assert (result.env_id, result.policy) == ("asker", "tiny")


def test_stopping_and_resuming_gives_the_numbers_of_never_stopping(make_trainer: Any) -> None:
    whole = make_trainer("whole")
    whole.train()
    first = make_trainer("first", max_steps=2)
    first.train()
    second = make_trainer("second")
    second.load_checkpoint(list_checkpoints(first.log.checkpoints)[-1])
    second.train()
    for ours, theirs in zip(lines(second), lines(whole)[2:], strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


class LikesShort:
    """A judge that compares a group's attempts: who says less is better."""

    def __call__(self, group: Sequence[Attempt], rubric: Rubric | None = None) -> dict[str, Score]:
        return {attempt.id: Score(1 / (1 + len(attempt.steps[0].reply))) for attempt in group}


def test_a_judge_may_pay_instead_of_the_agent(make_trainer: Any) -> None:
    trainer = make_trainer(reward=RewardModel(RewardMix({"short": 1.0}), {"short": LikesShort()}))
    for group in trainer.collect_episodes():
        for episode in group.episodes:
            assert episode.reward == pytest.approx(1 / (1 + len(episode.turns[0].reply)))
            assert episode.independent_reward is not None


def test_an_attempt_that_fails_drops_its_group_and_is_counted_in_an_evaluation(make_backend: Any) -> None:
    backend = make_backend(tiny_policy(), ["fails", "b"], eval_tasks=["fails", "b"])
    failed, fine = backend.collect([GroupTask(0, 2, (0,)), GroupTask(1, 2, (1,))], on_episode=lambda _: None)
    assert not failed.whole
    assert "no such thing" in failed.episodes[0].error
    assert fine.whole
    result = backend.evaluate(episodes=4, seed=0)
    assert (result.faults, len(result.counted)) == (2, 2)


def test_a_server_that_is_given_stays_open(make_backend: Any, tmp_path: Path) -> None:
    policy = tiny_policy()
    with AgentServer(policy) as server:
        for _ in range(2):
            backend = make_backend(policy, server=server)
            (group,) = backend.collect([GroupTask(0, 1, (0,))], on_episode=lambda _: None)
            assert group.whole
            backend.close()


def test_what_needs_an_environment_is_refused_in_words(make_backend: Any, tmp_path: Path) -> None:
    policy = tiny_policy()
    backend = make_backend(policy)

    def make(**options: Any) -> GRPOTrainer:
        settings = {"output_dir": str(tmp_path / "run"), **options.pop("settings", {})}
        return GRPOTrainer(policy, None, GRPOConfig(**settings), **options)

    with pytest.raises(ConfigError, match="name an environment, or give a backend"):
        make()
    with pytest.raises(ConfigError, match="train_split is about an environment"):
        make(backend=backend, settings={"train_split": "train"})
    with pytest.raises(ConfigError, match='step_states="snapshot" is about an environment'):
        make(backend=backend, settings={"advantage_estimator": "gigpo"})
    with pytest.raises(ConfigError, match="eval_env is about an environment"):
        make(backend=backend, eval_env=GuessEnv)
    with pytest.raises(ConfigError, match="tasks is empty"):
        make_backend(policy, [])
    with pytest.raises(ConfigError, match="give AgentBackend eval_tasks"):
        make(backend=make_backend(policy, eval_tasks=[])).evaluate()
