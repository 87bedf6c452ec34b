"""Vector environments give what plain ones give, step by step, in Unicode, over several episodes."""

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
    Autoreset,
    DelayObservation,
    FlattenObservation,
    FrameStackObservation,
    RecordEpisodeStatistics,
    TransformAction,
    TransformObservation,
)

import art_gym  # noqa: F401 (registers the environments)
from art_gym.spaces import UnicodeText

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # spawned workers cannot import a test module

ENVS, STEPS, SEED = 3, 14, 11
IDS = [env_id for env_id in gym.registry if env_id.startswith("art/") and "Array" not in env_id]


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


def action(index, turn):
    return f"wörd {index}·{turn} 😀" if (index + turn) % 3 else ""


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


def assert_equal_rollouts(make, build, mode):
    vector = build([make] * ENVS, autoreset_mode=mode)
    try:
        kept, copies = [], []
        for expected, seen in zip(plain_rollout(make, mode), vector_rollout(vector, mode), strict=True):
            assert plain(seen) == expected
            assert seen in vector.observation_space
            kept.append(seen)
            copies.append(expected)
        assert [plain(seen) for seen in kept] == copies, "later steps must not change what was handed out"
        assert kept[0] != kept[1]
    finally:
        vector.close()


MODES = [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("make", [EchoEnv, DictEchoEnv])
def test_sync_equals_plain(make, mode):
    assert_equal_rollouts(make, SyncVectorEnv, mode)


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
@pytest.mark.parametrize("shared_memory", [True, False])
def test_async_equals_plain(shared_memory, mode):
    assert_equal_rollouts(
        DictEchoEnv, lambda fns, **kw: AsyncVectorEnv(fns, shared_memory=shared_memory, **kw), mode
    )


@pytest.mark.parametrize("shared_memory", [True, False])
def test_spawned_workers_equal_plain(shared_memory):
    assert_equal_rollouts(
        EchoEnv,
        lambda fns, **kw: AsyncVectorEnv(fns, shared_memory=shared_memory, context="spawn", **kw),
        AutoresetMode.NEXT_STEP,
    )


def test_async_without_copies_shows_the_latest_step():
    vector = AsyncVectorEnv([EchoEnv] * 2, copy=False)
    try:
        live, _ = vector.reset(seed=0)
        before = list(live)
        again, *_ = vector.step(("é", "日"))
        assert again is live
        assert list(live) != before
        assert [text.split("\n")[0] for text in live] == ["é", "日"]
    finally:
        vector.close()


def roll(env, turns=4):
    seen = [env.reset(seed=SEED)[0]]
    for turn in range(turns):
        observation, _, terminated, truncated, _ = env.step(action(1, turn))
        seen.append(observation)
        if terminated or truncated:
            break
    return seen


def test_frames_stack():
    texts = roll(EchoEnv())
    for padding, first in (("reset", texts[0]), ("zero", ""), ("·", "·")):
        env = FrameStackObservation(EchoEnv(), 2, padding_type=padding)
        stacked = roll(env)
        assert stacked == [(first, texts[0]), *itertools.pairwise(texts)]
        assert all(seen in env.observation_space for seen in stacked)


@pytest.mark.parametrize("wrap", [RecordEpisodeStatistics, Autoreset, FlattenObservation])
def test_wrappers_that_pass_texts_on(wrap):
    env = wrap(EchoEnv())
    assert roll(env) == roll(EchoEnv())
    assert env.observation_space == UnicodeText(2_000)


def test_wrappers_that_change_texts():
    texts = roll(EchoEnv())
    assert roll(DelayObservation(EchoEnv(), 1)) == ["", *texts[:-1]]
    short = TransformObservation(EchoEnv(), lambda text: text[:3], UnicodeText(3))
    assert roll(short) == [text[:3] for text in texts]
    assert all(text in short.observation_space for text in roll(short))
    loud = TransformAction(EchoEnv(), str.upper, UnicodeText(2_000))
    assert [text.split("\n")[0] for text in roll(loud)[1:]] == [
        text.split("\n")[0].upper() for text in texts[1:]
    ]


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
    vector = gym.make_vec(env_id, num_envs=ENVS, vectorization_mode=mode)
    try:
        expected = plain_rollout(lambda: gym.make(env_id), AutoresetMode.NEXT_STEP, act)
        seen = vector_rollout(vector, AutoresetMode.NEXT_STEP, act)
        for one, other in zip(expected, seen, strict=True):
            assert other == one
    finally:
        vector.close()
