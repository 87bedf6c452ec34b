import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from art_gym.seats import SeatEnv
from art_trainer.checkpoint import list_checkpoints
from art_trainer.config import GRPOConfig
from art_trainer.episodes import Ending, Episode, Group
from art_trainer.errors import ConfigError
from art_trainer.game_rollout import PlayedGame, play_games, seat_groups, seat_of
from art_trainer.policy import Conversation, Policy, Reply
from art_trainer.records import read_episodes
from art_trainer.rollout import rollout
from art_trainer.scripted_policy import ScriptedPolicy
from art_trainer.self_play import SelfPlayTrainer, game_maker, play_matches
from art_trainer.starts import Start
from art_trainer.transformers_policy import TransformersPolicy
from tests.art_gym.toy_games import FIRST, SECOND, Pennies, Race
from tests.art_trainer.guess import TEMPLATE, guess_policy
from tests.art_trainer.tiny_models import full_logprobs

DUEL = "art/2048Duel-v0"
SLIDER, PLACER = "slider_0", "placer_1"


def word_policy(words: Sequence[str], seed: int = 0, max_new_tokens: int = 1) -> TransformersPolicy:
    """A two-layer model of random weights that reads and writes whole words."""
    vocabulary = ["<unk>", "<end>", *words]
    core = Tokenizer(models.WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, unk_token="<unk>", eos_token="<end>", omit_system=True
    )
    tokenizer.chat_template = TEMPLATE
    policy = guess_policy(seed, hidden=48, tokenizer=tokenizer, max_new_tokens=max_new_tokens)
    return policy


def race_policy(seed: int = 0, max_new_tokens: int = 1) -> TransformersPolicy:
    return word_policy(["count", "+1", "+2", "wait", *map(str, range(12))], seed, max_new_tokens)


def starts(count: int = 12, group_size: int = 4) -> list[Start]:
    return [Start(n // group_size, None, n // group_size, (7, n)) for n in range(count)]


def both(policy: Policy) -> dict[str, Policy]:
    return {FIRST: policy, SECOND: policy}


def weights_of(policy: TransformersPolicy) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in policy.model.parameters()])


# --- games ----------------------------------------------------------------------------------------------


def test_tokens_and_logprobs_are_exactly_what_each_seat_saw_and_sampled() -> None:
    policy = race_policy(max_new_tokens=2)
    policy.max_context = 400
    sampled = 0
    for game in play_games(both(policy), Race, starts()):
        for name, episode in game.items():
            assert episode.env_id == f"toy_race_v0:{name}"
            assert len(episode.histories) == bool(episode.turns)
            for history in episode.histories:
                expected = full_logprobs(policy.model, history.token_ids)
                mask = np.array(history.action_mask)
                np.testing.assert_allclose(history.logprobs, expected[mask[1:]], atol=2e-5)
                assert sorted(set(history.turns)) == list(range(len(episode.turns)))
                replies = [span for span in history.spans if span.turn is not None]
                for span, turn in zip(replies, episode.turns, strict=True):
                    end = policy.tokenizer.eos_token_id
                    said = [token for token in span.token_ids if token != end]
                    assert policy.format.decode(said) == turn.reply
                sampled += len(history.logprobs)
    assert sampled > 100


def test_a_game_is_the_same_whatever_is_played_beside_it() -> None:
    def replies(games: Sequence[PlayedGame]) -> list[Any]:
        return [[[turn.reply for turn in episode.turns] for episode in game.values()] for game in games]

    together = play_games(both(race_policy()), Race, starts())
    alone = play_games(both(race_policy()), Race, starts(), max_concurrent=1)
    assert replies(together) == replies(alone)
    again = play_games(both(race_policy()), Race, [Start(0, None, 0, (8, n)) for n in range(12)])
    assert replies(again) != replies(together)


def test_each_seat_lives_the_game_that_it_would_live_against_a_script() -> None:
    policies = {FIRST: ScriptedPolicy("best"), SECOND: ScriptedPolicy("best")}
    games = play_games(policies, Race, starts(8))
    for name, other in ((FIRST, SECOND), (SECOND, FIRST)):

        def make_env(name: str = name, other: str = other) -> SeatEnv:
            return SeatEnv(Race(), name, {other: "best"})

        expected = rollout(ScriptedPolicy("best"), make_env, starts(8))
        for game, episode in zip(games, expected, strict=True):
            assert game[name].turns == episode.turns
            assert (game[name].observation, game[name].success) == (episode.observation, episode.success)
            assert (game[name].ending, game[name].metrics) == (episode.ending, episode.metrics)


def test_a_seat_is_paid_for_what_the_other_does_after_its_move() -> None:
    for game in play_games(both(ScriptedPolicy("any")), Race, starts()):
        winner, loser = sorted(game.values(), key=lambda episode: -episode.reward)
        assert [turn.reward for turn in winner.turns][-1] == 1.0
        assert [turn.reward for turn in loser.turns][-1] == -1.0
        assert loser.turns[-1].score_terms == {"win": -1.0}
        assert (winner.success, loser.success) == (True, False)


class Spy(ScriptedPolicy):
    """Counts how many conversations wait together."""

    max_batch = 1000

    def __init__(self, baseline: str, fault_after: int | None = None) -> None:
        super().__init__(baseline)
        self.batches: list[int] = []
        self.fault_after = fault_after

    def collect(self) -> list[tuple[Conversation, Reply]]:
        self.batches.append(len(self._submitted))
        found = super().collect()
        if found and self.fault_after is not None and len(self.batches) > self.fault_after:
            found[0] = found[0][0], Reply("", error="server down")
        return found


def test_all_games_in_which_a_policy_moves_wait_for_it_together() -> None:
    spy = Spy("best")
    play_games(both(spy), Race, starts(20))
    assert spy.batches[0] == 20
    assert len(spy.batches) < 20
    first, second = Spy("best"), Spy("any")
    play_games({FIRST: first, SECOND: second}, Race, starts(20))
    assert first.batches[0] == second.batches[0] == 20


def test_no_more_games_are_under_way_than_a_policy_can_hold() -> None:
    spy = Spy("best")
    spy.max_batch = 6
    play_games(both(spy), Race, starts(20))
    assert max(spy.batches) == 3
    model = race_policy()
    model.max_batch = 4
    assert len(play_games(both(model), Race, starts(20))) == 20
    model.max_batch = 1
    with pytest.raises(ValueError, match="below the number of seats"):
        play_games(both(model), Race, starts(4))


# --- faults ---------------------------------------------------------------------------------------------


class Fragile(Race):
    """Raises at a count."""

    made = 0

    def __init__(self, **options: Any) -> None:
        type(self).made += 1
        super().__init__(**options)

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
    Fragile.made = 0
    many = [Start(n, None, n, n) for n in range(40)]
    games = play_games(both(ScriptedPolicy("any")), Fragile, many, max_concurrent=1)
    failed = [game for game in games if game[FIRST].failed]
    assert {game[FIRST].error for game in failed} == {
        "RuntimeError: torn board",
        "RuntimeError: ink is out",
    }
    assert 0 < len(failed) < 40
    assert Fragile.made in (len(failed), len(failed) + 1)
    for game in failed:
        assert {episode.ending for episode in game.values()} == {Ending.ENV_ERROR}
    assert all(game[FIRST].ending is Ending.TERMINATED for game in games if game not in failed)


def test_a_policy_s_fault_ends_the_game_for_all_seats() -> None:
    games = play_games({FIRST: Spy("best", fault_after=1), SECOND: ScriptedPolicy("any")}, Race, starts(4, 2))
    failed = [game for game in games if game[SECOND].failed]
    assert failed
    for game in failed:
        assert {episode.ending for episode in game.values()} == {Ending.POLICY_ERROR}
        assert {episode.error for episode in game.values()} == {"server down"}
    groups = seat_groups(games, 2, [FIRST, SECOND])
    assert not all(group.whole for group in groups)


def test_a_player_that_does_not_exist_is_that_game_s_outcome() -> None:
    (game,) = play_games({FIRST: ScriptedPolicy("bset"), SECOND: ScriptedPolicy("any")}, Race, starts(1))
    assert game[FIRST].ending is Ending.POLICY_ERROR
    assert "did you mean `best`" in (game[FIRST].error or "")


def test_a_full_context_cuts_the_other_seat_off_with_its_last_turn_whole() -> None:
    policy = race_policy()
    policy.max_context = 8
    games = play_games({FIRST: policy, SECOND: race_policy(1)}, lambda: Race(patience=1), starts(8))
    cut = [game for game in games if game[FIRST].ending is Ending.CONTEXT_FULL]
    assert cut
    for game in cut:
        assert game[SECOND].ending is Ending.TRUNCATED
        assert game[SECOND].success is None
        for episode in game.values():
            turns = {turn for history in episode.histories for turn in history.turns}
            assert turns == set(range(len(episode.turns)))


@pytest.mark.parametrize("fault", [KeyboardInterrupt, RuntimeError])
def test_whatever_ends_the_games_conversations_are_released(fault: type[BaseException]) -> None:
    policy = race_policy()

    def stop(episode: Episode) -> None:
        raise fault("enough")

    with pytest.raises(fault, match="enough"):
        play_games(both(policy), Race, starts(), on_episode=stop)
    policy.version += 1  # refused while conversations are live


def test_seats_without_a_policy_are_named() -> None:
    with pytest.raises(ValueError, match="no policy for the seat second_1"):
        play_games({FIRST: ScriptedPolicy("any")}, Race, starts(1))
    with pytest.raises(ValueError, match="max_concurrent is at least 1"):
        play_games(both(ScriptedPolicy("any")), Race, starts(1), max_concurrent=0)


# --- groups ---------------------------------------------------------------------------------------------


def test_groups_hold_one_seat_s_attempts_at_one_start() -> None:
    games = play_games(both(ScriptedPolicy("any")), Race, starts(8, 4))
    groups = seat_groups(games, 4, [FIRST, SECOND])
    assert [seat_of(group) for group in groups] == [FIRST, SECOND, FIRST, SECOND]
    assert [{episode.seed for episode in group.episodes} for group in groups] == [{0}, {0}, {1}, {1}]
    assert [len(group.episodes) for group in groups] == [4, 4, 4, 4]
    assert [seat_of(group) for group in seat_groups(games, 4, [SECOND])] == [SECOND, SECOND]


def test_attempts_in_which_a_seat_never_moved_are_left_out() -> None:
    def short() -> Race:
        return Race(goal=4, lowest=2, highest=2)

    games = play_games(both(ScriptedPolicy("any")), short, [Start(0, None, 0, n) for n in range(8)])
    moved = [game for game in games if game[SECOND].turns]
    assert 1 < len(moved) < 8
    first, second = seat_groups(games, 8, [FIRST, SECOND])
    assert (len(first.episodes), len(second.episodes)) == (8, len(moved))
    unmoved = next(game for game in games if not game[SECOND].turns)
    assert unmoved[SECOND].success is False
    assert [seat_of(group) for group in seat_groups([unmoved, unmoved], 2, [FIRST, SECOND])] == [FIRST]


# --- any AEC environment --------------------------------------------------------------------------------


class Plain(pettingzoo.AECEnv):  # type: ignore[misc]
    """Three seats that speak in turn until each has said enough; nothing in it is this project's."""

    metadata = {"name": "plain_v0", "is_parallelizable": False}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self.possible_agents = ["a_0", "b_1", "c_2"]
        self.render_mode = None
        self.space = gym.spaces.Dict({"text": gym.spaces.Text(100)})

    def observation_space(self, agent: str) -> Any:
        return self.space

    def action_space(self, agent: str) -> Any:
        return self.space["text"]

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
        live = [other for other in self.agents if not self.terminations[other]]
        if live:
            later = [other for other in live if other > name]
            self.agent_selection = (later or live)[0]
        self._deads_step_first()

    def close(self) -> None:
        pass


class Parrot:
    """Says the number of its turn."""

    def __init__(self) -> None:
        self.name, self.version = "parrot", 0
        self.waiting: list[Conversation] = []
        self.seen: list[list[str]] = []

    def submit(self, conversation: Conversation) -> None:
        self.waiting.append(conversation)

    def collect(self) -> list[tuple[Conversation, Reply]]:
        waiting, self.waiting = self.waiting, []
        found = []
        for conversation in waiting:
            text = str(len(conversation.messages) // 2)
            conversation.messages.append({"role": "assistant", "content": text})
            found.append((conversation, Reply(text)))
        return found

    def release(self, conversation: Conversation) -> tuple[Any, ...]:
        self.seen.append([message["content"] for message in conversation.messages])
        return ()


def test_a_game_of_pettingzoo_s_own_kind_is_played_too() -> None:
    parrot = Parrot()
    (game,) = play_games(dict.fromkeys(["a_0", "b_1", "c_2"], parrot), Plain, [Start(5)])
    assert {name: len(episode.turns) for name, episode in game.items()} == {"a_0": 1, "b_1": 2, "c_2": 3}
    assert {episode.reward for episode in game.values()} == {1, 2, 3}
    assert {episode.ending for episode in game.values()} == {Ending.TERMINATED}
    assert game["a_0"].success is None
    assert (game["a_0"].task_id, game["a_0"].env_id) == ("seed-5", "plain_v0:a_0")
    assert parrot.seen[1] == ["a_0 says 0", "0", "c_2 says 0", "1"]


# --- training -------------------------------------------------------------------------------------------

SETTINGS: dict[str, Any] = {
    "learning_rate": 3e-3,
    "lr_final_ratio": 0.1,
    "groups_per_step": 4,
    "num_generations": 4,
    "max_completion_length": 1,
    "max_steps": 2,
    "eval_episodes": 10,
    "eval_temperature": 1.0,
    "advantage_estimator": "reward_to_go",
    "seed": 0,
}


def settings(folder: Path, **changes: Any) -> GRPOConfig:
    return GRPOConfig(output_dir=str(folder), **{**SETTINGS, **changes})


def metrics_of(trainer: SelfPlayTrainer) -> list[dict[str, float]]:
    return [json.loads(line) for line in (trainer.log.folder / "metrics.jsonl").read_text().splitlines()]


def timeless(metrics: Mapping[str, float]) -> dict[str, float]:
    return {k: v for k, v in metrics.items() if "time/" not in k and "tokens_per_second" not in k}


def test_self_play_from_random_weights_learns_to_beat_the_script(tmp_path: Path) -> None:
    config = settings(
        tmp_path,
        max_steps=20,
        groups_per_step=16,
        num_generations=8,
        steps_per_generation=2,
        entropy_coef=0.01,
        eval_episodes=100,
    )
    policy = race_policy()
    trainer = SelfPlayTrainer(policy, Race, config)
    before = {match.seat: match.evaluation for match in trainer.matches() if match.opponent == "any"}
    trainer.train()
    after = {match.seat: match.evaluation for match in trainer.matches() if match.opponent == "any"}
    for name in (FIRST, SECOND):
        assert before[name].success is not None
        assert after[name].success is not None
        assert before[name].success.high < 0.2
        assert after[name].success.low > 0.6
        assert after[name].invalid_rate < 0.2 < before[name].invalid_rate
    last = metrics_of(trainer)[-1]
    assert last[f"{FIRST}/reward"] + last[f"{SECOND}/reward"] > -0.2
    assert policy.version == 20


def test_two_policies_learn_apart(tmp_path: Path) -> None:
    one, other = race_policy(0), race_policy(1)
    before = weights_of(one), weights_of(other)
    trainer = SelfPlayTrainer({FIRST: one, SECOND: other}, Race, settings(tmp_path))
    assert trainer.policy is one
    groups = trainer.collect_episodes()
    assert [seat_of(group) for group in groups] == [FIRST, SECOND] * 4
    metrics = trainer.update_policy(groups)
    assert not torch.equal(weights_of(one), before[0])
    assert not torch.equal(weights_of(other), before[1])
    assert (one.version, other.version) == (1, 1)
    assert {"policy_loss", f"{SECOND}/policy_loss", f"{FIRST}/reward", f"{SECOND}/turns"} <= set(metrics)
    # Each learned from its own seat's groups and no other's.
    alone = race_policy(1)
    single = SelfPlayTrainer({FIRST: ScriptedPolicy("any"), SECOND: alone}, Race, settings(tmp_path))
    single.collected = 1
    single.update_policy([group for group in groups if seat_of(group) == SECOND])
    assert torch.equal(weights_of(alone), weights_of(other))


def test_a_shared_policy_learns_from_all_seats_or_from_those_named(tmp_path: Path) -> None:
    trainer = SelfPlayTrainer(race_policy(), Race, settings(tmp_path))
    assert {seat_of(group) for group in trainer.collect_episodes()} == {FIRST, SECOND}
    one = SelfPlayTrainer(race_policy(), Race, settings(tmp_path), learning_seats=[SECOND])
    assert {seat_of(group) for group in one.collect_episodes()} == {SECOND}


def test_a_frozen_or_scripted_opponent_stays_as_it_is(tmp_path: Path) -> None:
    frozen = race_policy(3)
    before = weights_of(frozen)
    for rival in (frozen, ScriptedPolicy("best")):
        trainer = SelfPlayTrainer(
            {FIRST: race_policy(), SECOND: rival}, Race, settings(tmp_path), learning_seats=[FIRST]
        )
        metrics = trainer.update_policy(trainer.collect_episodes())
        assert not any(name.startswith(SECOND) for name in metrics)
    assert torch.equal(weights_of(frozen), before)


def test_the_seed_decides_everything(tmp_path: Path) -> None:
    def collected(**changes: Any) -> list[Group]:
        return SelfPlayTrainer(race_policy(), Race, settings(tmp_path, **changes)).collect_episodes()

    assert collected() == collected()
    assert collected() != collected(seed=1)


@pytest.mark.parametrize("separate", [False, True])
def test_stopping_and_resuming_gives_the_numbers_of_never_stopping(tmp_path: Path, separate: bool) -> None:
    def make(folder: str, seed: int = 0) -> SelfPlayTrainer:
        policies = {FIRST: race_policy(seed), SECOND: race_policy(seed + 1)}
        config = settings(tmp_path / folder, max_steps=4, save_steps=2, save_total_limit=None)
        return SelfPlayTrainer(policies if separate else race_policy(seed), Race, config)

    straight = make("straight")
    straight.train()
    resumed = make("resumed", seed=5)
    resumed.load_checkpoint(list_checkpoints(straight.log.checkpoints)[0])
    assert resumed.step == 2
    resumed.train()
    for name in (FIRST, SECOND):
        one, other = straight.policies[name], resumed.policies[name]
        assert isinstance(one, TransformersPolicy)
        assert isinstance(other, TransformersPolicy)
        assert torch.equal(weights_of(one), weights_of(other))
    # A run that never was does not know the first steps' lines.
    assert [timeless(m) for m in metrics_of(straight)][2:] == [timeless(m) for m in metrics_of(resumed)]


def test_evaluations_name_seat_and_opponent_and_disturb_nothing(tmp_path: Path) -> None:
    trainer = SelfPlayTrainer(race_policy(), Race, settings(tmp_path))
    before = trainer.policy.sampling
    metrics = trainer.evaluate()
    assert metrics == trainer.evaluate()
    assert trainer.policy.sampling == before
    names = [f"eval_{a}_vs_{b}" for a in (FIRST, SECOND) for b in ("any", "best")]
    assert set(metrics) == {f"{name}_{what}" for name in names for what in ("reward", "success")}


def test_matches_of_scripts_give_intervals() -> None:
    weak, strong = play_matches({FIRST: ScriptedPolicy("best")}, Race, episodes=60, seed=0)
    assert (weak.seat, weak.opponent, strong.opponent) == (FIRST, "any", "best")
    assert weak.evaluation.env_id == "toy_race_v0:first_0"
    assert weak.evaluation.success is not None
    assert strong.evaluation.success is not None
    # The first wins against the best whenever the start allows it, and nearly always against chance.
    won = [10 - int(episode.observation.split()[-1]) for episode in strong.episodes]
    assert [episode.success for episode in strong.episodes] == [left % 3 != 0 for left in won]
    assert weak.evaluation.success.low > strong.evaluation.success.value - 0.05
    assert weak.evaluation.reward is not None
    assert weak.evaluation.reward.count == len(weak.episodes) == 60
    assert [episode.seed for episode in weak.episodes] == [episode.seed for episode in strong.episodes]
    assert play_matches({"even_0": ScriptedPolicy("any")}, Pennies, episodes=2, seed=0) == []


def test_callbacks_are_told_of_every_seat_s_episodes(tmp_path: Path) -> None:
    told: list[str] = []

    class Watcher:
        def on_step(self, metrics: Mapping[str, float]) -> None:
            told.append("step")

        def on_episode(self, episode: Episode) -> None:
            told.append(episode.env_id)

    SelfPlayTrainer(race_policy(), Race, settings(tmp_path), callbacks=[Watcher()]).train()
    assert told.count("step") == 2
    assert told.count("toy_race_v0:second_1") == told.count("toy_race_v0:first_0") == 32


@pytest.mark.parametrize(
    ("policies", "options", "words"),
    [
        ({"first": 0, SECOND: 0}, {}, "policies are for `first`, which is no seat .*did you mean `first_0`"),
        ({FIRST: 0}, {}, "the seats are first_0, second_1"),
        ("any", {}, "no seat learns"),
        ("any", {"learning_seats": [FIRST]}, "first_0 cannot learn: any has no weights"),
        (0, {"learning_seats": ["third"]}, "learning_seats are for `third`"),
    ],
)
def test_wrong_seats_and_policies_are_named(
    tmp_path: Path, policies: Any, options: dict[str, Any], words: str
) -> None:
    def made(entry: Any) -> Policy:
        return ScriptedPolicy(entry) if isinstance(entry, str) else race_policy(entry)

    several = isinstance(policies, dict)
    given = {name: made(entry) for name, entry in policies.items()} if several else made(policies)
    with pytest.raises(ConfigError, match=words):
        SelfPlayTrainer(given, Race, settings(tmp_path), **options)


def test_games_are_found_by_their_id() -> None:
    assert game_maker(DUEL, board_size=3, target=64)().possible_agents == [SLIDER, PLACER]
    assert isinstance(game_maker("tests.art_gym.toy_games:toy/Race-v0", goal=7)(), Race)
    with pytest.raises(ConfigError, match="needs a module that there is not: No module named 'nowhere'"):
        game_maker("nowhere:toy/Race-v0")
    with pytest.raises(ConfigError, match=r"no game `art/2048Duel-v1`; did you mean `art/2048Duel-v0`"):
        game_maker("art/2048Duel-v1")
    with pytest.raises(ConfigError, match=r"cannot be made with board_size=2: board size must be from 3"):
        game_maker(DUEL, board_size=2)


def test_the_duel_is_played_against_itself_from_end_to_end(tmp_path: Path) -> None:
    words = ["score", "legal", "none", "tile", ".", "up", "right", "down", "left"]
    words += [*map(str, (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 32)), *(f"[{cell}]" for cell in range(1, 10))]
    policy = word_policy(words)
    policy.max_context = 600
    config = settings(tmp_path, max_steps=2, eval_steps=2, eval_episodes=4)
    trainer = SelfPlayTrainer(policy, game_maker(DUEL, board_size=3, target=32, max_cycles=8), config)
    before = weights_of(policy)
    trainer.train()
    assert not torch.equal(weights_of(policy), before)
    lines = metrics_of(trainer)
    assert [line["step"] for line in lines] == [0, 1, 2]
    opponents = [(SLIDER, "random"), (SLIDER, "worst"), (PLACER, "greedy"), (PLACER, "left-down-right-down")]
    for name, opponent in opponents:
        assert f"eval_{name}_vs_{opponent}_reward" in lines[0]
    assert lines[1][f"{SLIDER}/turns"] > 3
    assert lines[1]["trained_tokens"] > 0
    assert read_episodes(trainer.log.folder, 1)[0].env_id == "2048Duel-v0:slider_0"
