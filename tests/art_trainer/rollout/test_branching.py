"""Branching rollouts: an attempt begins in the middle of another one, exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from art_trainer.config import GRPOConfig
from art_trainer.errors import ConfigError
from art_trainer.inference.policy import Policy
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout.backend import RolloutBackend, SelfContainedBackend
from art_trainer.rollout.branching import branch_points, rollout_branching_groups
from art_trainer.rollout.envs import EnvPool
from art_trainer.rollout.episodes import group_specs
from art_trainer.tracking.episode_schema import episode_from_json, episode_to_json
from art_trainer.training.learner import build_training_samples
from art_trainer.training.trainer import GRPOTrainer
from art_trainer.types import Branch, Group, Span, TokenHistory
from tests.art_trainer.guess import SETTINGS
from tests.art_trainer.made_episodes import made_episode
from tests.art_trainer.tiny_models import CHATML, EchoEnv, byte_tokenizer, full_logprobs, tiny_model

REWRITING = CHATML.replace(
    "m['content']", "m['content'] if loop.last or m['role'] != 'assistant' else 'done'"
)


def policy(template: str = CHATML, **options: Any) -> TransformersPolicy:
    sampling = SamplingParams(max_new_tokens=6)
    return TransformersPolicy(tiny_model(), byte_tokenizer(template), sampling=sampling, **options)


def play(with_policy: Policy, branches: int, make_env: Any = EchoEnv, size: int = 6) -> list[Group]:
    seeds = group_specs([1, 2, 3], size)
    with EnvPool(make_env) as pool:
        return rollout_branching_groups(with_policy, pool, seeds, branches)


@pytest.mark.parametrize("options", [{}, {"history_window": 1}, {"template": REWRITING}, {"max_batch": 2}])
def test_a_branch_has_its_parents_turns_and_samples_the_rest(options: dict[str, Any]) -> None:
    played_by = policy(**options)
    groups = play(played_by, branches=3)
    branched = [(g, e) for g in groups for e in g.episodes if e.branch is not None]
    assert len(branched) > 4
    for group, episode in branched:
        assert episode.branch is not None
        parent, turn = group.episodes[episode.branch.attempt], episode.branch.turn
        assert parent.branch is None
        assert episode.turns[:turn] == parent.turns[:turn]
        own = [span.turn for history in episode.histories for span in history.spans if span.turn is not None]
        assert own == list(range(turn, len(episode.turns)))
        assert episode_from_json(episode_to_json(episode)) == episode
        # The context is the parent's to the token, and log-probs are those of a plain forward pass.
        theirs = next(h for h in parent.histories if turn in h.turns)
        ours = episode.histories[0]
        before = theirs.spans[: [span.turn for span in theirs.spans].index(turn)]
        assert ours.token_ids[: ours.prompt_length] == TokenHistory(before).token_ids
        for history in episode.histories:
            expected = full_logprobs(played_by.model, history.token_ids)[list(history.action_mask[1:])]
            assert history.logprobs == pytest.approx(expected.tolist(), abs=1e-4)


def test_branches_leave_before_the_least_likely_replies() -> None:
    def attempt(*logprobs: float) -> Any:
        spans = [Span((1,))]
        for turn, value in enumerate(logprobs):
            spans += [Span((2,), turn, (value,)), Span((3,))]
        return made_episode(0, 0.0, [TokenHistory(tuple(spans))])

    group = Group((attempt(-0.1, -3.0), attempt(-2.0, -0.5), attempt()))
    assert branch_points(group, 3) == [Branch(0, 1), None, Branch(1, 1)]
    assert branch_points(group, 6) == [Branch(0, 1), None, Branch(1, 1), None, None, None]


def test_the_same_seed_branches_alike_and_only_own_tokens_are_trained_on() -> None:
    groups = play(policy(), branches=3)
    assert play(policy(), branches=3) == groups
    paid = [Group(tuple(paid_by_place(e, i) for i, e in enumerate(group.episodes))) for group in groups]
    samples = build_training_samples(paid, GRPOConfig(num_generations=6, num_branches=3))
    tokens = [[sample.tokens for sample in members] for members in samples]
    assert tokens == [[episode.sampled_tokens for episode in group.episodes] for group in groups]


def paid_by_place(episode: Any, place: int) -> Any:
    turns = [*episode.turns[:-1], replace(episode.turns[-1], reward=float(place))]
    return replace(episode, turns=tuple(turns))


class Forgetful(EchoEnv):
    """Answers otherwise each time it is reset, which fails at last; it names its task."""

    resets = 0

    def reset(self, **options: Any) -> Any:
        Forgetful.resets += 1
        if Forgetful.resets == 17:
            raise OSError("gone")
        observation, info = super().reset(**options)
        return observation, {**info, "task_id": f"task {options['seed']}"}

    def step(self, reply: str) -> Any:
        observation, *rest = super().step(reply)
        return f"{observation} {Forgetful.resets}", *rest


def test_an_environment_that_does_not_repeat_itself_is_found_out() -> None:
    groups = play(policy(), branches=3, make_env=Forgetful)
    assert [group.task_id for group in groups] == ["task 1", "task 2", "task 3"]
    errors = {episode.error for group in groups for episode in group.episodes}
    assert any(error and "branches need a deterministic one" in error for error in errors)
    assert "OSError: gone" in errors


def test_training_with_branches_is_deterministic_and_samples_fewer_tokens(tmp_path: Any) -> None:
    found = []
    for branches, folder in ((0, "a"), (2, "b"), (2, "c")):
        config = GRPOConfig(output_dir=str(tmp_path / folder), **{**SETTINGS, "num_branches": branches})
        trainer = GRPOTrainer(policy(), EchoEnv, config)
        trainer.train()
        trainer.close()
        rows = trainer.log.metrics().records
        found.append([(row["reward"], row["num_tokens"], row["grad_norm"]) for row in rows])
    assert found[1] == found[2]
    assert sum(row[1] for row in found[1]) < sum(row[1] for row in found[0])


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"num_branches": 8}, "num_branches is 8, but num_generations is 8"),
        ({"num_branches": 2, "advantage_estimator": "gigpo"}, "knows no branches"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        GRPOConfig(**settings)


def test_branches_are_played_in_this_process_alone(tmp_path: Any) -> None:
    config = GRPOConfig(output_dir=str(tmp_path), num_branches=2)
    with pytest.raises(ConfigError, match="num_branches needs attempts that are played in this process"):
        GRPOTrainer(policy(), EchoEnv, config, backend=RolloutBackend())
    with pytest.raises(ConfigError, match="num_branches is about an environment"):
        GRPOTrainer(policy(), None, config, backend=SelfContainedBackend())
