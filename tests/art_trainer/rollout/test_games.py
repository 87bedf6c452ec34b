"""Games between policies: a conversation, an episode and tokens of its own for each seat."""

from collections.abc import Mapping, Sequence
from typing import Any

import pettingzoo
import pytest

from art_gym.games.seats import SeatEnv
from art_trainer.inference.policy import Conversation, Policy, Reply
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.rollout.episodes import rollout_episodes
from art_trainer.rollout.games import PlayedGame, play_games, seat_groups, seat_of
from art_trainer.types import Ending, Episode, EpisodeSpec
from tests.art_gym.toy_games import FIRST, SECOND, Race
from tests.art_trainer.tiny_models import largest_error
from tests.art_trainer.training.test_self_play import race_policy


def starts(count: int = 12, group_size: int = 4) -> list[EpisodeSpec]:
    return [EpisodeSpec(n // group_size, None, n // group_size, (7, n)) for n in range(count)]


def both(policy: Policy) -> dict[str, Policy]:
    return {FIRST: policy, SECOND: policy}


def test_tokens_and_logprobs_are_exactly_what_each_seat_saw_and_sampled() -> None:
    policy = race_policy(max_new_tokens=2)
    policy.max_context = 400
    sampled = 0
    games = play_games(both(policy), Race, starts())
    for game in games:
        for name, episode in game.items():
            assert episode.env_id == f"toy_race_v0:{name}"
            assert len(episode.histories) == bool(episode.turns)
            for history in episode.histories:
                assert sorted(set(history.turns)) == list(range(len(episode.turns)))
                replies = [span for span in history.spans if span.turn is not None]
                for span, turn in zip(replies, episode.turns, strict=True):
                    end = policy.tokenizer.eos_token_id
                    said = [token for token in span.token_ids if token != end]
                    assert policy.format.decode(said) == turn.reply
                    assert turn.cut == (span.token_ids[-1] != end)
                sampled += len(history.logprobs)
    assert sampled > 100
    played = [episode for game in games for episode in game.values() if episode.turns]
    assert largest_error(policy.model, played) < 2e-5


def test_a_game_is_the_same_whatever_is_played_beside_it() -> None:
    def replies(games: Sequence[PlayedGame]) -> list[Any]:
        return [[[turn.reply for turn in episode.turns] for episode in game.values()] for game in games]

    together = play_games(both(race_policy()), Race, starts())
    alone = play_games(both(race_policy()), Race, starts(), max_concurrent=1)
    assert replies(together) == replies(alone)
    again = play_games(both(race_policy()), Race, [EpisodeSpec(0, None, 0, (8, n)) for n in range(12)])
    assert replies(again) != replies(together)


def test_each_seat_lives_the_game_that_it_would_live_against_a_script() -> None:
    policies = {FIRST: ScriptedPolicy("best"), SECOND: ScriptedPolicy("best")}
    games = play_games(policies, Race, starts(8))
    for name, other in ((FIRST, SECOND), (SECOND, FIRST)):

        def make_env(name: str = name, other: str = other) -> SeatEnv:
            return SeatEnv(Race(), name, {other: "best"})

        expected = rollout_episodes(ScriptedPolicy("best"), make_env, starts(8))
        for game, episode in zip(games, expected, strict=True):
            assert game[name].turns == episode.turns
            assert (game[name].observation, game[name].success) == (episode.observation, episode.success)
            assert (game[name].ending, game[name].metrics) == (episode.ending, episode.metrics)


class Fragile(Race):
    """Raises at a count."""

    def begin(self, task: Any) -> str:
        name = super().begin(task)
        if self.count == 3:
            raise RuntimeError("torn board")
        return name

    def view(self, name: str) -> str:
        if self.count == 9:
            raise RuntimeError("ink is out")
        return super().view(name)


def test_a_game_that_raises_ends_for_all_seats_and_is_not_used_again() -> None:
    made: list[Race] = []
    make = lambda: made.append(Fragile()) or made[-1]  # noqa: E731
    many = [EpisodeSpec(n, None, n, n) for n in range(40)]
    games = play_games(both(ScriptedPolicy("any")), make, many, max_concurrent=1)
    failed = [game for game in games if game[FIRST].failed]
    errors = {game[FIRST].error for game in failed}
    assert {error.partition(" (")[0] for error in errors} == {
        "RuntimeError: torn board",
        "RuntimeError: ink is out",
    }
    assert 0 < len(failed) < 40
    assert len(made) in (len(failed), len(failed) + 1)
    assert {episode.ending for game in failed for episode in game.values()} == {Ending.ENV_ERROR}
    assert all(game[FIRST].ending is Ending.TERMINATED for game in games if game not in failed)


class Faulty(ScriptedPolicy):
    """Its first reply of every collection but the first is a fault."""

    collections = 0

    def collect(self) -> list[tuple[Conversation, Reply]]:
        found = super().collect()
        self.collections += 1
        return [
            (conversation, Reply("", error="server down") if self.collections > 1 and not place else reply)
            for place, (conversation, reply) in enumerate(found)
        ]


def test_a_policys_fault_ends_the_game_for_all_seats() -> None:
    games = play_games({FIRST: Faulty("best"), SECOND: ScriptedPolicy("any")}, Race, starts(4, 2))
    failed = [game for game in games if game[SECOND].failed]
    assert failed
    ends = {(episode.ending, episode.error) for game in failed for episode in game.values()}
    assert ends == {(Ending.POLICY_ERROR, "server down")}
    assert not all(group.whole for group in seat_groups(games, 2, [FIRST, SECOND]))


def test_a_seat_with_a_full_context_plays_on_in_silence_and_can_lose() -> None:
    policy = race_policy()
    policy.max_context = 48
    games = play_games({FIRST: policy, SECOND: ScriptedPolicy("best")}, lambda: Race(patience=1), starts(8))
    full = [game for game in games if game[FIRST].ending is Ending.CONTEXT_FULL]
    assert False in {game[FIRST].success for game in full}
    for game in full:
        assert (game[SECOND].ending, game[SECOND].success) == (Ending.TERMINATED, not game[FIRST].success)
        assert len(game[FIRST].turns) < game[FIRST].metrics["turns"]
        for last in game[FIRST].turns[-1:]:
            assert last.score_terms["invalid_action"] < 0
            assert last.reward == pytest.approx(sum(last.score_terms.values()))
        turns = {turn for history in game[FIRST].histories for turn in history.turns}
        assert turns == set(range(len(game[FIRST].turns)))


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError])
def test_whatever_ends_the_games_conversations_are_released(fault: type[BaseException]) -> None:
    policy = race_policy()

    def stop(episode: Episode) -> None:
        raise fault("enough")

    with pytest.raises(fault, match="enough"):
        play_games(both(policy), Race, starts(), on_episode=stop)
    policy.version += 1  # refused while conversations are live


def test_attempts_in_which_a_seat_never_moved_are_left_out() -> None:
    def short() -> Race:
        return Race(goal=4, lowest=2, highest=2)

    games = play_games(both(ScriptedPolicy("any")), short, [EpisodeSpec(0, None, 0, n) for n in range(8)])
    moved = [game for game in games if game[SECOND].turns]
    assert 1 < len(moved) < 8
    first, second = seat_groups(games, 8, [FIRST, SECOND])
    assert (len(first.episodes), len(second.episodes)) == (8, len(moved))
    unmoved = next(game for game in games if not game[SECOND].turns)
    assert unmoved[SECOND].success is False
    assert [seat_of(group) for group in seat_groups([unmoved, unmoved], 2, [FIRST, SECOND])] == [FIRST]


class Parrot(ScriptedPolicy):
    """Says the number of its turn."""

    def submit(self, conversation: Conversation) -> None:
        conversation.state = lambda observation: str(len(conversation.messages) // 2)
        super().submit(conversation)


class Plain(pettingzoo.AECEnv):  # type: ignore[misc]
    """Three seats that speak in turn until each has said enough; nothing in it is this project's."""

    metadata = {"name": "plain_v0", "is_parallelizable": False}  # noqa: RUF012
    possible_agents = ["a_0", "b_1", "c_2"]  # noqa: RUF012

    def reset(self, seed: int | None = None, options: Mapping[str, Any] | None = None) -> None:
        self.agents = list(self.possible_agents)
        self.agent_selection = "a_0"
        self.said = ["hello"]
        self.left = dict(zip(self.agents, (1, 2, 3), strict=True))
        self.rewards = dict.fromkeys(self.agents, 0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, dict[str, Any]] = {name: {} for name in self.agents}

    def observe(self, agent: str) -> dict[str, str]:
        return {"text": self.said[-1]}

    def step(self, action: str | None) -> None:
        name = self.agent_selection
        if self.terminations[name]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[name] = 0
        self._clear_rewards()
        self.said.append(f"{name} says {action}")
        self.rewards = {other: int(other == name) for other in self.agents}
        self._accumulate_rewards()
        self.left[name] -= 1
        self.terminations[name] = self.left[name] == 0
        if live := [other for other in self.agents if not self.terminations[other]]:
            self.agent_selection = ([other for other in live if other > name] or live)[0]
        self._deads_step_first()


def test_a_game_of_pettingzoos_own_kind_is_played_too() -> None:
    (game,) = play_games(dict.fromkeys(["a_0", "b_1", "c_2"], Parrot("parrot")), Plain, [EpisodeSpec(5)])
    assert {name: len(episode.turns) for name, episode in game.items()} == {"a_0": 1, "b_1": 2, "c_2": 3}
    assert {episode.reward for episode in game.values()} == {1, 2, 3}
    assert {episode.ending for episode in game.values()} == {Ending.TERMINATED}
    assert (game["a_0"].success, game["a_0"].task_id, game["a_0"].env_id) == (None, "seed-5", "plain_v0:a_0")
    assert game["b_1"].observation == "a_0 says 0"
    assert [turn.reply for turn in game["b_1"].turns] == ["0", "1"]
    assert game["b_1"].turns[0].observation == "c_2 says 0"
