"""PettingZoo's tic-tac-toe as text, with self-play."""

import copy
import pickle
import warnings

import numpy as np
import pytest

pytest.importorskip("pygame")

from pettingzoo.classic.tictactoe import tictactoe

from art_gym.wrappers.adapters.tic_tac_toe import TicTacToe
from art_trainer.config import GRPOConfig
from art_trainer.inference.sampling import SamplingParams
from art_trainer.inference.scripted_policy import ScriptedPolicy
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.training.env_samples import game_texts
from art_trainer.training.scratch_model import ScratchSize, scratch_model
from art_trainer.training.self_play import SelfPlayTrainer, play_matches
from art_trainer.training.sft import ImitationConfig, imitate_players

with warnings.catch_warnings():
    # PettingZoo's own test module imports its classics by their old names.
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.test import api_test, seed_test


def test_same_game():
    """The same moves give the same game and rewards as in PettingZoo."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        game, raw = TicTacToe(), tictactoe.env()
        game.reset(seed=1)
        raw.reset(seed=1)
        while raw.agents:
            seen, reward, terminated, _, _ = raw.last()
            assert game.agent_selection == raw.agent_selection
            assert game.last()[1:3] == (reward, terminated)
            if terminated:
                raw.step(None)
                game.step(None)
                continue
            mask = seen["action_mask"]
            assert list(game.legal_choices(raw.agent_selection)) == [bool(allowed) for allowed in mask]
            move = int(rng.choice(np.flatnonzero(mask)))
            raw.step(move)
            game.step(str(move + 1))


def test_pettingzoo_accepts_it():
    """It passes PettingZoo's own tests, for text and for numbers."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for actions in ("text", "discrete"):
            api_test(TicTacToe(actions=actions), num_cycles=30)
        seed_test(lambda: TicTacToe(actions="discrete"), num_cycles=10)


def test_copies():
    """Snapshots, copies and pickles hold the position, which PettingZoo's classics themselves lose."""
    game = TicTacToe()
    game.reset(seed=0)
    game.step("4")
    state = game.snapshot()
    others = [copy.deepcopy(game), pickle.loads(pickle.dumps(game)), TicTacToe()]
    others[-1].restore(state)
    for other in others:
        assert other.cells == game.cells
        other.step("5")
        assert other.cells != game.cells


def test_illegal_moves():
    """An illegal move gets an error message and a penalty; PettingZoo ends the game."""
    game = TicTacToe()
    game.reset(seed=0)
    game.step("5")
    game.step("5")
    assert "5 is not possible now; possible: 1 2 3 4 6 7 8 9" in game.last()[0]["text"]
    assert game.last()[1] == -0.1
    assert game.agent_selection == "player_2"


def test_players():
    """Perfect tic-tac-toe never loses; win-or-block beats random play."""
    for seat in TicTacToe.seats:
        for match in play_matches({seat: ScriptedPolicy("perfect")}, TicTacToe, episodes=30, seed=1):
            assert all(episode.reward >= 0 for episode in match.episodes)
    players = {TicTacToe.seats[0]: ScriptedPolicy("win-or-block")}
    first, *_ = play_matches(players, TicTacToe, episodes=30, seed=1)
    assert first.opponent == "random"
    assert first.evaluation.reward.value > 0.5


def test_self_play(tmp_path):
    """Self-play trains a model on both seats: after a short imitation, two steps change the weights."""
    size = ScratchSize(layers=1, hidden_size=32, heads=4, vocabulary_size=400)
    model, tokenizer = scratch_model(game_texts(TicTacToe, seed=0), size=size)
    policy = TransformersPolicy(model, tokenizer, sampling=SamplingParams(max_new_tokens=2), history_window=1)
    learning = ImitationConfig(learning_rate=3e-3)
    imitate_players(policy, TicTacToe, TicTacToe.seats, "random", episodes=160, seed=0, config=learning)
    config = GRPOConfig(
        max_steps=2, groups_per_step=2, num_generations=4, max_completion_length=2, output_dir=str(tmp_path)
    )
    before = model.get_input_embeddings().weight.detach().clone()
    trainer = SelfPlayTrainer(policy, TicTacToe, config)
    trainer.train()
    trainer.close()
    assert not before.equal(model.get_input_embeddings().weight)
