"""Environment pools, the choice of a split, and state digests."""

from __future__ import annotations

import functools
import hashlib
import io
import pickle
import types
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import gymnasium as gym

from art_gym import catalog, lookup
from art_gym.closing import CloseOnExit
from art_gym.errors import EnvArgumentError, EnvLookupError, described, user_line
from art_gym.lookup import FoundEnv
from art_gym.wrappers import TextAdapter
from art_gym.wrappers.text_adapter import reader_of, writer_of
from art_trainer.errors import ConfigError

TextEnvironment = gym.Env[str, str]
MakeEnv = Callable[[], TextEnvironment]
EnvSource = str | MakeEnv | gym.Env[str, str]
"""An environment's name (its id or file), a callable that makes one, or one made by ``gym.make``."""


class EnvPool(CloseOnExit):
    """A pool of environments that are made once and reused.

    Args:
        make_env: Makes one environment with text observations and text actions; or its id, or one made by
            ``gym.make``.
    """

    def __init__(self, make_env: EnvSource) -> None:
        self._make_env = maker(make_env)
        self._free: list[TextEnvironment] = []

    def acquire(self) -> TextEnvironment:
        """Take a free environment, or make one."""
        return self._free.pop() if self._free else self._make_env()

    def release(self, env: TextEnvironment) -> None:
        """Return an environment to the pool."""
        self._free.append(env)

    def close(self) -> None:
        """Close the free environments."""
        while self._free:
            self._free.pop().close()


# Choosing a split.

TRAIN = ("train",)
"""The usual names of a split to train on."""
EVALUATION = ("validation", "test")
"""The usual names of a split to evaluate on during training."""


def choose_split(env: TextEnvironment, wanted: str | None, usual: Sequence[str]) -> str | None:
    """Return the split to play, ``None`` if the environment has no splits.

    Raises:
        ConfigError: If the wanted split does not exist.
    """
    splits = tuple(getattr(getattr(env.unwrapped, "tasks", None), "splits", ()))
    if wanted is None:
        return next((name for name in usual if name in splits), None)
    if wanted not in splits:
        known = f"it has {', '.join(map(repr, splits))}" if splits else "it has none: set null"
        raise ConfigError(f"{type(env.unwrapped).__name__} has no split {wanted!r}; {known}")
    return wanted


def baseline_names(make_env: MakeEnv) -> tuple[str, ...]:
    """The environment's baselines; none for an environment that is not ours."""
    with closing(make_env()) as env:
        return tuple(getattr(env.unwrapped, "baselines", ()))


def player_names(make_env: MakeEnv) -> tuple[str, ...]:
    """The environment's scripted players: baselines, and teachers that know the answer."""
    with closing(make_env()) as env:
        return (*getattr(env.unwrapped, "baselines", ()), *getattr(env.unwrapped, "teachers", ()))


def train_split(make_env: MakeEnv, wanted: str | None) -> str | None:
    """The split to train on; a ConfigError if it does not exist."""
    with closing(make_env()) as env:
        return choose_split(env, wanted, TRAIN)


# When are two states of an environment the same? For estimators that compare turns of equal states.
#
# GiGPO (arXiv:2505.10978) calls a state that several turns met an anchor state. It means the state, not the
# time: coming back to a page three turns later is the same state again. Two things can stand for the state:
#
# * What the environment shows, as in the paper. Any environment can be compared so, but two states that look
#   alike ("No results.") fall together, and a line such as "2 turns left" keeps equal ones apart.
# * What the environment is: its snapshot, with hidden memory and random generator. Equal digests then mean
#   that equal replies have equal results. Only the clock is left out: the count of turns and the other
#   bookkeeping of ``TextEnv`` below. A count that an environment keeps itself (moves played) stays in
#   and keeps its states apart, which costs comparisons and is never wrong.
#
# Reading a snapshot costs about 0.1 ms a turn for the environments here. Where a part of the state has no
# order of its own (a set), equal states may get different digests: a comparison lost, never a wrong one.

CLOCK = ("turn", "_invalid_actions", "_latest", "_running")
"""Attributes of ``TextEnv`` that say when and how a state was reached, not what it is."""


def state_digest(env: gym.Env[Any, Any]) -> str | None:
    """Return a digest that is the same for equal states of an environment, whenever they are met.

    Args:
        env: An environment, wrapped or not. Its state is that of ``env.unwrapped.snapshot()``.

    Returns:
        Hexadecimal digits, or ``None`` if the environment has no snapshots of attributes.
    """
    take = getattr(env.unwrapped, "snapshot", None)
    snapshot = take() if callable(take) else None
    state = getattr(snapshot, "state", None)
    if not isinstance(state, bytes):
        return None
    attributes = pickle.loads(state)
    if not isinstance(attributes, dict):
        return None
    kept = {name: attributes[name] for name in sorted(attributes) if name not in CLOCK}
    return hashlib.blake2b(_plain_pickle(kept), digest_size=16).hexdigest()


def _plain_pickle(value: object) -> bytes:
    """Pickle without references, so that equal values give equal bytes."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, pickle.HIGHEST_PROTOCOL)
    pickler.fast = True
    try:
        pickler.dump(value)
    except (ValueError, RecursionError):  # an object that holds itself cannot be written without references
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    return buffer.getvalue()


def find_env(name: str, arguments: Mapping[str, Any] = types.MappingProxyType({})) -> FoundEnv:
    """Find an environment or game, see :func:`art_gym.lookup.find_env`; check arguments without making it.

    Raises:
        ConfigError: If it is not found, or does not take the arguments.
    """
    try:
        found = lookup.find_env(name)
        if arguments:
            catalog.check_env_arguments(found.id, arguments)
    except (EnvLookupError, EnvArgumentError) as error:
        raise ConfigError(str(error)) from error
    except ModuleNotFoundError as error:
        raise ConfigError(f"environment {name!r} needs a module that is not installed: {error}") from error
    return found


_EXPECTED = (TypeError, ValueError, LookupError, OSError, AttributeError, AssertionError)
"""What wrong arguments may raise; the last two are Gymnasium's, of an environment without spaces."""


def env_maker(name: str, env_args: Mapping[str, Any]) -> MakeEnv:
    """Return a function that makes the environment; one is made at once, to find wrong arguments early.

    Args:
        name: As :func:`art_gym.lookup.find_env` takes it.
        env_args: Its arguments.

    Raises:
        ConfigError: If there is no such environment, or it does not accept these arguments.
    """
    env_id = find_env(name, env_args).id
    make: MakeEnv = functools.partial(gym.make, env_id, **env_args)
    try:
        env = make()
        _ = env.observation_space, env.action_space  # Gymnasium's checker may be switched off
        env.close()
    except gym.error.Error as error:
        if env_id in catalog.games():
            raise ConfigError(f"{env_id} is a game with several seats: use art-trainer self-play") from error
        raise ConfigError(f"no environment {env_id!r}: {error} ({catalog.own_file(env_id)})") from error
    except ModuleNotFoundError as error:
        raise ConfigError(f"environment {env_id!r} needs a module that is not installed: {error}") from error
    except Exception as error:  # the author's code may raise anything
        if user_line(error) is None and not isinstance(error, _EXPECTED):
            raise
        given = ", ".join(f"{name}={value!r}" for name, value in env_args.items()) or "no arguments"
        seen = error if user_line(error) is None else described(error)
        raise ConfigError(f"{env_id} cannot be made with {given}: {seen}") from error
    return text_maker(make, env, env_id)


def maker(env: EnvSource) -> MakeEnv:
    """Return a function that makes environments like this one.

    Raises:
        ConfigError: If there is none of that name, or its observations or actions are not text.
        TypeError: If no second one can be made like it.
    """
    if isinstance(env, gym.Env):
        spec = env.spec
        if spec is None or any(wrapper.kwargs is None for wrapper in spec.additional_wrappers):
            raise TypeError(
                f"this {type(env).__name__} was not made by gym.make, or is in a wrapper that is no "
                "RecordConstructorArgs, so no second one can be made like it: pass a callable that makes one"
            )
        # A text environment's own limit is in its spec too: another TimeLimit would end nothing earlier.
        own = getattr(env.unwrapped, "max_turns", None) == spec.max_episode_steps
        return text_maker(lambda: gym.make(spec, max_episode_steps=-1 if own else None), env, spec.id)
    if not isinstance(env, str) and not callable(env):
        raise TypeError(f"env is an id, an environment, or a callable that makes one, not {env!r:.80}")
    return env_maker(env, {}) if isinstance(env, str) else env


def text_maker(make: MakeEnv, env: gym.Env[Any, Any], env_id: str) -> MakeEnv:
    """Return ``make``, or if the texts lie in ``Dict`` spaces one that takes them out.

    Args:
        make: Makes the environment.
        env: One that it made.
        env_id: Its name, for the error.

    Raises:
        ConfigError: If its observations or actions are not text.
    """
    observed, acted = env.observation_space, env.action_space
    spaces = (("observations", observed, reader_of(observed)), ("actions", acted, writer_of(acted)))
    for what, space, found in spaces:
        # A space of another library's own may hold texts all the same.
        if found is None and type(space).__module__.startswith("gymnasium."):
            raise ConfigError(
                f"{env_id} is not a text environment: its {what} are {space}. Register it in a file of "
                "yours as art_gym.wrappers.TextAdapter(env, observe=..., actions=[...]) and train "
                "--env your_file.py; docs/guides/other-environments.md shows how"
            )
    packed = isinstance(observed, gym.spaces.Dict) or isinstance(acted, gym.spaces.Dict)
    return functools.partial(_make_unpacked, make) if packed else make


def _make_unpacked(make_env: MakeEnv) -> gym.Env[str, str]:
    env = make_env()
    adapter = TextAdapter(env)
    adapter.spec = env.spec  # its name, for reports
    return adapter
