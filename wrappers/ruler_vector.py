"""``RulerReward`` on groups that live in a Gymnasium vector environment."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from numpy.typing import NDArray

from art_gym.errors import ResetNeeded
from art_gym.spaces import UnicodeText
from art_gym.wrappers.judging.judges import Judge
from art_gym.wrappers.judging.rubrics import Rubric
from art_gym.wrappers.rubric_reward import RewardMode
from art_gym.wrappers.ruler_scoring import WAITING, JudgedGroup, OnFailure, Scoring, Transition
from art_gym.wrappers.vector_infos import join_infos, split_infos

_IDLE = ""  # what environments are told whose attempts wait
_MOST_SEEDS = 2**31

_Texts = tuple[str, ...]
_Seeds = int | Sequence[int | None] | None
_Step = tuple[_Texts, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], dict[str, Any]]


class RulerVectorReward(gym.vector.VectorWrapper[_Texts, Sequence[str], _Texts, Sequence[str], NDArray[Any]]):
    """Pays every environment of a group the score that a judge gives its attempt beside the others.

    See :func:`art_gym.wrappers.ruler_reward.RulerReward` for what is paid, when, and the arguments.

    Environments 0 to ``group_size - 1`` are the first group, the next as many the second, and so on. The
    members of a group always begin from equal seeds, also when they begin anew by autoreset, so the wrapper
    draws those seeds itself: group by group, from generators that the last seed given to ``reset`` has
    seeded.

    A vector environment cannot leave one of its environments alone. So the environment of an attempt that
    waits goes on to spare episodes that nobody is shown, and is reset when its group begins anew. Wrappers
    *inside* the vector environment see the spare episodes, wrappers around this one do not. Its ``reset``
    must take a list of seeds and a ``reset_mask``, as those of Gymnasium's vector environments do.

    ``seeds`` holds the seed from which each group's present episodes began.

    Raises:
        TypeError: Where observations or actions are not text.
        ValueError: Where the environments do not make up whole groups, or their autoreset cannot be relied
            on.
    """

    def __init__(
        self,
        env: gym.vector.VectorEnv[_Texts, Sequence[str], NDArray[Any]],
        judge: Judge,
        rubric: Rubric | None = None,
        *,
        group_size: int | None = None,
        mode: RewardMode = "replace",
        weight: float = 0.5,
        on_failure: OnFailure = "nan",
    ) -> None:
        super().__init__(env)
        _require_text(env)
        self.autoreset_mode = _autoreset_mode(env)
        self.group_size = _group_size(group_size, env.num_envs)
        self.scoring = Scoring(judge, rubric, mode, weight, on_failure)
        names = [f"attempt_{number}" for number in range(self.group_size)]
        count = env.num_envs // self.group_size
        self._groups = [JudgedGroup(self.scoring, names) for _ in range(count)]
        self._rngs = np.random.default_rng().spawn(count)
        self.seeds: list[int | None] = [None] * count
        self._seen: list[str] = [""] * env.num_envs
        self._over: set[int] = set()  # the groups that ended in the last step and have not begun anew
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
            JudgingError: Where the members of a group begin differently.
            ResetNeeded: For a mask before all groups were begun.
            ValueError: For a mask or seeds that part the members of a group.
        """
        options = dict(options or {})
        groups = self._groups_in(options.pop("reset_mask", None))
        whole = len(groups) == len(self._groups)
        if not (whole or self._running):
            raise ResetNeeded("call reset() without a mask first: not every group is running")
        seeds = self._seeds(seed, groups)
        self._running = False  # until this reset is whole
        if whole:
            self._reseed(seed)
        for group in groups:
            given = seeds[group]
            self.seeds[group] = self._draw(group) if given is None else given
        starts = self._begin(groups, options)
        self._running = True
        return tuple(self._seen), join_infos([starts.get(env, ("", {}))[1] for env in range(self.num_envs)])

    def step(self, actions: Sequence[str]) -> _Step:
        """Let every attempt reply that has not ended.

        Args:
            actions: ``num_envs`` whole replies; those for attempts that wait are dropped.

        Raises:
            JudgeFailed: Where the judge has no usable answer and ``on_failure`` is ``"raise"``.
            ResetNeeded: Before ``reset``; where autoreset is disabled, also when a group is over.
            ValueError: Where the replies are not one for each environment.
        """
        self._check_running()
        replies = list(actions)
        if len(replies) != self.num_envs:
            raise ValueError(f"{self.num_envs} environments take as many replies, not {len(replies)}")
        self._running = False  # until this step is whole
        restarting = set(self._over)
        for group, env, name in self._members():
            if self._groups[group].waits(name):
                replies[env] = _IDLE
        steps = self._advance(replies)
        shown = {
            env: self._shown(group, name, replies[env], steps[env]) for group, env, name in self._members()
        }
        ended = [g for g, group in enumerate(self._groups) if group.over and g not in restarting]
        shown |= self._ends(ended)
        if self.autoreset_mode is AutoresetMode.SAME_STEP:
            for env, (text, info) in self._begin_anew(ended).items():
                last = shown[env]
                info = info | {"final_obs": last.observation, "final_info": last.info}
                shown[env] = last._replace(observation=text, info=info)
        else:
            for env, (text, info) in self._begin_anew(restarting).items():
                shown[env] = Transition(text, 0.0, False, False, info)
            self._over = set(ended)
        self._running = True
        return self._batched([shown[env] for env in range(self.num_envs)])

    def _advance(self, replies: Sequence[str]) -> list[Transition]:
        """Take the step in every environment; spare episodes that are over begin anew first."""
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

    def _shown(self, group: int, name: str, reply: str, step: Transition) -> Transition:
        attempts = self._groups[group]
        return attempts.wait(name) if attempts.waits(name) else attempts.see(name, reply, step)

    def _ends(self, groups: Sequence[int]) -> dict[int, Transition]:
        """Judge the groups that have just ended: the last step of each environment in them."""
        if not groups:
            return {}
        verdicts = self.scoring.verdicts([self._groups[group].attempts() for group in groups])
        paid = {
            group: self._groups[group].pay(verdict) for group, verdict in zip(groups, verdicts, strict=True)
        }
        return {env: paid[group][name] for group, env, name in self._members() if group in paid}

    def _begin_anew(self, groups: Collection[int]) -> dict[int, tuple[str, dict[str, Any]]]:
        for group in groups:
            self.seeds[group] = self._draw(group)
        return self._begin(groups, {}) if groups else {}

    def _begin(
        self, groups: Collection[int], options: dict[str, Any]
    ) -> dict[int, tuple[str, dict[str, Any]]]:
        """Begin groups from their seeds; the first observation and ``info`` of each environment in them."""
        size = self.group_size
        mask = np.repeat([group in groups for group in range(len(self._groups))], size)
        if not mask.all():
            options = options | {"reset_mask": mask.copy()}
        each = [seed for seed in self.seeds for _ in range(size)]
        observations, infos = self.env.reset(seed=each, options=options)  # type: ignore[arg-type]  # as in Sync
        rows = split_infos(infos, self.num_envs)
        starts = {env: (observations[env], rows[env]) for env in mask.nonzero()[0].tolist()}
        for group in groups:
            names = self._groups[group].names
            self._groups[group].begin({name: starts[group * size + n] for n, name in enumerate(names)})
        for env, (text, _) in starts.items():
            self._seen[env] = text
        self._spent &= ~mask
        self._over -= set(groups)
        return starts

    def _batched(self, steps: Sequence[Transition]) -> _Step:
        self._seen = [step.observation for step in steps]
        return (
            tuple(self._seen),
            np.array([step.reward for step in steps], np.float64),
            np.array([step.terminated for step in steps], np.bool_),
            np.array([step.truncated for step in steps], np.bool_),
            join_infos([step.info for step in steps]),
        )

    def _members(self) -> list[tuple[int, int, str]]:
        """Each environment: its group's number, its own, its name within the group."""
        names = self._groups[0].names
        return [(env // self.group_size, env, names[env % self.group_size]) for env in range(self.num_envs)]

    def _check_running(self) -> None:
        if not self._running:
            raise ResetNeeded("call reset() first: the groups are not running")
        if self._over and self.autoreset_mode is AutoresetMode.DISABLED:
            raise ResetNeeded(
                f"the groups {sorted(self._over)} are over: reset() them first, with a reset_mask of their "
                "environments"
            )

    def _groups_in(self, mask: NDArray[np.bool_] | None) -> list[int]:
        """The groups that a reset's mask asks for."""
        if mask is None:
            return list(range(len(self._groups)))
        if mask.dtype != np.bool_ or mask.shape != (self.num_envs,):
            raise ValueError(f"reset_mask must be of bool and shape ({self.num_envs},), not {mask!r}")
        blocks = mask.reshape(-1, self.group_size)
        asked = [int(block.sum()) for block in blocks]
        parted = [group for group, count in enumerate(asked) if 0 < count < self.group_size]
        if parted or not any(asked):
            raise ValueError(
                f"reset_mask must hold whole groups of {self.group_size} environments, at least one; "
                f"it holds parts of the groups {parted}"
            )
        return [group for group, count in enumerate(asked) if count]

    def _seeds(self, seed: _Seeds, groups: Sequence[int]) -> dict[int, int | None]:
        """The seed that each of these groups was given."""
        if seed is None:
            return dict.fromkeys(groups)
        if isinstance(seed, int | np.integer):
            return {group: int(seed) + group for group in groups}
        if len(seed) != self.num_envs:
            raise ValueError(f"{self.num_envs} environments take as many seeds, not {len(seed)}")
        found = {}
        for group in groups:
            block = list(seed[group * self.group_size : (group + 1) * self.group_size])
            if any(one != block[0] for one in block):
                raise ValueError(f"the members of a group begin from one seed, group {group} has {block}")
            found[group] = block[0]
        return found

    def _reseed(self, seed: _Seeds) -> None:
        """Let the seeds of later episodes follow from a seed, where one is given."""
        if seed is None:
            return
        given = [seed] if isinstance(seed, int | np.integer) else [one for one in seed if one is not None]
        if given:
            self._rngs = np.random.default_rng([int(one) for one in given]).spawn(len(self._groups))

    def _draw(self, group: int) -> int:
        return int(self._rngs[group].integers(_MOST_SEEDS))


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
    # Gymnasium 1.4: without shared memory a worker that is reset after an episode's end forgets that it was,
    # and begins yet another episode at its next step.
    if isinstance(inner, AsyncVectorEnv) and not inner.shared_memory and mode is AutoresetMode.NEXT_STEP:
        raise ValueError(
            "AsyncVectorEnv without shared memory does not keep to a reset of single environments in "
            "next-step autoreset: leave shared_memory=True, or choose another autoreset_mode"
        )
    return mode


def _group_size(size: int | None, num_envs: int) -> int:
    if size is None:
        return num_envs
    if isinstance(size, bool) or not isinstance(size, int) or size < 1 or num_envs % size:
        raise ValueError(f"group_size must part {num_envs} environments into whole groups, not {size!r}")
    return size
