from art_trainer.demonstrations import collect_corrections, collect_demonstrations
from art_trainer.rollout import Start
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


def test_corrections_are_what_the_player_would_have_said_where_the_policy_stood() -> None:
    policy = guess_policy(history_window=1)
    episodes = collect_corrections(policy, GuessEnv, "oracle", starts(40))
    hidden = {episode.seed: int(episode.task_id.removeprefix("number-")) for episode in episodes}
    wrong = 0
    for episode in episodes:
        assert len(episode.histories) == len(episode.turns)
        for turn, history in zip(episode.turns, episode.histories, strict=True):
            prompt, reply = history.spans
            assert list(reply.token_ids) == policy.format.reply(str(hidden[episode.seed]))
            assert prompt.turn is None
            wrong += turn.reply != str(hidden[episode.seed])
    assert wrong > 30  # the policy, of random weights, really played itself


def test_corrections_of_a_whole_conversation_show_the_policys_own_replies() -> None:
    policy = guess_policy(max_new_tokens=1)
    episodes = collect_corrections(policy, GuessEnv, "oracle", starts(40))
    longest = max(episodes, key=lambda episode: len(episode.turns))
    assert len(longest.turns) > 1
    messages = [{"role": "user", "content": longest.observation}]
    for turn, history in zip(longest.turns, longest.histories, strict=True):
        assert list(history.spans[0].token_ids) == policy.format.prompt(messages)
        messages += [
            {"role": "assistant", "content": turn.reply},
            {"role": "user", "content": turn.observation},
        ]


def test_a_player_that_fails_ends_the_episode() -> None:
    assert collect_corrections(guess_policy(), GuessEnv, "broken", starts(3)) == []
