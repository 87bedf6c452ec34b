"""Environments that are stepped in threads while the policy samples."""

from __future__ import annotations

import threading
import time

import pytest

from art_trainer.env_pool import EnvPool
from art_trainer.rollout import rollout, rollout_groups
from art_trainer.sampler import SamplingParams
from art_trainer.transformers_policy import TransformersPolicy
from tests.art_trainer.test_rollout import CountEnv, Script, drawn, starts
from tests.art_trainer.tiny_models import EchoEnv, byte_tokenizer, tiny_model


def test_the_episodes_are_those_without_threads():
    plain = rollout(Script(drawn), CountEnv, starts(9), max_concurrent=4)
    for threads in (1, 3):
        assert rollout(Script(drawn), CountEnv, starts(9), max_concurrent=4, env_threads=threads) == plain


def test_replies_are_sampled_while_environments_play():
    """The first step ends only after the policy was asked for the next replies."""
    asked_again = threading.Event()

    class Waiting(EchoEnv):
        def step(self, action):
            assert asked_again.wait(20), "the policy was not asked while this environment played"
            return super().step(action)

    class Watched(Script):
        collects = 0

        def collect(self):
            self.collects += 1
            if self.collects == 2:
                asked_again.set()
            return super().collect()

    episodes = rollout(Watched(drawn), lambda: Waiting(2), starts(6), env_threads=2)
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
        groups = rollout_groups(policy, lambda: Slow(3), range(3), 4, env_threads=threads)
        return [h.token_ids for g in groups for e in g.episodes for h in e.histories]

    assert tokens(3) == tokens(3) == tokens(1)


def test_an_interrupt_waits_for_the_threads_and_releases_everything():
    stepping, closed_while_stepping = set(), []

    class Slow(CountEnv):
        def step(self, reply):
            stepping.add(self)
            time.sleep(0.05)
            stepping.discard(self)
            return super().step(reply)

        def close(self):
            closed_while_stepping.append(self in stepping)
            super().close()

    policy = Script(lambda c: KeyboardInterrupt() if len(policy.asked) < 2 else "wait", chunk=2)
    with pytest.raises(KeyboardInterrupt):
        rollout(policy, Slow, starts(5), env_threads=2)
    assert (policy.released, policy.live) == (5, set())
    assert closed_while_stepping == [False] * 5


def test_an_environment_that_raises_in_a_thread_ends_its_own_episode():
    with EnvPool(CountEnv) as pool:
        say = lambda c: "crash" if c.group == 1 else drawn(c)  # noqa: E731
        groups = rollout_groups(Script(say), pool, range(3), 2, env_threads=2)
    assert [g.whole for g in groups] == [True, False, True]
    assert groups[1].episodes[0].error == "by zero"


def test_a_negative_number_of_threads_is_refused():
    with pytest.raises(ValueError, match="env_threads is at least 0, got -1"):
        rollout(Script(drawn), CountEnv, starts(1), env_threads=-1)
