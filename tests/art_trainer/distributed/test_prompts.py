"""Prompts for workers that cannot render: those of the project's own rollouts, and no others are accepted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from art_trainer.distributed.prompts import PromptRenderer
from art_trainer.distributed.protocol import PromptRequest
from art_trainer.rollout.episodes import group_specs, rollout_groups
from art_trainer.serving.http.middleware import ApiError
from art_trainer.types import Episode, Span, TokenHistory
from tests.art_trainer.guess import GuessEnv, guess_policy, guess_tokenizer

ROLES = (
    "{% for m in messages %}{{ m['role'] ~ ' ' ~ m['content'] }}"
    "{{ '<end>' if m['role'] == 'assistant' else ' ' }}{% endfor %}"
)


class Instructed(GuessEnv):
    """Its observation begins with two paragraphs of instructions, and its guesses go on whatever they are."""

    def reset(self, **options: Any) -> tuple[str, dict[str, Any]]:
        observation, info = super().reset(**options)
        return f"1 2\n\n3 4\n\n{observation}", info | {"system": "1 2\n\n3 4"}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.turn += 1
        return "LOW", 0.0, False, self.turn == 4, {}


def changed(episode: Episode, history: int, span: int) -> Episode:
    """The episode with a token more in one span."""
    spans = list(episode.histories[history].spans)
    spans[span] = Span((*spans[span].token_ids, 3), policy_version=0)
    histories = list(episode.histories)
    histories[history] = TokenHistory(tuple(spans))
    return replace(episode, histories=tuple(histories))


@pytest.mark.parametrize("window", [None, 1])
@pytest.mark.parametrize("template", [None, ROLES])
def test_a_worker_gets_the_prompts_of_the_projects_own_rollouts(
    window: int | None, template: str | None
) -> None:
    tokenizer = guess_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    policy = guess_policy(hidden=16, tokenizer=tokenizer, history_window=window)
    renderer = PromptRenderer(policy, policy.sampling)
    for group in rollout_groups(policy, Instructed, group_specs(range(3), 2)):
        for episode in group.episodes:
            turns: list[dict[str, Any]] = []
            histories: list[list[int]] = []
            for turn in episode.turns:
                request = {"observation": episode.observation, "system": "1 2\n\n3 4", "turns": turns}
                prompt = renderer.render(PromptRequest.model_validate(request))
                spans = (span for history in episode.histories for span in history.spans)
                tokens = next(list(span.token_ids) for span in spans if span.turn == len(turns))
                histories += [[]] if prompt.restarted else []
                histories[-1] += [*prompt.tokens, *tokens]
                turns = [*turns, {"tokens": tokens, "observation": turn.observation}]
            assert histories == [list(history.token_ids) for history in episode.histories]
            assert renderer.error(episode) is None
            wrong = [
                changed(episode, 0, 0),
                changed(episode, *((0, 2) if len(episode.histories) == 1 else (1, 0))),
            ]
            assert ["ask POST /prompt" in str(renderer.error(one)) for one in wrong] == [True, True]


def test_a_prompt_that_leaves_no_room_for_a_reply_is_full() -> None:
    policy = guess_policy(hidden=16)  # of 64 tokens, 2 of them for the reply
    renderer = PromptRenderer(policy, policy.sampling)
    lengths = {words: renderer.render(PromptRequest(observation="1 " * words)) for words in (62, 63, 10**6)}
    assert [prompt.full for prompt in lengths.values()] == [False, True, True]


def test_tools_that_the_chat_template_refuses_are_the_workers_fault() -> None:
    tokenizer = guess_tokenizer()
    tokenizer.chat_template = "{% for t in tools or [] %}{{ t.function.name ~ ' ' }}{% endfor %}" + ROLES
    policy = guess_policy(hidden=16, tokenizer=tokenizer)
    renderer = PromptRenderer(policy, policy.sampling)
    with pytest.raises(ApiError, match="template refuses"):
        renderer.render(PromptRequest(observation="1", tools=[{"name": "no function"}]))
    (group,) = rollout_groups(policy, GuessEnv, group_specs([0], 1))
    wrong = replace(group.episodes[0], tools=({"name": "no function"},))
    assert "template refuses" in str(renderer.error(wrong))
