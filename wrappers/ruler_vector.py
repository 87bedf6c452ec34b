"""``RulerReward`` on groups that live in a Gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from numpy.typing import NDArray

from art_gym.errors import ResetNeededError
from art_gym.spaces import UnicodeText
from art_gym.wrappers.ruler_scoring import WAITING, GroupScorer, GroupTracker, Transition

_IDLE = ""  # the action of environments whose attempts wait
_MOST_SEEDS = 2**31

_Texts = tuple[str, ...]
_Seeds = int | Sequence[int | None] | None
_Start = tuple[str, dict[str, Any]]
_Step = tuple[_Texts, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class RulerVectorReward(gym.vector.VectorWrapper[_Texts, Sequence[str], _Texts, Sequence[str], NDArray[Any]]):
    """Pays every environment of a group the score that a judge gives its attempt against the others.

    See :func:`art_gym.wrappers.ruler_reward.RulerReward` for the rewards and their time.

    Environments 0 to ``group_size - 1`` are the first group, the next as many the second, and so on. The
    members of a group always begin from equal seeds, also when they begin again by autoreset, so the wrapper
    draws those seeds itself: group by group, from generators that the last seed given to ``reset`` has
    seeded.

    A vector environment cannot leave one of its environments alone. So the environment of an attempt that
    waits plays further episodes that nobody sees, and is reset when its group begins again. Wrappers
    *inside* the vector environment see those episodes, wrappers around this one do not. Its ``reset``
    must take a list of seeds and a ``reset_mask``, as those of Gymnasium's vector environments do.

    ``seeds`` holds the seed from which each group's present episodes began.

    Raises:
        TypeError: If observations or actions are not text.
        ValueError: If the environments do not make up whole groups, or their autoreset cannot be relied
            on.
    """

    def __init__(
        self,
        env: gym.vector.VectorEnv[_Texts, Sequence[str], NDArray[Any]],
        scoring: GroupScorer,
        group_size: int | None = None,
    ) -> None:
        super().__init__(env)
        _require_text(env)
        self.autoreset_mode = _autoreset_mode(env)
        size = env.num_envs if group_size is None else group_size
        if isinstance(size, bool) or not isinstance(size, int) or size < 1 or env.num_envs % size:
            raise ValueError(
                f"group_size must part {env.num_envs} environments into whole groups, not {size!r}"
            )
        self.group_size, self.scoring = size, scoring
        names = [f"attempt_{number}" for number in range(size)]
        count = env.num_envs // size
        self._groups = [GroupTracker(scoring, names) for _ in range(count)]
        # Of each environment: its group, its own number, its name within the group.
        self._members = [(at // size, at, names[at % size]) for at in range(env.num_envs)]
        self._rngs = np.random.default_rng().spawn(count)
        self.seeds: list[int | None] = [None] * count
        self._texts = [""] * env.num_envs
        self._over: set[int] = set()  # the groups that ended in the last step and have not begun again
        self._spent = np.zeros(env.num_envs, np.bool_)  # environments that must be reset before a step
        self._running = False

    def reset(
        self, *, seed: _Seeds = None, options: dict[str, Any] | None = None
    ) -> tuple[_Texts, dict[str, Any]]:
        """Begin groups.

        Args:
            seed: A number, from which the first group begins, the second from the next number, and so on; or
                a seed (or ``None``) for each environment, equal within a group. Seeds that are not given are
                drawn.
            options: ``{"reset_mask": array}``, of ``bool`` and shape (num_envs,), begins only the groups in
                it. All else goes to the environments.

        Returns:
            The observations of all, and ``info`` about those that began.

        Raises:
            JudgingError: If the members of a group begin differently.
            ResetNeededError: For a mask before all groups were begun.
            ValueError: For a mask or seeds that part the members of a group.
        """
        options = dict(options or {})
        groups = self._groups_in(options.pop("reset_mask", None))
        whole = len(groups) == len(self._groups)
        if not (whole or self._running):
            raise ResetNeededError("call reset() without a mask first: not every group is running")
        seeds = self._group_seeds(seed)
        self._running = False  # until this reset is whole
        given = [one for one in np.atleast_1d(np.array(seed, object)).tolist() if one is not None]
        if whole and given:
            self._rngs = np.random.default_rng(list(map(int, given))).spawn(len(self._groups))
        starts = self._begin(groups, options, seeds)
        self._running = True
        return tuple(self._texts), join_infos([starts.get(env, ("", {}))[1] for env in range(self.num_envs)])

    def step(self, actions: Sequence[str]) -> _Step:
        """Step every attempt that has not ended.

        Args:
            actions: ``num_envs`` whole replies; those for attempts that wait are dropped.

        Raises:
            JudgeFailedError: If the judge has no usable answer and ``on_failure`` is ``"raise"``.
            ResetNeededError: Before ``reset``; if autoreset is disabled, also when a group is over.
            ValueError: If the replies are not one for each environment.
        """
        if not self._running:
            raise ResetNeededError("call reset() first: the groups are not running")
        if self._over and self.autoreset_mode is AutoresetMode.DISABLED:
            raise ResetNeededError(
                f"call reset() first, with a reset_mask of the groups {sorted(self._over)}"
            )
        if len(actions) != self.num_envs:
            raise ValueError(f"{self.num_envs} environments take as many replies, not {len(actions)}")
        self._running = False  # until this step is whole
        restarting = set(self._over)
        waiting = {env for group, env, name in self._members if self._groups[group].waits(name)}
        replies = [_IDLE if env in waiting else reply for env, reply in enumerate(actions)]
        steps = self._advance(replies)
        shown: dict[int, Transition] = {}
        for group, env, name in self._members:
            tracker = self._groups[group]
            shown[env] = (
                tracker.wait(name) if env in waiting else tracker.record(name, replies[env], steps[env])
            )
        ended = [g for g, group in enumerate(self._groups) if group.over and g not in restarting]
        shown |= self._pay(ended)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            for env, (text, info) in self._begin(ended, {}).items():
                final = {"final_obs": shown[env].observation, "final_info": shown[env].info}
                shown[env] = shown[env]._replace(observation=text, info=info | final)
        else:
            for env, (text, info) in self._begin(restarting, {}).items():
                shown[env] = Transition(text, 0.0, False, False, info)
            self._over = set(ended)
        self._running = True
        return self._batched([shown[env] for env in range(self.num_envs)])

    def _advance(self, replies: Sequence[str]) -> list[Transition]:
        """Take the step in every environment; spare episodes that are over are reset first."""
        if self._spent.any():
            self.env.reset(options={"reset_mask": self._spent.copy()})
        observations, rewards, terminations, truncations, infos = self.env.step(tuple(replies))
        ended = np.logical_or(terminations, truncations)
        if self.autoreset_mode is AutoresetMode.DISABLED:
            self._spent = ended
        steps = []
        for env, info in enumerate(split_infos(infos, self.num_envs)):
            text = observations[env]
            if ended[env] and self.autoreset_mode is AutoresetMode.SAME_STEP:
                text, info = info["final_obs"], info["final_info"]
            flags = bool(terminations[env]), bool(truncations[env])
            steps.append(Transition(text, float(rewards[env]), *flags, info))
        return steps

    def _pay(self, groups: Sequence[int]) -> dict[int, Transition]:
        """Judge the groups that have just ended: the last step of each environment in them."""
        if not groups:
            return {}
        verdicts = self.scoring.verdicts([self._groups[group].attempts() for group in groups])
        paid = {g: self._groups[g].pay(verdict) for g, verdict in zip(groups, verdicts, strict=True)}
        return {env: paid[group][name] for group, env, name in self._members if group in paid}

    def _begin(
        self, groups: Collection[int], options: dict[str, Any], seeds: Sequence[int | None] | None = None
    ) -> dict[int, _Start]:
        """Begin groups, from drawn seeds unless given: the first observation and ``info`` of each member."""
        if not groups:
            return {}
        for group in groups:
            given = None if seeds is None else seeds[group]
            self.seeds[group] = int(self._rngs[group].integers(_MOST_SEEDS)) if given is None else given
        mask = np.repeat([group in groups for group in range(len(self._groups))], self.group_size)
        if not mask.all():
            options = options | {"reset_mask": mask.copy()}
        each = [seed for seed in self.seeds for _ in range(self.group_size)]
        observations, infos = self.env.reset(seed=each, options=options)  # type: ignore[arg-type]  # as in Sync
        rows = split_infos(infos, self.num_envs)
        starts = {env: (observations[env], rows[env]) for env in mask.nonzero()[0].tolist()}
        for group in groups:
            members = {name: starts[env] for g, env, name in self._members if g == group}
            self._groups[group].begin(members)
        for env, (text, _) in starts.items():
            self._texts[env] = text
        self._spent &= ~mask
        self._over -= set(groups)
        return starts

    def _batched(self, steps: Sequence[Transition]) -> _Step:
        texts, rewards, terminations, truncations, infos = zip(*steps, strict=True)
        self._texts = list(texts)
        flags = np.array(terminations, np.bool_), np.array(truncations, np.bool_)
        return texts, np.array(rewards, np.float64), *flags, join_infos(infos)

    def _groups_in(self, mask: NDArray[np.bool_] | None) -> list[int]:
        """The groups that a reset's mask asks for."""
        if mask is None:
            return list(range(len(self._groups)))
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise ValueError(f"reset_mask must be of bool and shape ({self.num_envs},), not {mask!r}")
        counts = mask.reshape(-1, self.group_size).sum(axis=1)
        if not mask.any() or not set(counts.tolist()) <= {0, self.group_size}:
            raise ValueError(
                f"reset_mask must hold whole groups of {self.group_size} environments, at least one, not "
                f"{mask!r}"
            )
        return [int(group) for group in counts.nonzero()[0]]

    def _group_seeds(self, seed: _Seeds) -> list[int | None]:
        """The seed that each group was given."""
        size, count = self.group_size, len(self._groups)
        if seed is None or isinstance(seed, int | np.integer):
            return [None if seed is None else int(seed) + group for group in range(count)]
        if len(seed) != self.num_envs:
            raise ValueError(f"{self.num_envs} environments take as many seeds, not {len(seed)}")
        blocks = [list(seed[group * size : (group + 1) * size]) for group in range(count)]
        for group, block in enumerate(blocks):
            if any(one != block[0] for one in block):
                raise ValueError(f"the members of a group begin from one seed, group {group} has {block}")
        return [block[0] for block in blocks]


def _require_text(env: gym.vector.VectorEnv[Any, Any, Any]) -> None:
    for kind, space, text in (
        ("observations", env.single_observation_space, WAITING),
        ("actions", env.single_action_space, _IDLE),
    ):
        if not isinstance(space, UnicodeText | gym.spaces.Text) or text not in space:
            raise TypeError(f"a judge reads texts: the {kind} must be any text (UnicodeText), not {space}")


def _autoreset_mode(env: gym.vector.VectorEnv[Any, Any, Any]) -> AutoresetMode:
    if "autoreset_mode" not in env.metadata:
        raise ValueError(f'{env} does not say how it resets: set metadata["autoreset_mode"]')
    mode = AutoresetMode(env.metadata["autoreset_mode"])
    inner = env.unwrapped
    # Gymnasium 1.4: without shared memory a worker that is reset after an episode's end does not note it, and
    # begins yet another episode at its next step.
    if isinstance(inner, AsyncVectorEnv) and not inner.shared_memory and mode is AutoresetMode.NEXT_STEP:
        raise ValueError(
            "AsyncVectorEnv without shared memory does not keep to a reset of single environments in "
            "next-step autoreset: leave shared_memory=True, or choose another autoreset_mode"
        )
    return mode


# --- the `info` of a vector environment, and of each of its environments ---
#
# Gymnasium keeps the two apart with masks: beside `infos[key]`, an array, `infos["_" + key]` says whose
# values are meant. Its own way there (`VectorEnv._add_info`) takes the first value's type for all, and fails
# if one environment has a dictionary and another has none; this one does not.

# What Gymnasium makes of a plain bool, int or float.
_PLAIN = (np.bool_, np.int64, np.float64)
_NUMBERS = (bool, int, float, np.number)


def split_infos(infos: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Each environment's own ``info``, of the ``info`` of ``count`` environments."""
    return [_row(infos, index) for index in range(count)]


def join_infos(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The ``info`` of a vector environment, from that of each of its environments.

    Equal to Gymnasium's for values of one type; numbers of several types become ``float64``, any other
    mixture an array of objects.
    """
    infos: dict[str, Any] = {}
    for key in dict.fromkeys(key for row in rows for key in row):
        mask = np.array([key in row for row in rows], np.bool_)
        values = [row[key] for row in rows if key in row]
        if all(isinstance(value, dict) for value in values) and key != "final_obs":
            infos[key] = join_infos([row.get(key, {}) for row in rows])
        else:
            infos[key] = _column(values, mask)
        infos[f"_{key}"] = mask
    return infos


def _row(infos: Mapping[str, Any], index: int) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        is_mask = key.startswith("_") and key[1:] in infos
        if is_mask or (mask is not None and not mask[index]):
            continue
        if isinstance(values, Mapping):
            row[key] = _row(values, index)
        else:
            value = values[index]
            row[key] = value.item() if isinstance(value, _PLAIN) else value
    return row


def _column(values: Sequence[Any], mask: np.ndarray) -> np.ndarray:
    """An array with the values where the mask is, and nothing (0 or ``None``) elsewhere."""
    first, types = values[0], {type(value) for value in values}
    if len(types) == 1 and isinstance(first, _NUMBERS):
        column = np.zeros(len(mask), type(first))
    elif all(isinstance(value, _NUMBERS) and not isinstance(value, bool) for value in values):
        column = np.zeros(len(mask), np.float64)
    elif all(isinstance(value, np.ndarray) and value.shape == first.shape for value in values):
        column = np.zeros((len(mask), *first.shape), np.result_type(*values))
    else:
        column = np.full(len(mask), None, object)
    for index, value in zip(mask.nonzero()[0], values, strict=True):
        column[index] = value
    return column
