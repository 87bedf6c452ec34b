"""Prompts of the trained policy, rendered for workers that cannot, and checked in what workers send."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from fastapi import APIRouter
from jinja2 import TemplateError

from art_trainer.distributed.protocol import Prompt, PromptRequest
from art_trainer.inference.sampling import SamplingParams, StopStrings
from art_trainer.inference.transformers_policy import TransformersPolicy
from art_trainer.models.chat_template import ChatFormat, Message, Reading, TokenHistoryBuilder
from art_trainer.rollout.episodes import first_messages
from art_trainer.serving.http.middleware import ApiError
from art_trainer.types import Episode

_CHECKED_TURNS = 2
"""Prompts that are compared: a worker that renders the first two correctly renders the others so."""
_REFUSED = "the model's chat template refuses this conversation or its tools"
_PARAGRAPHS = 64
"""Places in a first observation at which its instructions may end."""


class PromptRenderer:
    """Turns observations into a policy's prompts, for any thread.

    Args:
        policy: The policy; its tokenizer is copied.
        sampling: How replies are sampled, for what a prompt has to leave room.
    """

    def __init__(self, policy: TransformersPolicy, sampling: SamplingParams) -> None:
        # A copy: the learner's thread uses the other one, and tokenizers are not thread-safe.
        tokenizer = copy.deepcopy(policy.tokenizer)
        self._chat = ChatFormat(tokenizer, history_window=policy.format.history_window)
        self._ends = policy.stop_token_ids
        self._stops = StopStrings(sampling.stop_strings, self._chat.decode)
        limit = policy.max_context
        self._longest = None if limit is None else limit - sampling.max_new_tokens
        self._longest_token = max(map(len, tokenizer.get_vocab()))
        self._system = ""
        """The instructions of the last episode that matched."""
        self._lock = threading.Lock()

    def router(self) -> APIRouter:
        """The route that renders."""
        router = APIRouter()
        router.add_api_route("/prompt", self.render, methods=["POST"])
        return router

    def render(self, request: PromptRequest) -> Prompt:
        """Return the tokens that the newest observation of a conversation adds to the context.

        Raises:
            ApiError: The chat template refuses the conversation or its tools.
        """
        turns = [(turn.tokens, turn.observation) for turn in request.turns]
        messages = first_messages(request.observation, request.system)
        try:
            with self._lock:
                _, reading = self._replay(messages, request.tools, turns)
        except (TemplateError, TypeError) as error:
            raise ApiError(f"{_REFUSED}: {error}") from error
        if reading is None:
            return Prompt(tokens=[], restarted=False, full=True)
        return Prompt(tokens=reading.token_ids, restarted=reading.restarted, full=False)

    def error(self, episode: Episode) -> str | None:
        """Return why an episode's first prompts are not this policy's, or ``None``."""
        replies: dict[int | None, tuple[int, ...]] = {}
        for span in (span for history in episode.histories for span in history.spans):
            replies.setdefault(span.turn, span.token_ids)
        count = next((n for n in range(_CHECKED_TURNS) if not replies.get(n)), _CHECKED_TURNS)
        if episode.failed or count == 0 or count > len(episode.turns):
            return None
        turns = [(replies[n], episode.turns[n].observation) for n in range(count)]
        try:
            with self._lock:
                for system in self._possible_systems(episode.observation):
                    if self._is_read(episode, system, turns):
                        self._system = system
                        return None
        except (TemplateError, TypeError) as error:
            return f"{_REFUSED}: {error}"
        if episode.observation.count("\n\n") > _PARAGRAPHS:
            return None  # its instructions may end further on
        return (
            "its prompts are not those that the server makes of its observations: ask POST /prompt for their "
            "tokens, or install the server's versions of transformers and tokenizers"
        )

    def _possible_systems(self, observation: str) -> Iterator[str]:
        """Yield the instructions that an observation may begin with: the result does not tell."""
        if self._system and observation.startswith(f"{self._system}\n\n"):
            yield self._system
        yield ""
        ends = (place for place in range(len(observation)) if observation.startswith("\n\n", place))
        yield from (observation[:end] for end in islice(ends, _PARAGRAPHS))

    def _is_read(self, episode: Episode, system: str, turns: Sequence[tuple[Sequence[int], str]]) -> bool:
        """Whether an episode's contexts are those of a replay, up to the last of these replies."""
        messages = first_messages(episode.observation, system)
        history, _ = self._replay(messages, episode.tools, turns, last=False)
        wanted = [one.token_ids for one in history.finish()]
        found = [one.token_ids for one in episode.histories[: len(wanted)]]
        if len(wanted) == len(found):
            found[-1] = found[-1][: len(wanted[-1])]
        return wanted == found

    def _replay(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        turns: Sequence[tuple[Sequence[int], str]],
        *,
        last: bool = True,
    ) -> tuple[TokenHistoryBuilder, Reading | None]:
        """Read a conversation as the policy does.

        Args:
            messages: The first messages.
            tools: Tool schemas.
            turns: The tokens of each reply, and the observation after it.
            last: Whether the observation after the last reply is read.

        Returns:
            The histories, and what the newest observation added; ``None`` if it does not fit.
        """
        history, dialog = TokenHistoryBuilder(), list[Message](messages)
        reading = self._read(history, dialog, tools)
        for number, (tokens, observation) in enumerate(turns, 1):
            stopped = tokens[-1] in self._ends
            text = history.append_reply(self._chat, tokens, [0.0] * len(tokens), stopped=stopped, version=0)
            if not stopped:
                text = self._stops.cut(text)
            dialog += [{"role": "assistant", "content": text}, {"role": "user", "content": observation}]
            if reading is not None and (last or number < len(turns)):
                reading = self._read(history, dialog, tools)
        return history, reading

    def _read(
        self, history: TokenHistoryBuilder, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]
    ) -> Reading | None:
        if self._longest is not None and len(messages[-1]["content"]) > self._longest * self._longest_token:
            return None
        return history.append_observation(self._chat, messages, tools, longest=self._longest, version=0)
