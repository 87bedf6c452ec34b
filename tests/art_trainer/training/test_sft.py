import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from art_trainer.errors import ConfigError, DivergedError
from art_trainer.inference.sampling import SamplingParams
from art_trainer.rollout.evaluate import evaluate
from art_trainer.training import sft
from art_trainer.training.demonstrations import KEEP, Demonstration, collect_demonstrations
from art_trainer.training.sft import ImitationConfig, imitate, warm_start
from art_trainer.types import Episode, EpisodeSpec
from tests.art_trainer.guess import GuessEnv, guess_policy, seeds
from tests.art_trainer.updates import weights_of


def starts(count: int) -> list[EpisodeSpec]:
    return [EpisodeSpec(seed, group=i, rng_seed=i) for i, seed in enumerate(seeds(count))]


def talk(episode: Episode) -> list[dict[str, str]]:
    """The episode's messages."""
    messages = [{"role": "user", "content": episode.observation}]
    for turn in episode.turns:
        messages.append({"role": "assistant", "content": turn.reply})
        messages.append({"role": "user", "content": turn.observation})
    return messages


def test_demonstrations_are_what_the_policy_would_have_read_and_sampled() -> None:
    policy = guess_policy()
    for episode in collect_demonstrations(policy, GuessEnv, "bisect", starts(8)):
        (history,) = episode.histories
        assert episode.success
        assert list(history.token_ids) == policy.format.encode(policy.format.render(talk(episode)[:-1]))
        sampled = [(span.turn, list(span.token_ids)) for span in history.spans if span.turn is not None]
        assert sampled == [(n, policy.format.reply(turn.reply)) for n, turn in enumerate(episode.turns)]


def test_where_the_model_plays_the_players_replies_are_written_down() -> None:
    policy = guess_policy(history_window=1, max_new_tokens=1)
    episodes = collect_demonstrations(policy, GuessEnv, "oracle", starts(40), on_policy=True)
    refused = strayed = 0
    for episode in episodes:
        hidden = episode.task_id.removeprefix("number-")
        assert len(episode.histories) == len(episode.turns)
        for turn, history in zip(episode.turns, episode.histories, strict=True):
            prompt, reply = history.spans
            assert list(reply.token_ids) == policy.format.reply(hidden)
            assert prompt.turn is None
            assert turn.error is None
            strayed += turn.reply != hidden
            refused += turn.observation == "BAD"
    # The replies that were refused are the model's; what is imitated in their place is the player's.
    assert strayed > refused > 0
    policy.version += 1  # nothing is left of the conversations


def test_a_disturbed_player_is_still_written_down() -> None:
    policy = guess_policy(history_window=1)
    replies = strayed = 0
    for episode in collect_demonstrations(policy, GuessEnv, "oracle", starts(40), noise=1.0):
        hidden = episode.task_id.removeprefix("number-")
        for turn, history in zip(episode.turns, episode.histories, strict=True):
            assert list(history.spans[1].token_ids) == policy.format.reply(hidden)
            replies += 1
            strayed += turn.reply != hidden
    # Each episode draws its share of random replies from 0 to 1; one in 16 random guesses is right.
    assert 0.3 < strayed / replies < 0.8


def test_where_the_model_plays_the_context_shows_what_it_replied() -> None:
    policy = guess_policy(max_new_tokens=1)
    episodes = collect_demonstrations(policy, GuessEnv, "oracle", starts(40), on_policy=True)
    longest = max(episodes, key=lambda episode: len(episode.turns))
    assert len(longest.turns) == len(longest.histories) > 1
    for turn, history in enumerate(longest.histories):
        assert list(history.spans[0].token_ids) == policy.format.prompt(talk(longest)[: 2 * turn + 1])


def test_only_the_episodes_asked_for_are_kept() -> None:
    def found(keep: Any) -> int:
        return len(collect_demonstrations(guess_policy(), GuessEnv, "bisect", starts(20), keep=keep))

    assert 0 < found(lambda episode: len(episode.turns) <= 2) < 20
    assert collect_demonstrations(guess_policy(), GuessEnv, "broken", starts(3)) == []
    assert collect_demonstrations(guess_policy(), GuessEnv, "broken", starts(3), on_policy=True) == []
    with pytest.raises(ValueError, match="noise"):
        collect_demonstrations(guess_policy(), GuessEnv, "bisect", starts(1), noise=1.5)
    with pytest.raises(ValueError, match="the policy plays"):
        collect_demonstrations(guess_policy(), GuessEnv, "oracle", starts(1), noise=0.5, on_policy=True)


def test_imitation_reports_its_steps() -> None:
    policy = guess_policy(hidden=16)
    shown = collect_demonstrations(policy, GuessEnv, "bisect", starts(24))
    steps: list[dict[str, float]] = []
    config = ImitationConfig(epochs=6, batch_size=12, learning_rate=1e-2)
    losses = imitate(policy, shown, config, rng=np.random.default_rng(0), on_step=steps.append)
    assert [step["loss"] for step in steps] == losses
    assert [(step["step"], step["steps"]) for step in steps] == [(n, 12) for n in range(1, 13)]
    assert steps[-1]["learning_rate"] < steps[0]["learning_rate"] / 4
    assert policy.version == 1


def test_episodes_without_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match="none of the 0 episodes has a valid reply"):
        imitate(guess_policy(hidden=16), [], rng=np.random.default_rng(0))


def test_weights_that_are_no_numbers_end_it() -> None:
    policy = guess_policy(hidden=16)
    shown = collect_demonstrations(policy, GuessEnv, "bisect", starts(4))
    next(policy.model.parameters()).data.fill_(float("nan"))
    with pytest.raises(DivergedError, match="lower learning_rate"):
        imitate(policy, shown, ImitationConfig(epochs=20), rng=np.random.default_rng(0))


TEACHING = ImitationConfig(epochs=20, batch_size=24, learning_rate=1e-2)


def test_a_warm_start_teaches_what_the_player_does() -> None:
    policy = guess_policy(hidden=32)
    losses = warm_start(policy, GuessEnv, "bisect", episodes=48, seed=0, config=TEACHING)
    assert losses[-1] < losses[0] / 4
    policy.sampling = SamplingParams(temperature=0.0, max_new_tokens=2)
    result = evaluate(policy, GuessEnv, episodes=32, seed=1)
    assert result.success.value >= 0.6


def test_a_warm_start_goes_on_with_what_the_model_plays(caplog: pytest.LogCaptureFixture) -> None:
    policy = guess_policy(hidden=32)
    rates: list[float] = []
    with caplog.at_level("INFO"):
        warm_start(
            policy,
            GuessEnv,
            "oracle",
            episodes=24,
            rounds=3,
            seed=0,
            config=ImitationConfig(epochs=2, batch_size=8, learning_rate=1e-2),
            on_step=lambda step: rates.append(step["learning_rate"]),
        )
    assert policy.version == 3
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 1e-2
    assert rates[-1] < 3e-3
    first, second, third = caplog.messages
    assert re.search(r"round 1 of 3: \d+ replies of oracle in 24 episodes that it played", first)
    assert "that the model played" in second
    assert "round 3 of 3" in third


def test_a_warm_start_may_imitate_successes_alone(caplog: pytest.LogCaptureFixture) -> None:
    keep = KEEP["successes"]
    with caplog.at_level("INFO"):
        warm_start(guess_policy(hidden=16), GuessEnv, "random", episodes=24, seed=0, keep=keep)
    (found,) = re.findall(r"in (\d+) episodes", caplog.text)
    assert 0 < int(found) < 24
    with pytest.raises(ConfigError, match="none of 3 episodes of `broken` is kept"):
        warm_start(guess_policy(hidden=16), GuessEnv, "broken", episodes=3, seed=0)


def test_the_same_seed_gives_the_same_weights() -> None:
    weights = []
    for _ in range(2):
        policy = guess_policy(hidden=16)
        warm_start(policy, GuessEnv, "oracle", episodes=6, rounds=2, noise=0.5, seed=5, config=TEACHING)
        weights.append(weights_of(policy.model))
    assert torch.equal(*weights)


@pytest.mark.parametrize(
    ("wins", "others", "wanted"),
    [
        (0, 0.0, [[False] * 8]),
        (5, 0.0, [[True] * 5 + [False] * 3]),
        (1, 0.5, [[True] + [False] * 7]),
        (1, 0.0, [[True] + [False] * 7, [True] * 8, [True] * 8, [True] * 8]),
    ],
)
def test_few_successes_are_imitated_alone_once_replies_are_valid(
    monkeypatch: pytest.MonkeyPatch, wins: int, others: float, wanted: list[list[bool]]
) -> None:
    """Of the 16 episodes of each round that many succeed, the others earn that; half of all are kept."""
    imitated: list[list[bool]] = []
    played = collect_demonstrations(guess_policy(), GuessEnv, "bisect", starts(16))
    every = [
        replace(one, turns=(replace(one.turns[-1], reward=2.0 if n < wins else others),), success=n < wins)
        for n, one in enumerate(played)
    ]
    monkeypatch.setattr(sft, "play_within", lambda *args: [Demonstration(one, (), (), ()) for one in every])
    monkeypatch.setattr(sft, "rollout_episodes", lambda *args: every)
    monkeypatch.setattr(
        sft, "imitate", lambda _, shown, *args, **options: imitated.append([bool(e.success) for e in shown])
    )
    monkeypatch.setattr(sft, "_BEST", 0.5)
    sft.imitate_until_valid(guess_policy(), GuessEnv, ["random"], seed=0)
    assert imitated == wanted


def test_later_turns_are_imitated_too_if_the_best_episodes_do_not_show_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    imitated: list[list[int]] = []
    played = collect_demonstrations(guess_policy(), GuessEnv, "random", starts(16))
    turn = replace(played[0].turns[-1], error=None)
    lucky, usual = (replace(played[0], turns=(turn,) * count) for count in (1, 4))
    lucky = replace(lucky, turns=(replace(turn, reward=9.0),), success=True)
    refused = replace(usual, turns=(replace(turn, error={"kind": "no call", "message": ""}),) * 4)
    shown = [Demonstration(one, (), (), ()) for one in [usual] * 12 + [lucky] * 4]
    monkeypatch.setattr(sft, "play_within", lambda *args: shown)
    monkeypatch.setattr(sft, "rollout_episodes", lambda *args: [refused])
    monkeypatch.setattr(
        sft, "imitate", lambda _, shown, *args, **options: imitated.append([len(e.turns) for e in shown])
    )
    monkeypatch.setattr(sft, "_BEST", 0.25)
    sft.imitate_until_valid(guess_policy(), GuessEnv, ["random"], seed=0)
    assert imitated == [[1] * 4] * 4 + [[1, 1, 4, 4]] * 4
