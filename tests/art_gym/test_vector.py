"""Vector environments give what plain ones give, step by step, in Unicode, over several episodes."""

import contextlib
import itertools
import sys
from collections.abc import Iterator

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import (
    DelayObservation,
    FlattenObservation,
    FrameStackObservation,
    TransformAction,
    TransformObservation,
)

import art_gym
from art_gym.spaces import UnicodeText

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # spawned workers cannot import a test module

ENVS, STEPS, SEED = 3, 14, 11
IDS = [env_id for env_id in gym.registry if env_id.startswith("art/") and "Array" not in env_id]


def action(index, turn):
    return f"wörd {index}·{turn} 😀" if (index + turn) % 3 else ""


class EchoEnv(gym.Env):
    """Answers with odd texts of very different lengths; an episode takes 2 to 5 turns."""

    def __init__(self):
        self.observation_space = UnicodeText(2_000)
        self.action_space = UnicodeText(2_000)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 6))
        return self._text("begin"), {}

    def step(self, action):
        self.left -= 1
        return self._text(action), float(len(action)), self.left == 0, False, {"left": self.left}

    def _text(self, word):
        length = int(self.np_random.integers(300))
        return f"{word}\n{self.left} é\0" + "".join(self.np_random.choice(list("a日😀ж\n"), size=length))


class DictEchoEnv(EchoEnv):
    def __init__(self):
        super().__init__()
        self.observation_space = spaces.Dict(
            text=UnicodeText(2_000), pair=spaces.Tuple((UnicodeText(2_000), spaces.Discrete(10)))
        )

    def _text(self, word):
        text = super()._text(word)
        return {"text": text, "pair": (text[::-1], np.int64(self.left))}


def batch(singles):
    """Plain observations as a vector environment would give them."""
    if isinstance(singles[0], str):
        return tuple(singles)
    if isinstance(singles[0], dict):
        return {key: batch([single[key] for single in singles]) for key in singles[0]}
    if isinstance(singles[0], tuple):
        return tuple(batch(parts) for parts in zip(*singles, strict=True))
    return list(singles)


def plain(observations):
    """Vector observations with arrays as lists, to be compared."""
    if isinstance(observations, dict):
        return {key: plain(value) for key, value in observations.items()}
    if isinstance(observations, np.ndarray):
        return observations.tolist()
    if isinstance(observations, tuple) and not all(isinstance(part, str) for part in observations):
        return tuple(plain(part) for part in observations)
    return observations


def plain_rollout(make, mode, act=action) -> Iterator:
    """What single environments give, with the autoreset that a mode asks for."""
    envs = [make() for _ in range(ENVS)]
    yield batch([env.reset(seed=SEED + index)[0] for index, env in enumerate(envs)])
    over = [False] * ENVS
    for turn in range(STEPS):
        seen = []
        for index, env in enumerate(envs):
            if over[index] and mode is AutoresetMode.NEXT_STEP:
                seen.append(env.reset()[0])
                over[index] = False
                continue
            observation, _, terminated, truncated, _ = env.step(act(index, turn))
            over[index] = terminated or truncated
            if over[index] and mode is not AutoresetMode.NEXT_STEP:
                observation = env.reset()[0]
            seen.append(observation)
        yield batch(seen)


def vector_rollout(vector, mode, act=action) -> Iterator:
    observations, _ = vector.reset(seed=SEED)
    yield observations
    for turn in range(STEPS):
        replies = tuple(act(index, turn) for index in range(ENVS))
        observations, _, terminated, truncated, _ = vector.step(replies)
        over = terminated | truncated
        if mode is AutoresetMode.DISABLED and over.any():
            observations, _ = vector.reset(options={"reset_mask": over})
        yield observations


def asynchronous(**options):
    return lambda makes, **more: AsyncVectorEnv(makes, **options, **more)


@pytest.mark.parametrize("mode", list(AutoresetMode), ids=lambda mode: mode.name)
@pytest.mark.parametrize(
    "build",
    [
        SyncVectorEnv,
        asynchronous(shared_memory=True),
        asynchronous(shared_memory=False),
        asynchronous(shared_memory=True, context="spawn"),
    ],
    ids=("sync", "shared", "piped", "spawned"),
)
def test_vector_environments_equal_plain_ones(build, mode):
    vector = build([DictEchoEnv] * ENVS, autoreset_mode=mode)
    with contextlib.closing(vector):
        expected, kept = list(plain_rollout(DictEchoEnv, mode)), []
        for seen in vector_rollout(vector, mode):
            assert plain(seen) == expected[len(kept)]
            assert seen in vector.observation_space
            kept.append(seen)
        assert [plain(seen) for seen in kept] == expected, "later steps must not change what was handed out"
        assert len({repr(seen) for seen in expected}) > 1


def test_async_without_copies_shows_the_latest_step():
    with contextlib.closing(AsyncVectorEnv([EchoEnv] * 2, copy=False)) as vector:
        live, _ = vector.reset(seed=0)
        before = list(live)
        again, *_ = vector.step(("é", "日"))
        assert again is live
        assert list(live) != before
        assert [text.split("\n")[0] for text in live] == ["é", "日"]


def test_wrappers_that_change_texts():
    def roll(env):
        seen = [env.reset(seed=SEED)[0], *(env.step(action(1, turn))[0] for turn in range(2))]
        assert all(text in env.observation_space for text in seen)
        return seen

    texts = roll(EchoEnv())
    assert roll(FlattenObservation(EchoEnv())) == texts
    for padding, first in (("reset", texts[0]), ("zero", ""), ("·", "·")):
        stacked = roll(FrameStackObservation(EchoEnv(), 2, padding_type=padding))
        assert stacked == [(first, texts[0]), *itertools.pairwise(texts)]
    assert roll(DelayObservation(EchoEnv(), 1)) == ["", *texts[:-1]]
    short = TransformObservation(EchoEnv(), lambda text: text[:3], UnicodeText(3))
    assert roll(short) == [text[:3] for text in texts]
    loud = TransformAction(EchoEnv(), str.upper, UnicodeText(2_000))
    assert roll(loud)[1].split("\n")[0] == texts[1].split("\n")[0].upper()


class NumberEnv(art_gym.TextEnv):
    @art_gym.tool
    def pick(self, number: int | None, weight: float | None = None) -> str:
        """Pick a number.

        Args:
            number: The number.
            weight: Its weight.
        """
        return f"{number}, {weight}"


@pytest.mark.parametrize("vector", [SyncVectorEnv, AsyncVectorEnv])
@pytest.mark.parametrize("other", [(None, None), (10**30, 0.5)])
def test_numbers_of_a_call_stand_beside_none_and_beside_larger_ones(vector, other):
    env = vector([NumberEnv] * 2)
    env.reset(seed=0)
    info = env.step(("pick(3, weight=0.5)", "pick({}, weight={})".format(*other)))[4]
    env.close()
    picked = info["call"]["arguments"]
    assert picked["number"].tolist() == [3, other[0]]
    assert picked["weight"].tolist() == [0.5, other[1]]


@pytest.mark.parametrize("mode", ["sync", "async"])
@pytest.mark.parametrize("env_id", IDS)
def test_registered_environments_equal_plain(env_id, mode):
    replies = {}

    def act(index, turn):
        if (index, turn) not in replies:  # the plain rollout asks first
            act_randomly = env.unwrapped.baselines["random"](env.unwrapped, rng)
            replies[index, turn] = act_randomly("") if turn % 4 else "no call,日本語"
        return replies[index, turn]

    env = gym.make(env_id)
    env.reset(seed=SEED)
    rng = np.random.default_rng(SEED)
    expected = list(plain_rollout(lambda: gym.make(env_id), AutoresetMode.NEXT_STEP, act))
    with contextlib.closing(gym.make_vec(env_id, num_envs=ENVS, vectorization_mode=mode)) as vector:
        assert list(vector_rollout(vector, AutoresetMode.NEXT_STEP, act)) == expected
