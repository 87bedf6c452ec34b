import random
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec

from art_gym import ResetNeededError, Task, TextEnv, UnicodeText, check_text_env
from art_gym.wrappers.adapters.common import import_optional
from art_gym.wrappers.isolated_random import IsolatedRandom
from art_gym.wrappers.text_adapter import EpisodeProgress, TextAdapter, is_text, reader_of, writer_of
from art_trainer.errors import ConfigError
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.envs import env_maker
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.types import EpisodeSpec
from tests.art_gym.toys import DOCSTRING, EchoEnv

MOVES = ("up", "right", "down", "left")


def cliff(**arguments: Any) -> TextAdapter:
    return TextAdapter(gym.make("CliffWalking-v1"), observe="field {}".format, actions=MOVES, **arguments)


class Corridor(gym.Env[int, int]):
    """Five fields; the last one wins. What is possible is in a mask; two moves of three are cut by time."""

    observation_space = spaces.Discrete(5)
    action_space = spaces.Discrete(2, start=3)
    limit = 6

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.steps = (options or {}).get("place", 0), 0
        self.options, self.seen_seed = options, seed
        return self.place, self._info()

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        assert action in self.action_space
        self.place += 1 if action == 4 else -1
        self.steps += 1
        return self.place, 0.5, self.place == 4, self.steps >= self.limit, self._info()

    def _info(self) -> dict[str, Any]:
        return {"action_mask": np.array([self.place > 0, True], np.int8)}


class Reporting(Corridor):
    def _info(self) -> dict[str, Any]:
        return {"is_success": self.place == 4}


def corridor(env: Corridor | None = None, **arguments: Any) -> TextAdapter:
    return TextAdapter(env or Corridor(), observe=str, actions=("back", "on"), **arguments)


class DocumentedAdapter(TextAdapter):
    __doc__ = DOCSTRING


class Echo(EchoEnv):
    """Repeats its action, in whatever its spaces are."""

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any]) -> None:
        super().__init__("hello")
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self._as_observation(super().reset(seed=seed)[0]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        text = action["reply"] if isinstance(action, Mapping) else action
        if text == "crash":
            raise LookupError("no such word")
        return self._as_observation(text), *super().step(text)[1:]

    def _as_observation(self, text: str) -> Any:
        if isinstance(self.observation_space, spaces.Dict):
            parts = {"picture": np.zeros(2, np.float32), "text": text, "action_mask": np.array([0, 1])}
            return {name: parts[name] for name in self.observation_space}
        return text


IN_DICT = spaces.Dict({"picture": spaces.Box(0, 1, (2,)), "text": spaces.Text(50)})
REPLY_IN_DICT = spaces.Dict({"reply": UnicodeText()})


class GlobalDice(EchoEnv):
    """Seeds and draws from the global random state, as some libraries do."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        random.seed(seed)
        return str(random.random()), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return f"{random.random()} {np.random.random()}", 0.0, False, False, {}  # noqa: NPY002


@pytest.mark.parametrize("env_id", ["CliffWalking-v1", "FrozenLake-v1", "CartPole-v1"])
def test_a_seed_gives_the_episode_that_it_gives_outside(env_id: str) -> None:
    outside, inside = gym.make(env_id), TextAdapter(gym.make(env_id), observe=repr)
    rng = np.random.default_rng(0)
    for seed in (0, 1, 7):
        seen, _ = outside.reset(seed=seed)
        text, _ = inside.reset(seed=seed)
        assert text.endswith(repr(seen))
        ended = False
        for _ in range(30):
            action = int(rng.integers(outside.action_space.n))  # type: ignore[attr-defined]
            seen, reward, terminated, truncated, _ = outside.step(action)
            text, paid, *flags, info = inside.step(str(action))
            assert text.startswith(repr(seen))
            assert (paid, flags, info["score_terms"]) == (reward, [terminated, truncated], {"env": reward})
            if ended := terminated or truncated:
                assert info["metrics"]["env_return"] == pytest.approx(inside.played.env_return)
                break
        assert ended or env_id == "CliffWalking-v1"


def test_an_adapter_keeps_the_contract_of_text_environments_but_for_its_docstring() -> None:
    check_text_env(DocumentedAdapter(Reporting(), observe=str, actions=("back", "on"), max_turns=5))


@pytest.mark.parametrize(("name", "sign"), [("push", "+"), ("pull", "-")])
def test_actions_of_other_kinds_are_named_by_a_dictionary(name: str, sign: str) -> None:
    push = {"pull": np.array([-1.0], np.float32), "push": np.array([1.0], np.float32)}
    car = gym.make("MountainCarContinuous-v0")
    env = TextAdapter(car, observe=lambda seen: f"{seen[1]:+.4f}", actions=push)
    env.reset(seed=0)
    assert env.step(name)[0].startswith(sign)


@pytest.mark.parametrize(
    ("reply", "named"), [("rihgt", "did you mean `right`"), ("jump over it", 'act("up")'), ("", "empty")]
)
def test_an_action_is_read_in_any_format_and_no_other_reply_reaches_the_environment(
    reply: str, named: str
) -> None:
    env = cliff(invalid_reward=-0.25)
    env.reset(seed=0)
    observation, reward, terminated, truncated, info = env.step(reply)
    assert named in observation
    assert observation.endswith("field 36\nactions: up, right, down, left")
    assert (reward, terminated, truncated) == (-0.25, False, False)
    assert info["score_terms"] == {"invalid_action": -0.25}
    observation, *_, info = env.step('<tool_call>{"name": "act", "arguments": {"action": "up"}}</tool_call>')
    assert (observation, info["call"]) == ("field 24", {"name": "act", "arguments": {"action": "up"}})
    assert env.step(" Up.")[0] == "field 12"


def test_a_mask_shows_what_is_possible_and_refuses_the_rest() -> None:
    env = corridor(max_turns=9)
    observation, _ = env.reset(seed=0)
    assert observation.endswith("0\npossible: on")
    observation, reward, *_, info = env.step("back")
    assert observation == "`back` is not possible now; possible: on\n0\npossible: on"
    assert (reward, info["error"]["kind"]) == (-0.1, "refused")
    assert env.step("on")[0] == "1\npossible: back, on"
    act = env.baselines["random"](env, np.random.default_rng(0))
    env.reset(seed=0)
    assert {act("") for _ in range(20)} == {"on"}
    for masks, shown in (("show", "-1\npossible: on"), ("ignore", "-1")):
        env = corridor(masks=masks)
        assert ("possible" in env.reset(seed=0)[0]) == (masks == "show")
        assert env.step("back")[0] == shown
    seen = spaces.Dict({"text": UnicodeText(), "action_mask": spaces.MultiBinary(2)})
    for actions in (("back", "on"), {"on": 1, "back": 0}, {"on": 1}):  # by its number, in any order
        in_observation = TextAdapter(Echo(seen, spaces.Discrete(2)), actions=actions)
        assert in_observation.reset(seed=0)[0].endswith("hello\npossible: on")
    assert TextAdapter(Echo(seen, UnicodeText())).reset(seed=0)[0] == "hello", "free text has no mask"


@pytest.mark.parametrize("observations", [UnicodeText(), IN_DICT])
@pytest.mark.parametrize("actions", [spaces.Text(50), REPLY_IN_DICT])
def test_texts_go_through_out_of_and_into_dictionaries(observations: Any, actions: Any) -> None:
    env = TextAdapter(Echo(observations, actions))
    observation, info = env.reset(seed=0)
    assert (observation, info["tools"], info["system"]) == ("hello", [], "")
    observation, reward, *_, info = env.step("left (or right)?")
    assert (observation, reward) == ("left (or right)?", 2.0)
    assert info["call"] == {"name": "say", "arguments": {"text": "left (or right)?"}}
    assert env.step("<think>end</think>\n\ngo on")[0] == "go on", "thoughts are no part of the action"


def test_an_exception_that_refuses_becomes_a_message_and_any_other_is_raised() -> None:
    text = UnicodeText()
    env = TextAdapter(Echo(text, text), refusals=(LookupError,), instructions="Answer.", render_mode="ansi")
    observation, info = env.reset(seed=0)
    assert (observation, info["system"]) == ("Answer.\n\nhello", "Answer.")
    observation, reward, *_ = env.step("crash")
    assert observation == "the environment refused this: no such word\nhello"
    assert reward == -0.1
    env.step("well")
    assert env.render() == "> well\nwell"
    with pytest.raises(TypeError, match="not int"):
        env.step(1)  # type: ignore[arg-type]
    env = TextAdapter(Echo(text, text))
    env.reset(seed=0)
    with pytest.raises(LookupError, match="no such word"):
        env.step("crash")


def test_the_environments_time_limit_and_the_turn_limit_truncate() -> None:
    env = corridor(masks="ignore", max_turns=50)
    env.reset(seed=0)
    for _ in range(5):
        assert env.step("back")[2:4] == (False, False)
    observation, _, terminated, truncated, info = env.step("back")
    assert (terminated, truncated) == (False, True)
    assert observation.endswith("The time is up.")
    assert info["metrics"]["env_return"] == 3.0
    with pytest.raises(ResetNeededError):
        env.step("on")
    assert cliff().max_turns == 100
    assert TextAdapter(gym.make("CartPole-v1"), observe=str).max_turns == 500
    env = cliff(max_turns=2)
    env.reset(seed=0)
    env.step("nonsense")
    assert env.step("up")[2:4] == (False, True), "bad replies count"


def test_success_is_given_by_the_environment_or_the_caller_or_not_at_all() -> None:
    def ending(env: TextAdapter) -> dict[str, Any]:
        env.reset(seed=0)
        for _ in range(4):
            *_, terminated, _, info = env.step("on")
        assert terminated
        return info

    def rich(played: EpisodeProgress) -> bool:
        return played.terminated and played.env_return > 2

    assert "success" not in ending(corridor())
    assert ending(corridor(Reporting()))["success"] is True
    assert ending(corridor(Reporting(), success=rich))["success"] is False


def test_tasks_choose_the_environments_seed_and_options() -> None:
    inner = Corridor()
    near = Task("near", "Almost there.", "train", {"options": {"place": 3}})
    env = corridor(inner, tasks=[near, Task("far", "", "test", {"seed": 99})])
    observation, info = env.reset(seed=5)
    assert (info["task_id"], inner.place, inner.seen_seed) == ("near", 3, 5)
    assert observation.endswith("Almost there.\n3\npossible: back, on")
    env.reset(seed=5, options={"split": "test"})
    assert (inner.place, inner.seen_seed, inner.options) == (0, 99, None)


def test_environments_that_draw_globally_disturb_neither_each_other_nor_the_caller() -> None:
    def alone(seed: int) -> list[str]:
        env = TextAdapter(GlobalDice(), isolated_random=True)
        return [env.reset(seed=seed)[0], *(env.step("go")[0] for _ in range(3))]

    expected = [alone(1), alone(2)]
    state, array_state = random.getstate(), np.random.get_state()[1].tolist()  # noqa: NPY002
    envs = [TextAdapter(GlobalDice(), isolated_random=True) for _ in range(2)]
    together = [[env.reset(seed=seed)[0]] for seed, env in enumerate(envs, 1)]
    snapshots = [env.snapshot() for env in envs]
    for _ in range(2):  # a snapshot holds the private random state
        for env, texts, snapshot in zip(envs, together, snapshots, strict=True):
            env.restore(snapshot)
            texts[1:] = [env.step("go")[0]]
    for _ in range(2):
        for env, texts in zip(envs, together, strict=True):
            texts.append(env.step("go")[0])
    assert together == expected
    with pytest.raises(KeyError), IsolatedRandom().active(1):
        raise KeyError
    assert random.getstate() == state
    assert np.random.get_state()[1].tolist() == array_state  # noqa: NPY002


@pytest.mark.parametrize(
    ("arguments", "fault", "named"),
    [
        ({"observe": None}, TypeError, "pass observe="),
        ({"observe": lambda seen: 3}, TypeError, "must give a str, not int"),
        ({"actions": ("up", "down")}, ValueError, "has 4 actions, but actions= names 2"),
        ({"actions": ("up", "up", "down", "left")}, ValueError, "one action twice"),
        ({"actions": ("up", "UP", "down", "left")}, ValueError, "more than case"),
        ({"actions": {*MOVES}}, TypeError, "must be a list, whose order"),
        ({"actions": {}}, ValueError, "needs names"),
        ({"actions": range(4)}, ValueError, r"needs names, as str.*not \[0, 1, 2, 3\]"),
        ({"actions": {"up": 7}}, ValueError, r"has 7 for `up`, which is not in Discrete\(4\)"),
        ({"observe": "field {}"}, TypeError, "observe= must be a function, not 'field {}'"),
        ({"success": True}, TypeError, "success= must be a function"),
        ({"invalid_reward": 0.5}, ValueError, "invalid_reward"),
        ({"masks": "refuze"}, ValueError, "did you mean `refuse`"),
        ({"max_turns": 0}, ValueError, "max_turns"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], fault: type[Exception], named: str) -> None:
    with pytest.raises(fault, match=named):
        TextAdapter(gym.make("CliffWalking-v1"), **{"observe": str, **arguments}).reset()


def test_what_is_missing_is_named() -> None:
    with pytest.raises(TypeError, match="pass actions="):
        TextAdapter(gym.make("MountainCarContinuous-v0"), observe=str)
    with pytest.raises(ModuleNotFoundError, match=r"needs no_such_library.*pip install no-such-library"):
        import_optional("no_such_library", "no-such-library")


def test_spaces_of_other_libraries_count_as_text_by_their_dtype() -> None:
    class Strings(spaces.Space[str]):
        def __init__(self) -> None:
            super().__init__((), np.dtype(str))

    assert is_text(Strings())
    assert not is_text(spaces.Discrete(2))
    assert not is_text("text")
    several = spaces.Dict({"a": spaces.Text(5), "b": spaces.Text(5)})
    assert reader_of(several) is None
    assert writer_of(spaces.Dict({"text": spaces.Text(5), "n": spaces.Discrete(2)})) is None


@pytest.mark.filterwarnings("ignore::UserWarning")  # Gymnasium's checker has an opinion on Dict actions
def test_the_trainer_takes_texts_out_of_dictionaries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gym.envs.registration, "registry", dict(gym.registry))
    monkeypatch.setattr(gym, "registry", gym.envs.registration.registry)
    gym.register("test/Echo-v0", entry_point=lambda: Echo(IN_DICT, REPLY_IN_DICT), max_episode_steps=3)
    make = env_maker("test/Echo-v0", {})
    assert isinstance(make(), TextEnv)
    [episode] = rollout_episodes(ScriptedPolicy("random"), make, [EpisodeSpec(0)])
    assert (episode.env_id, episode.observation) == ("test/Echo-v0", "hello")
    assert [turn.observation for turn in episode.turns][:1] == ["pass\n(2 turns left)"]
    assert len(episode.turns) == 3


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("CliffWalking-v1", r"observations are Discrete\(48\).*TextAdapter"),
        ("toy/NoLake-v0", "no environment"),
        ("toy/Bare-v0", "toy/Bare-v0 cannot be made with no arguments: .* must specify an action space"),
        ("toy/Barer-v0", "toy/Barer-v0 cannot be made with no arguments: .*no attribute 'observation_space'"),
    ],
)
def test_the_trainer_says_what_an_environment_without_text_needs(
    env_id: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, unchecked in (("toy/Bare-v0", False), ("toy/Barer-v0", True)):
        spec = EnvSpec(name, gym.Env, disable_env_checker=unchecked, order_enforce=False)
        monkeypatch.setitem(gym.registry, name, spec)
    with pytest.raises(ConfigError, match=words):
        env_maker(env_id, {})
