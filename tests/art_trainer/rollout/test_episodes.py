"""Environments that are stepped in threads while the policy samples."""

from __future__ import annotations

import threading
import time

import gymnasium as gym
import numpy as np
import pytest

from art_trainer.inference.policy import Conversation, Reply
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.rollout import slow_calls
from art_trainer.rollout.envs import EnvPool
from art_trainer.rollout.episodes import group_specs, rollout_episodes, rollout_groups
from art_trainer.rollout.evaluate import evaluate
from art_trainer.types import Ending, EpisodeSpec, TokenHistory
from tests.art_trainer.tiny_models import EchoEnv, byte_tokenizer, tiny_model


class CountEnv(gym.Env[str, str]):
    """Ends after a number of turns that depends on the seed; replies can make it fail."""

    def __init__(self, info=True):
        self.with_info, self.closed = info, False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn, self.limit = 0, int(self.np_random.integers(1, 5))
        if not self.with_info:
            return f"seed {seed}", {}
        tool = {"type": "function", "function": {"name": "go"}}
        info = {"task_id": f"task-{seed}", "system": "Rules.", "tools": [tool]}
        return f"Rules.\n\nseed {seed}", info

    def step(self, reply):
        self.turn += 1
        if reply == "crash":
            raise ZeroDivisionError("division\nby zero")
        if reply == "exit":
            raise SystemExit("gone")
        if reply == "slow":
            time.sleep(0.3)
        end = ("", 1.0, True, False)
        odd = {"number": (7, *end[1:], {}), "nan": ("", np.nan, *end[2:], {}), "form": end}
        odd |= {"info": (*end, None), "term": (*end, {"score_terms": {"a": ""}})}
        if reply in odd:
            return odd[reply]
        done, late = self.turn >= self.limit and reply != "wait", self.turn >= 8
        info = {}
        if self.with_info:
            info = {"score_terms": {"step": 0.5}, "call": {"name": "go", "arguments": {}}}
            if reply == "wait":
                info["error"] = {"kind": "slow", "message": "do not wait"}
            if done or late:
                info |= {"success": np.bool_(done), "metrics": {"limit": np.float32(self.limit)}}
        return f"turn {self.turn}", 0.5, done, late, info

    def close(self):
        self.closed = True

    @property
    def baselines(self):
        def factory(env, rng):
            def act(observation):
                if observation.endswith("seed 13"):
                    raise RuntimeError("unlucky")
                return f"{observation!r} {rng.integers(1000)}"

            return act

        return {"random": factory, "greedy": factory}


class Script:
    """A policy that says what a function of the conversation says, some replies at a time, last first."""

    name, version = "script", 0

    def __init__(self, say, chunk=2):
        self.say, self.chunk = say, chunk
        self.asked, self.live, self.most, self.released = [], set(), 0, 0

    def submit(self, conversation):
        if self.say(conversation) == "refuse":
            raise ValueError("cannot read this")
        assert conversation.messages[-1]["role"] == "user"
        self.asked.append(conversation)
        self.live.add(conversation)
        self.most = max(self.most, len(self.live))

    def collect(self):
        answers = []
        for _ in range(min(self.chunk, len(self.asked))):
            conversation = self.asked.pop()
            said = self.say(conversation)
            if isinstance(said, BaseException):
                raise said
            reply = said if isinstance(said, Reply) else Reply(said)
            if reply.error is None and not reply.context_full:
                conversation.messages.append({"role": "assistant", "content": reply.text})
            answers.append((conversation, reply))
        return answers

    def release(self, conversation) -> tuple[TokenHistory, ...]:
        self.released += 1
        self.live.discard(conversation)
        if conversation in self.asked:
            self.asked.remove(conversation)
        return ()


def starts(count, **fields):
    return [EpisodeSpec(seed, rng_seed=(seed, 1), **fields) for seed in range(count)]


def drawn(conversation: Conversation) -> str:
    return f"r{conversation.rng.integers(1000)}"


def test_episodes_come_in_the_order_of_their_starts_and_are_announced_once_whatever_the_schedule():
    heard = []
    first = rollout_episodes(Script(drawn, 1), CountEnv, starts(9), max_concurrent=1, on_episode=heard.append)
    assert [e.seed for e in first] == list(range(9))
    assert len({len(e.turns) for e in first}) > 1
    assert sorted(e.seed for e in heard) == list(range(9))
    for chunk, limit in [(1, 9), (3, 4), (99, None)]:
        assert rollout_episodes(Script(drawn, chunk), CountEnv, starts(9), max_concurrent=limit) == first


def test_an_episode_holds_what_the_environment_said():
    (episode,) = rollout_episodes(Script(lambda c: "on"), CountEnv, [EpisodeSpec(3)])
    assert (episode.env_id, episode.task_id, episode.seed) == ("CountEnv", "task-3", 3)
    assert episode.observation == "Rules.\n\nseed 3"
    assert [t.observation for t in episode.turns] == [f"turn {k + 1}" for k in range(len(episode.turns))]
    assert episode.reward == 0.5 * len(episode.turns)
    assert episode.score_terms == {"step": episode.reward}
    assert episode.turns[0].call == {"name": "go", "arguments": {}}
    assert episode.ending is Ending.TERMINATED
    assert episode.success is True
    assert episode.metrics == {"limit": float(len(episode.turns))}
    # The turn limit is a truncation, and bad replies are counted.
    (episode,) = rollout_episodes(Script(lambda c: "wait"), CountEnv, [EpisodeSpec(0)])
    assert (episode.ending, len(episode.turns), episode.success) == (Ending.TRUNCATED, 8, False)
    assert episode.invalid_actions == 8


@pytest.mark.parametrize("info", [True, False])
def test_standing_instructions_become_the_system_message(info):
    seen = []
    policy = Script(lambda c: seen.append((list(c.messages), len(c.tools))) or "on")
    (episode,) = rollout_episodes(policy, lambda: CountEnv(info=info), [EpisodeSpec(0)])
    system = [{"role": "system", "content": "Rules."}] * info
    assert seen[0] == ([*system, {"role": "user", "content": "seed 0"}], int(info))
    if not info:
        assert (episode.task_id, episode.success, episode.metrics) == ("seed-0", None, {})


@pytest.mark.parametrize("threads", [0, 2])
def test_a_call_that_does_not_return_is_named(threads, monkeypatch, caplog):
    monkeypatch.setattr(slow_calls, "SLOW", 0.06)
    rollout_episodes(Script(lambda c: "slow"), CountEnv, [EpisodeSpec(3)], env_threads=threads)
    assert caplog.messages[0].startswith("step of CountEnv (seed 3, turn 1) has not returned for 0 s")


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize(
    ("reply", "words"),
    [
        *(("crash", "by zero"), ("exit", "SystemExit: gone")),
        *(("number", "TypeError: the observation"), ("nan", "must be a finite number")),
        *(("term", "score term 'a' must be"), ("form", "must return (obs"), ("info", "must be a dict")),
    ],
)
def test_an_environment_that_raises_ends_its_own_episode_and_is_not_used_again(reply, words, threads):
    made = []
    make = lambda: made.append(CountEnv()) or made[-1]  # noqa: E731
    policy = Script(lambda c: reply if c.env.np_random_seed == 1 else "on", chunk=1)
    episodes = rollout_episodes(policy, make, starts(3), max_concurrent=1, env_threads=threads)
    assert [e.ending for e in episodes] == [Ending.TERMINATED, Ending.ENV_ERROR, Ending.TERMINATED]
    assert words in episodes[1].error
    assert episodes[1].failed
    assert len(made) == 2
    assert all(env.closed for env in made)


def test_one_reset_of_a_group_that_raises_leaves_a_group_that_is_not_whole():
    class Flaky(CountEnv):
        resets = 0

        def reset(self, *, seed=None, options=None):
            type(self).resets += 1
            if self.resets == 2:
                raise ConnectionError("no route")
            return super().reset(seed=seed, options=options)

    (group,) = rollout_groups(Script(drawn), Flaky, group_specs([5], 3), max_concurrent=1)
    assert [e.failed for e in group.episodes] == [False, True, False]
    assert group.task_id == "task-5"
    assert not group.whole


def test_a_policy_error_ends_its_own_episode():
    said = ["refuse", Reply("", error="server gone"), Reply("", context_full=True), "on"]
    policy = Script(lambda conversation: said[conversation.env.np_random_seed])
    episodes = rollout_episodes(policy, CountEnv, starts(4))
    endings = [Ending.POLICY_ERROR, Ending.POLICY_ERROR, Ending.CONTEXT_FULL, Ending.TERMINATED]
    assert [e.ending for e in episodes] == endings
    assert str(episodes[0].error).startswith("ValueError: cannot read this (test_episodes.py, line ")
    assert [e.error for e in episodes[1:]] == ["server gone", None, None]
    assert policy.released == 4


def test_a_full_context_pays_what_the_turn_limit_pays():
    """Else an agent that fills its context never pays for giving no answer."""

    def say(conversation):
        full = Reply("", context_full=True)
        return full if len(conversation.messages) > 3 else 'search("budget")'

    (episode,) = rollout_episodes(Script(say), lambda: gym.make("art/Email-v0"), starts(1))
    assert (episode.ending, episode.success) == (Ending.CONTEXT_FULL, False)
    assert episode.turns[-1].score_terms["no_answer"] == episode.reward == -0.5
    assert episode.metrics["turns"] == len(episode.turns)


@pytest.mark.parametrize("fault", [KeyboardInterrupt(), MemoryError("cuda")])
@pytest.mark.parametrize("threads", [0, 2])
def test_an_interrupt_waits_for_the_threads_and_releases_everything(fault, threads):
    stepping, closed_while_stepping = set(), []

    class Slow(CountEnv):
        def step(self, reply):
            stepping.add(self)
            time.sleep(0.05)
            stepping.discard(self)
            return super().step(reply)

        def close(self):
            closed_while_stepping.append(self in stepping)

    policy = Script(lambda c: fault if len(c.messages) > 2 else "wait")
    with pytest.raises(type(fault)):
        rollout_episodes(policy, Slow, starts(5), env_threads=threads)
    assert (policy.released, policy.live) == (5, set())
    assert closed_while_stepping == [False] * 5


def test_environments_are_made_once_and_a_pool_keeps_them():
    made, policy = [], Script(drawn)
    with EnvPool(lambda: made.append(CountEnv()) or made[-1]) as pool:
        for _ in range(2):
            rollout_episodes(policy, pool, starts(12), max_concurrent=3)
        assert (len(made), policy.most) == (3, 3)
        assert not any(env.closed for env in made)
    assert all(env.closed for env in made)


def test_a_group_starts_from_one_state_with_randomness_of_its_own():
    groups = rollout_groups(Script(drawn), CountEnv, group_specs([5, 6], 4, rng_seed=[7, 0]))
    assert [[e.seed for e in g.episodes] for g in groups] == [[5] * 4, [6] * 4]
    for group in groups:
        assert len({e.observation for e in group.episodes}) == 1
        assert len({e.turns[0].reply for e in group.episodes}) > 1
    assert groups == rollout_groups(Script(drawn, 5), CountEnv, group_specs([5, 6], 4, rng_seed=[7, 0]))
    assert groups != rollout_groups(Script(drawn), CountEnv, group_specs([5, 6], 4, rng_seed=[7, 1]))


def test_sizes_below_one_and_unknown_options_are_refused():
    with pytest.raises(TypeError, match="no option `max_concurent`; did you mean `max_concurrent`"):
        rollout_episodes(Script(drawn), CountEnv, starts(1), max_concurent=4)
    with pytest.raises(TypeError, match="no option `transcript`"):
        evaluate(Script(drawn), CountEnv, episodes=1, transcript=[])
    with pytest.raises(ValueError, match="max_concurrent"):
        rollout_episodes(Script(drawn), CountEnv, starts(1), max_concurrent=0)
    with pytest.raises(ValueError, match="size=0"):
        rollout_groups(Script(drawn), CountEnv, group_specs([0], 0))


def test_a_baseline_sees_the_environments_own_words_and_its_faults_end_its_episode_only():
    episodes = rollout_episodes(ScriptedPolicy("random"), CountEnv, starts(4))
    firsts = [e.turns[0].reply.split("' ")[0] for e in episodes]
    assert firsts == [f"'Rules.\\n\\nseed {seed}" for seed in range(4)]
    assert episodes == rollout_episodes(ScriptedPolicy("random"), CountEnv, starts(4), max_concurrent=1)
    (episode,) = rollout_episodes(ScriptedPolicy("random"), CountEnv, [EpisodeSpec(13)])
    assert (episode.ending, episode.error) == (Ending.POLICY_ERROR, "RuntimeError: unlucky")
    (episode,) = rollout_episodes(ScriptedPolicy("randm"), CountEnv, [EpisodeSpec(0)])
    assert "did you mean `random`?" in episode.error


def test_replies_are_sampled_while_environments_play():
    asked_again, policy = threading.Event(), Script(drawn)
    collect, collections = policy.collect, []

    class Waiting(EchoEnv):
        def step(self, action):
            assert asked_again.wait(300), "the policy was not asked while this environment played"
            return super().step(action)

    def watched():
        collections.append(1)
        if len(collections) == 2:
            asked_again.set()
        return collect()

    policy.collect = watched
    episodes = rollout_episodes(policy, lambda: Waiting(2), starts(6), env_threads=2)
    assert [e.error for e in episodes] == [None] * 6


def test_the_same_seeds_give_the_same_tokens_however_long_environments_take():
    model, tokenizer = tiny_model(vocab_size=len(byte_tokenizer())), byte_tokenizer()
    pauses = iter([0.004, 0.0, 0.009, 0.001] * 100)

    class Slow(EchoEnv):
        def step(self, action):
            time.sleep(next(pauses))
            return super().step(action)

    def tokens(threads):
        sampling = SamplingParams(max_new_tokens=8, stop_token_ids=tuple(range(0, 256, 12)))
        policy = TransformersPolicy(model, tokenizer, sampling=sampling)
        groups = rollout_groups(policy, lambda: Slow(3), group_specs(range(3), 4), env_threads=threads)
        return [h.token_ids for g in groups for e in g.episodes for h in e.histories]

    assert tokens(3) == tokens(3) == tokens(1) == tokens(0)
