import pytest

from art_trainer.demonstrations import collect_demonstrations
from art_trainer.starts import Start
from tests.art_trainer.guess import GuessEnv, guess_policy, seeds


def starts(count: int) -> list[Start]:
    return [Start(seed, group=i, rng_seed=i) for i, seed in enumerate(seeds(count))]


def test_demonstrations_are_what_the_policy_would_have_read_and_sampled() -> None:
    policy = guess_policy()
    for episode in collect_demonstrations(policy, GuessEnv, "bisect", starts(8)):
        (history,) = episode.histories
        assert episode.success
        messages = [{"role": "user", "content": episode.observation}]
        for turn in episode.turns:
            messages += [
                {"role": "assistant", "content": turn.reply},
                {"role": "user", "content": turn.observation},
            ]
        rendered = policy.format.render(messages[:-1])
        assert list(history.token_ids) == policy.format.encode(rendered)
        replies = [policy.format.reply(turn.reply) for turn in episode.turns]
        sampled = [list(span.token_ids) for span in history.spans if span.turn is not None]
        assert sampled == replies
        assert [span.turn for span in history.spans if span.turn is not None] == list(range(len(replies)))


def test_only_the_episodes_asked_for_are_kept() -> None:
    policy = guess_policy()
    found = collect_demonstrations(
        policy, GuessEnv, "bisect", starts(20), keep=lambda episode: len(episode.turns) <= 2
    )
    assert 0 < len(found) < 20
    assert all(len(episode.turns) <= 2 for episode in found)


def test_with_a_window_each_demonstrated_turn_is_a_history_of_its_own() -> None:
    policy = guess_policy(history_window=1)
    for episode in collect_demonstrations(policy, GuessEnv, "bisect", starts(6)):
        assert [history.turns[0] for history in episode.histories] == list(range(len(episode.turns)))
        observations = [episode.observation, *(turn.observation for turn in episode.turns)]
        for history, observation in zip(episode.histories, observations, strict=False):
            prompt = list(history.spans[0].token_ids)
            assert prompt == policy.format.prompt([{"role": "user", "content": observation}])


def test_a_disturbed_player_is_still_written_down() -> None:
    policy = guess_policy(history_window=1)
    episodes = collect_demonstrations(policy, GuessEnv, "oracle", starts(40), noise=1.0)
    replies = strayed = 0
    for episode in episodes:
        hidden = episode.task_id.removeprefix("number-")
        assert len(episode.histories) == len(episode.turns)
        for turn, history in zip(episode.turns, episode.histories, strict=True):
            prompt, reply = history.spans
            assert list(reply.token_ids) == policy.format.reply(hidden)
            assert prompt.turn is None
            replies += 1
            strayed += turn.reply != hidden
    # Each episode draws its share of random replies from 0 to 1; one in 16 random guesses is right.
    assert 0.3 < strayed / replies < 0.8


def test_after_a_stray_reply_the_context_shows_what_was_played() -> None:
    policy = guess_policy()
    episodes = collect_demonstrations(policy, GuessEnv, "oracle", starts(40), noise=1.0)
    longest = max(episodes, key=lambda episode: len(episode.turns))
    assert len(longest.turns) == len(longest.histories) > 1
    messages = [{"role": "user", "content": longest.observation}]
    for turn, history in zip(longest.turns, longest.histories, strict=True):
        assert list(history.spans[0].token_ids) == policy.format.prompt(messages)
        messages += [
            {"role": "assistant", "content": turn.reply},
            {"role": "user", "content": turn.observation},
        ]


def test_noise_beyond_all_replies_is_refused() -> None:
    with pytest.raises(ValueError, match=r"noise is a share from 0 to 1, got 1\.5"):
        collect_demonstrations(guess_policy(), GuessEnv, "bisect", starts(1), noise=1.5)


def test_a_player_that_fails_shows_nothing() -> None:
    assert collect_demonstrations(guess_policy(), GuessEnv, "broken", starts(3)) == []
