import gymnasium as gym
from hypothesis import given
from hypothesis import strategies as st

import art_gym  # noqa: F401 (registers the environments)
from art_gym.wrappers.history_window import HistoryWindow
from tests.art_gym.toys import CounterEnv, EchoEnv

REPLIES = ["add(1)", "add(2)", "?", "add(3)", "stop()"]


def test_the_first_observation_and_the_latest_turns_are_shown() -> None:
    env, plain = HistoryWindow(CounterEnv(), turns=2), CounterEnv()
    first, info = plain.reset(seed=1)
    assert env.reset(seed=1) == (first, info)
    turns = []
    for number, reply in enumerate(REPLIES):
        own, *rest = plain.step(reply)
        turns.append(f"> {reply}\n{own}")
        seen, *others = env.step(reply)
        assert others == rest
        left_out = {2: "[1 earlier turn left out]", 3: "[2 earlier turns left out]"}
        notes = [left_out.get(number, "[3 earlier turns left out]")] if number >= 2 else []
        assert seen == "\n\n".join([first, *notes, *turns[-2:]])


def test_what_does_not_fit_loses_earlier_turns_first_then_its_middle() -> None:
    env = HistoryWindow(EchoEnv(limit=60), turns=3)
    for _ in range(2):  # a reset drops earlier turns
        assert env.reset()[0] == "begin"
        assert env.step("a" * 8)[0] == "begin\n\n> aaaaaaaa\naaaaaaaa"
        seen = [env.step(letter * 8)[0] for letter in "bc"][-1]
        assert seen == "begin\n\n[2 earlier turns left out]\n\n> cccccccc\ncccccccc"
    seen = env.step("x" * 20 + "y" * 40)[0]
    assert len(seen) <= 60
    assert seen.startswith("begin\n\n")
    assert "characters left out" in seen
    assert seen.endswith("yyy")


@given(
    limit=st.integers(1, 80),
    turns=st.integers(1, 5),
    first=st.text(max_size=40),
    replies=st.lists(st.text(st.characters(), max_size=30), max_size=8),
)
def test_every_observation_lies_in_the_space(limit: int, turns: int, first: str, replies: list[str]) -> None:
    env = HistoryWindow(EchoEnv(first[:limit], limit), turns)
    env.reset()
    for reply in [*replies, "\ud800"]:
        assert env.step(reply)[0] in env.observation_space


def test_it_works_around_real_environments_and_under_gymnasium_s_vector_environments() -> None:
    def make() -> gym.Env[str, str]:
        return HistoryWindow(gym.make("art/2048-v0", board_size=3), turns=1)

    vector = gym.vector.SyncVectorEnv([make] * 2)
    texts, _ = vector.reset(seed=0)
    first = texts[0]
    vector.step(["left", "up"])
    texts, *_ = vector.step(["up", "left"])
    assert texts[0].startswith(f"{first}\n\n[1 earlier turn left out]\n\n> up\n")
