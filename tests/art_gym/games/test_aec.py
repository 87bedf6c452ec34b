import copy
import itertools
import json
import pickle
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from pettingzoo.test import api_test, seed_test

from art_gym import ResetNeededError, Task, ToolDeclarationError, UnknownTaskError, tool
from art_gym.games.aec import MoveResult, TextAECEnv, seat
from art_gym.games.seats import SeatEnv, players_of, text_of
from tests.art_gym.pettingzoo_warnings import MASK_AT_THE_END, no_other_warnings
from tests.art_gym.toy_games import FIRST, SECOND, Pennies, Race


def started(seed: int = 0, **options: Any) -> Race:
    game = Race(**options)
    game.reset(seed=seed)
    return game


def text(game: TextAECEnv, name: str | None = None) -> str:
    return str(game.observe(name or game.agent_selection)["text"])


def finish(game: TextAECEnv) -> dict[str, tuple[float, bool, bool, dict[str, Any]]]:
    """Let the seats leave a game that is over; what each met last."""
    found = {}
    while game.agents:
        _, *rest = game.last()
        found[game.agent_selection] = tuple(rest)
        game.step(None)
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("actions", ["text", "discrete"])
def test_pettingzoo_finds_nothing_wrong(actions: str) -> None:
    with no_other_warnings(MASK_AT_THE_END):
        for make in (Race, Pennies):
            api_test(make(actions=actions, max_cycles=20), num_cycles=60)
            seed_test(partial(make, actions=actions), num_cycles=20)
    for name, other in ((FIRST, SECOND), (SECOND, FIRST)):
        check_env(SeatEnv(Race(), name, {other: "any"}), skip_render_check=True)


def test_each_seat_meets_its_instructions_once() -> None:
    game = started()
    for reply in ("1", "2", "1", "2"):
        name = game.agent_selection
        info, seen = game.infos[name], text(game)
        first = game.turns[name] == 0
        assert seen.startswith(game.systems[name]) is first
        assert ("tools" in info) is first
        assert info["turn"] == game.turns[name]
        game.step(reply)
    assert "wait()" in game.systems[FIRST]
    assert "wait()" not in game.systems[SECOND]
    assert [schema["function"]["name"] for schema in started().infos[SECOND]["tools"]] == ["add"]


def test_a_seat_sees_what_happened_since_it_moved_and_can_keep_the_turn() -> None:
    game = started(lowest=0, highest=0)
    game.step("wait()")
    assert (game.agent_selection, game.last()[1]) == (FIRST, -0.25)
    game.step("wait()")
    assert game.infos[FIRST]["error"] == {"kind": "refused", "message": "you have waited already"}
    game = started(lowest=0, highest=0)
    for reply in ("wait", "2", "1"):
        game.step(reply)
    assert text(game) == "+1\ncount 3"
    game.step("2")
    assert text(game) == text(game) == "+2\ncount 5", "looking changes nothing"


def test_bad_replies_are_answered_cost_and_leave_the_turn() -> None:
    game = started(invalid_action_penalty=0.3)
    before = game.count
    for reply in ("", "add(7)"):
        game.step(reply)
        assert game.agent_selection == FIRST
        assert game.last()[1] == -0.3
        assert game.infos[FIRST]["score_terms"] == {"invalid_action": -0.3}
    assert text(game).startswith("add 1 or 2, not 7\ncount")
    assert game.count == before
    assert game.rewards[SECOND] == 0


def test_when_the_patience_is_at_an_end_a_choice_is_drawn() -> None:
    drawn = set()
    for number in range(20):
        game = started(number, patience=2, lowest=0, highest=0)
        game.step("what?")
        game.step("what?!")
        assert game.agent_selection == SECOND
        assert game.turns == {FIRST: 2, SECOND: 0}
        assert game.infos[FIRST]["error"]["kind"] == "no_call"
        drawn.add(game.count)
        assert f"`{game.count}` was played for you after 2 bad replies" in text(game, FIRST)
    assert drawn == {1, 2}
    game = started(patience=2, lowest=0, highest=0)
    for reply in ("?", "wait", "?"):
        game.step(reply)
    assert game.agent_selection == FIRST, "a good reply renews the patience"
    game = started(patience=None)
    for _ in range(9):
        game.step("?")
    assert game.agent_selection == FIRST, "without a limit nothing is drawn"


def test_of_several_calls_in_one_reply_the_first_counts() -> None:
    game = started(lowest=0, highest=0)
    game.step("add(1) add(2)")
    assert game.count == 1
    assert "Only the first of 2 calls" in text(game, FIRST)
    game = started(lowest=0, highest=0, goal=1)
    game.step("add(1) add(2)")
    assert game.terminations[FIRST], "what follows the first call does not undo its win"
    assert text(game, FIRST) == "(Only the first of 2 calls was carried out.)\nfirst_0 wins\ncount 1"


def test_a_game_ends_for_all_with_success_and_metrics() -> None:
    game = started(lowest=0, highest=0, goal=3)
    game.step("2")
    game.step("2")
    found = finish(game)
    assert list(found) == [FIRST, SECOND]
    for name, reward in ((FIRST, -1.0), (SECOND, 1.0)):
        paid, terminated, truncated, info = found[name]
        assert (paid, terminated, truncated) == (reward, True, False)
        assert info["success"] is (name == SECOND)
        assert info["metrics"] == {"turns": 1.0, "invalid_actions": 0.0, "count": 4.0}
    with pytest.raises(ResetNeededError):
        game.step("1")


def test_the_game_is_cut_off_when_a_seat_without_turns_would_move() -> None:
    game = started(max_cycles=3, goal=100, lowest=0, highest=0)
    game.step("1")
    game.step("1")
    assert text(game) == "+1\ncount 2\n(2 turns left)"
    game.step("1")
    game.step("1")
    assert text(game) == "+1\ncount 4\n(1 turn left)"
    game.step("1")
    assert not any(game.truncations.values()), "the second has a turn left"
    game.step("1")
    found = finish(game)
    assert {name: rest[1:3] for name, rest in found.items()} == {FIRST: (False, True), SECOND: (False, True)}
    assert found[FIRST][3]["success"] is False
    assert text(game, SECOND) == "No turns are left.\ncount 6"


REPLIES = st.sampled_from(
    ["1", "2", "wait", "add(2)", "add(3)", "", "<think>", "nonsense \ud800", "add(1) add(2)"]
)
KINDS = st.sampled_from(["text", "discrete"])


@settings(max_examples=60)
@given(number=st.integers(0, 2**31), replies=st.lists(REPLIES, max_size=30), kind=KINDS)
def test_whatever_is_replied_the_contract_holds(number: int, replies: list[str], kind: str) -> None:
    game = started(number, actions=kind, max_cycles=6)
    totals = dict.fromkeys(game.seats, 0.0)
    for reply in itertools.chain(replies, itertools.repeat("1")):
        name = game.agent_selection
        seen, reward, terminated, truncated, info = game.last()
        assert game.observation_space(name).contains(seen)
        assert reward == pytest.approx(sum(info.get("score_terms", {}).values()))
        assert json.loads(json.dumps(info)) == info
        assert ("success" in info) is ("metrics" in info) is (terminated or truncated)
        assert not (terminated and truncated)
        if terminated or truncated:
            break
        seen["text"] = info["spoiled"] = "spoiled"
        game.step(reply)
        assert "spoiled" not in str(game.infos)
        assert text(game) != "spoiled"
        for other, paid in game.rewards.items():
            totals[other] += paid
    won = {name: info["score_terms"].get("win", 0.0) for name, info in game.infos.items()}
    assert sum(won.values()) == 0
    assert sum(info["success"] for info in game.infos.values()) == game.terminations[FIRST]
    for name, info in game.infos.items():
        lost = 0.1 * info["metrics"]["invalid_actions"] + 0.25 * (game.passed and name == FIRST)
        assert totals[name] == pytest.approx(won[name] - lost)


def play(game: TextAECEnv, replies: list[str]) -> list[Any]:
    """Say these replies, as many as the game takes; all that could be seen."""
    found = []
    for reply in replies:
        if not game.agents or any((*game.terminations.values(), *game.truncations.values())):
            break
        game.step(reply)
        found.append((text(game), dict(game.rewards), copy.deepcopy(game.infos), game.agent_selection))
    return found


CLUMSY = ["?", "1", "?", "?", "?", "2", "?", "?", "?", "1", "2", "1", "2", "1", "2"]


def test_games_do_not_disturb_each_other_or_the_global_generators() -> None:
    state = random.getstate(), np.random.get_state(legacy=True)[1].tobytes()  # noqa: NPY002 (looked at, not used)
    alone = play(started(3), CLUMSY)
    one, other = started(3), started(4)
    together = [(play(one, [reply]), play(other, [reply]))[0] for reply in CLUMSY]
    assert [step for steps in together for step in steps] == alone
    assert state == (random.getstate(), np.random.get_state(legacy=True)[1].tobytes())  # noqa: NPY002


def test_without_a_seed_the_next_game_follows_from_the_last_seed() -> None:
    def counts() -> list[int]:
        game = Race(highest=10**6)
        found = []
        for seed in (7, None, None, None):
            game.reset(seed=seed)
            found.append(game.count)
        return found

    assert counts() == counts()
    assert len(set(counts())) == 4


def test_snapshots_come_back_any_number_of_times_and_travel() -> None:
    game = started(5)
    play(game, CLUMSY[:4])
    before = text(game)
    kept = pickle.loads(pickle.dumps(game.snapshot()))
    expected = play(game, CLUMSY[4:])
    finish(game)
    for other in (game, Race(), started(9)):
        other.restore(kept)
        assert text(other) == before
        for copied in (copy.deepcopy(other), pickle.loads(pickle.dumps(other)), other):
            assert play(copied, CLUMSY[4:]) == expected
    with pytest.raises(ValueError, match=r"of .*Race, not of .*Pennies"):
        Pennies().restore(kept)


def test_a_number_is_the_reply_that_it_stands_for() -> None:
    spoken, numbered = started(2), started(2, actions="discrete")
    masks = [numbered.observe(name)["action_mask"] for name in (FIRST, SECOND)]
    assert [mask.tolist() for mask in masks] == [[1, 1], [0, 0]], "of the seat that moves"
    assert masks[0].dtype == np.int8
    assert "action_mask" not in spoken.observe(FIRST)
    for number in (0, 1, np.int64(1), np.int32(0)):
        spoken.step(str(int(number) + 1))
        numbered.step(number)
        assert text(spoken) == text(numbered)
        assert spoken.infos == numbered.infos
    numbered.step("add(2)")
    assert numbered.infos[FIRST]["call"] == {"name": "add", "arguments": {"number": 2}}, "either form"
    assert numbered.action_space(FIRST).n == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("action", "fault"),
    [(1.0, TypeError), (True, TypeError), (None, TypeError), (2, ValueError), (-1, ValueError)],
)
def test_an_action_that_is_none_is_refused_and_changes_nothing(action: Any, fault: type[Exception]) -> None:
    game = started()
    before = text(game)
    with pytest.raises(fault):
        game.step(action)
    assert text(game) == before
    assert game.turns[FIRST] == 0


class Named(Race):
    """Has three tasks in each of two splits."""

    def __init__(self, **options: Any) -> None:
        tasks = [Task(f"{split}-{n}", "", split) for split in ("train", "test") for n in range(3)]
        super().__init__(tasks=tasks, **options)


def act(returned: object = None) -> Any:
    @tool
    def act(self: Any) -> Any:
        """Act."""
        return returned

    return act


def race(**members: Any) -> Any:
    return type("Changed", (Race,), members)


def idle() -> Any:
    return type("Idle", (TextAECEnv,), {"seats": ("a_0", "b_1"), "act": seat("a_0")(act())})


def play_act(returned: object = "text") -> None:
    game = race(act=act(returned))()
    game.reset()
    game.step("act()")


@pytest.mark.parametrize(
    ("make", "fault", "named"),
    [
        (lambda: Race().step("1"), ResetNeededError, "call reset"),
        (lambda: Race().last(), ResetNeededError, "call reset"),
        (lambda: Race().observe(FIRST), ResetNeededError, "call reset"),
        (lambda: Race(actions="discreet"), ValueError, "did you mean `discrete`"),
        (lambda: Race(render_mode="ANSI"), ValueError, "render_mode"),
        (lambda: Race(max_cycles=0), ValueError, "max_cycles"),
        *((lambda given=given: Race(patience=given), ValueError, "patience") for given in (0, "3")),
        (lambda: Race(invalid_action_penalty=-1), ValueError, "invalid_action_penalty"),
        (lambda: Named().reset(options={"task": "nope"}), UnknownTaskError, "no task `nope`"),
        (lambda: Named().reset(options={"tusk": 1}), ValueError, "did you mean `task`"),
        (race(choices=lambda self, name: ["1", "jump"]), ToolDeclarationError, "'jump'"),
        (lambda: race(choices=lambda self, name: [])(actions="discrete"), ValueError, "first_0"),
        (lambda: race(act=seat("firts_0")(act())), ToolDeclarationError, "did you mean `first_0`"),
        (lambda: race(seats=FIRST), ToolDeclarationError, r"must be a tuple, as in \('first_0',\)"),
        (idle, ToolDeclarationError, "no tool for the seat `b_1`"),
        (play_act, TypeError, "Changed.act must return MoveResult, not 'text'"),
        (lambda: (g := race(view=lambda *_: None)()).reset() or g.last(), TypeError, "view must return str"),
        (partial(play_act, MoveResult({"first": ""})), ValueError, "did you mean `first_0`"),
        (partial(play_act, MoveResult(next="secnd_1")), ValueError, "did you mean `second_1`"),
        *((lambda won=won: MoveResult(success=won), TypeError, "a set of seats") for won in (FIRST, True)),
        *((partial(MoveResult, said), TypeError, "texts by seat, not") for said in ("Won.", {FIRST: 3})),
        (lambda: MoveResult({}, {FIRST: 1.0}), TypeError, "{seat: {name"),  # type: ignore[dict-item]
        (lambda: race(begin=lambda self, task: "Go.")().reset(), ValueError, "no seat `Go.`"),
        (lambda: race(instructions="Run."), TypeError, "texts by seat .*, not 'Run.'"),
        *((lambda n=n: race(**{n: act()}), ToolDeclarationError, "rename") for n in ("last", "rewards")),
        (lambda: SeatEnv(Race(), "first", {}), ValueError, "no seat `first`; did you mean `first_0`"),
        (lambda: SeatEnv(Race(), FIRST, {}), ValueError, "second_1"),
        (lambda: SeatEnv(Race(), FIRST, {SECOND: "bast"}), ValueError, "did you mean `best`"),
        (lambda: SeatEnv(Race(), FIRST, {SECOND: "any", "third_2": "any"}), ValueError, "no seat `third_2`"),
        (lambda: ended().reset(seed=0), RuntimeError, "second_1"),
        *((partial(text_of, wrong), TypeError, '"text"') for wrong in ({"observation": 1}, None)),
    ],
)
def test_wrong_use_is_named(make: Callable[[], Any], fault: type[Exception], named: str) -> None:
    with pytest.raises(fault, match=named):
        make()


def ended() -> SeatEnv:
    """Its game is over before its own first turn."""
    return SeatEnv(Race(lowest=3, goal=4), SECOND, {FIRST: "any"})


def test_tasks_are_chosen_from_the_split() -> None:
    game = Named()
    game.reset(seed=0, options={"task": "test-1"})
    assert game.infos[FIRST]["task_id"] == "test-1"
    ids = set()
    for number in range(20):
        game.reset(seed=number, options={"split": "test"})
        ids.add(game.task.id)
    assert ids == {"test-0", "test-1", "test-2"}


def test_a_seat_sees_what_it_would_see_in_the_game() -> None:
    env = SeatEnv(Race(lowest=0, highest=0, goal=6), SECOND, {FIRST: lambda game, rng: lambda seen: "2"})
    seen, info = env.reset(seed=1)
    assert seen == f"{info['system']}\n\n+2\ncount 2"
    assert info["tools"]
    seen, reward, terminated, truncated, info = env.step("1")
    assert (seen, reward, terminated, truncated) == ("+2\ncount 5", 0.0, False, False)
    assert info["call"] == {"name": "add", "arguments": {"number": 1}}
    seen, reward, terminated, truncated, info = env.step("1")
    assert (seen, reward, terminated, truncated) == ("second_1 wins\ncount 6", 1.0, True, False)
    assert info["success"] is True
    with pytest.raises(ResetNeededError):
        env.step("1")
    lost = SeatEnv(Race(lowest=0, highest=0, goal=3), FIRST, {SECOND: "best"})
    lost.reset(seed=0)
    _, reward, terminated, _, info = lost.step("1")
    assert (reward, terminated, info["score_terms"]) == (-1.0, True, {"win": -1.0}), "by the other's move"
    assert (set(players_of(Race(), FIRST)), players_of(Pennies(), "even_0")) == ({"any", "best"}, {})


def test_equal_seeds_give_equal_opponents() -> None:
    def play_out(number: int) -> list[Any]:
        env = SeatEnv(Race(goal=30, max_cycles=40), FIRST, {SECOND: "any"})
        first = env.reset(seed=number)
        reply = env.baselines["any"](env, np.random.default_rng(0))
        return [first, *(env.step(reply("")) for _ in range(8))]

    assert play_out(1) == play_out(1)
    assert play_out(1) != play_out(2)
