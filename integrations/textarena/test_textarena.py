"""TextArena's games as text environments and as games for self-play here."""

import random
import warnings

import pettingzoo
import pytest

pytest.importorskip("textarena")

import textarena
from pettingzoo.test import api_test

from art_gym.games.seats import SeatEnv
from art_gym.wrappers.adapters.textarena_env import TextArenaSoloEnv
from art_gym.wrappers.adapters.textarena_game import TextArenaGame
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.episodes import group_specs, rollout_groups
from art_trainer.rollout.games import play_games, seat_groups
from art_trainer.types import EpisodeSpec


@pytest.fixture(autouse=True)
def own_chance():
    """TextArena seeds the global state when it is played outside."""
    state = random.getstate()
    yield
    random.setstate(state)


def cells(game, rng):
    """A player for TextArena's tic-tac-toe: any free cell."""

    def act(words):
        free = words[words.rfind("Available Moves:") :].replace("'", "").split("[")[1:]
        return "[" + str(rng.choice([move.split("]")[0] for move in free])) + "]"

    return act


class Played(TextArenaGame):
    """Tic-tac-toe with a scripted player."""

    players = {name: {"random": cells} for name in ("player_0", "player_1")}  # noqa: RUF012


@pytest.mark.parametrize(
    "name", ["GuessTheNumber-v0", "FrozenLake-v0-random", "TowerOfHanoi-v0", "Mastermind-v0"]
)
def test_same_episode(name):
    """A seed gives the game that it gives in TextArena, for one player."""
    for seed in (3, 4):
        raw = textarena.make(f"{name}-raw")
        raw.reset(num_players=1, seed=seed)
        expected = [message for _, message, _ in raw.get_observation()[1]]
        env = TextArenaSoloEnv(name)
        observation, _ = env.reset(seed=seed)
        assert all(message.strip() in observation for message in expected)
        env.reset(seed=seed)
        raw.reset(num_players=1, seed=seed)
        raw.get_observation()
        for reply in ("[4]", "[A C]", "[right]", "[down]"):
            done, _ = raw.step(reply)
            _, reward, terminated, _, _ = env.step(reply)
            assert terminated == done
            if done:
                assert reward == raw.close()[0][0]
                break


def test_history_ends_with_the_episode():
    """An observation is what is new, and the first one is the same after every reset."""
    env = TextArenaSoloEnv()
    first, _ = env.reset(seed=1)
    observation = env.step("[20]")[0]
    assert observation.startswith("The target number is")
    assert len(observation) < 60
    assert [env.reset(seed=1)[0] for _ in range(3)] == [first] * 3


def test_no_disturbance():
    """Games stepped in turn change neither each other nor the caller's random state."""
    alone = [TextArenaSoloEnv("FrozenLake-v0-random").reset(seed=seed)[0] for seed in (1, 2)]
    before = random.getstate()
    one, two = TextArenaSoloEnv("FrozenLake-v0-random"), TextArenaSoloEnv("FrozenLake-v0-random")
    assert [one.reset(seed=1)[0], two.reset(seed=2)[0]] == alone
    after_one = one.step("[right]")
    again = TextArenaSoloEnv("FrozenLake-v0-random")
    again.reset(seed=1)
    assert again.step("[right]") == after_one
    assert random.getstate() == before


def test_bad_replies():
    """An invalid reply gets an error message, and a second one in a row ends the game, as in TextArena."""
    env = TextArenaSoloEnv()
    env.reset(seed=3)
    assert "invalid move" in env.step("nonsense")[0]
    observation, _, terminated, _, info = env.step("nonsense")
    assert (terminated, info["success"]) == (True, False)
    assert "Invalid Move" in observation


def test_two_players():
    """Games for two are played by self-play's rollout, a group for each seat."""
    starts = [EpisodeSpec(seed, rng_seed=(seed, member)) for seed in (1, 2) for member in range(4)]
    games = play_games(dict.fromkeys(("player_0", "player_1"), ScriptedPolicy("random")), Played, starts)
    groups = seat_groups(games, 4, ("player_0", "player_1"))
    assert len(groups) == 4
    assert all(group.whole for group in groups)
    for game in games:
        rewards = [game[name].reward for name in ("player_0", "player_1")]
        assert rewards in ([1, -1], [-1, 1], [0, 0])
        assert [game[name].success for name in ("player_0", "player_1")] == [reward > 0 for reward in rewards]


def test_one_seat():
    """One seat of a game for two is an environment, the other is a script; seeds repeat it."""

    def said(seed):
        env = SeatEnv(Played(), "player_1", {"player_0": "random"})
        observation, _ = env.reset(seed=seed)
        return [observation, env.step("[8]")[0]]

    assert said(1) == said(1)
    assert "[Player 0]" in said(1)[0]


def test_registered():
    """`textarena/Game-v0` is a game in PettingZoo's registry and passes its `api_test`."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        # Of any observation that is a Dict, and of actions that are text.
        warnings.filterwarnings("ignore", message=".*(probably should be|is not a NumPy array)")
        game = pettingzoo.make("aec", "textarena/Game-v0", game="KuhnPoker-v0")
        api_test(game, num_cycles=40)
    assert "textarena/Game-v0" not in pettingzoo.parallel_registry


def test_turn_limit():
    """A game for two is truncated after a number of replies, which TextArena itself does not do."""
    game = TextArenaGame("KuhnPoker-v0", max_cycles=1)
    game.reset(seed=3)
    for _ in range(3):
        if not any(game.truncations.values()):
            game.step("[check]")
    assert all(game.truncations.values())
    assert not any(game.terminations.values())


def test_rollout():
    """Groups of episodes are played by this trainer's rollout."""
    groups = rollout_groups(ScriptedPolicy("random"), TextArenaSoloEnv, group_specs([1, 2], 3))
    assert all(group.whole for group in groups)


def test_wrong_id():
    """A wrong id is named with the nearest right one."""
    with pytest.raises(ValueError, match="did you mean `GuessTheNumber-v0`"):
        TextArenaSoloEnv("GuessTheNumbr-v0")


def test_limit_random_player():
    """TextArena has no random policies, so a vocabulary for a model from scratch cannot be collected."""
    assert TextArenaGame.players == {}
