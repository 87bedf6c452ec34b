"""A request under way: its replies as they grow in the sampler's thread, seen from an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence

from art_trainer.decoding import Alternatives
from art_trainer.serving.errors import ModelNotFound, SamplingFailed, ShuttingDown
from art_trainer.serving.live_sampler import Abandoned, Question, Sampled, TokenRun, VersionGone


class Choice:
    """One of a request's replies.

    Args:
        question: What was asked.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._alternatives: list[Alternatives] = []

    @property
    def done(self) -> bool:
        """Whether the reply, or the fault, is there."""
        return self.question.answer.done()

    @property
    def token_ids(self) -> Sequence[int]:
        """The tokens so far, where the request follows them; without one that ends the turn."""
        return self._token_ids

    def run(self, start: int) -> TokenRun:
        """The tokens so far from a place on, with what is known of them."""
        return TokenRun(self._token_ids[start:], self._logprobs[start:], self._alternatives[start:])

    def sampled(self) -> Sampled:
        """The reply, when it is done.

        Raises:
            ApiError: There is none, for a reason the client is told.
        """
        try:
            return self.question.answer.result()
        except Abandoned:
            raise ShuttingDown from None
        except VersionGone as gone:
            words = f"version {self.question.version} is not loaded: {gone.present} is"
            raise ModelNotFound(words) from None
        except Exception as fault:  # whatever the model raised: the client is told
            raise SamplingFailed(f"{type(fault).__name__}: {fault}") from fault

    def grow(self, token: int, logprob: float, noted: Alternatives | None) -> None:
        """Take one more token."""
        self._token_ids.append(token)
        self._logprobs.append(logprob)
        if noted is not None:
            self._alternatives.append(noted)


class Asked:
    """A request's replies; made in the event loop that waits for them.

    Args:
        choices: The replies.
        release: Called with the replies when nobody waits any more.

    Attributes:
        choices: The replies.
        grown: Set when one has more tokens, or is done.
    """

    def __init__(self, choices: Sequence[Choice], release: Callable[[Sequence[Choice]], None]) -> None:
        self.choices = choices
        self.grown = asyncio.Event()
        self._release = release
        self._loop = asyncio.get_running_loop()
        for choice in choices:
            choice.question.answer.add_done_callback(lambda answer: self._post(self.grown.set))

    def follow(self) -> None:
        """Have the choices grow token by token; called before anything is sampled."""
        for choice in self.choices:
            choice.question.on_token = self._teller(choice)

    async def begun(self) -> int:
        """Wait until something is sampled, and return the version of the weights that do.

        Raises:
            ApiError: Nothing is, for a reason the client is told.
        """
        while True:
            self.grown.clear()
            for choice in self.choices:
                if choice.done:
                    return choice.sampled().version
                if choice.question.sampled_by is not None and choice.token_ids:
                    return choice.question.sampled_by
            await self.grown.wait()

    async def replies(self) -> list[Sampled]:
        """Wait for all replies.

        Raises:
            ApiError: There are none, for a reason the client is told.
        """
        for choice in self.choices:
            while not choice.done:
                self.grown.clear()
                await self.grown.wait()
        return [choice.sampled() for choice in self.choices]

    def close(self) -> None:
        """Give up what is not done, and let others use what was kept for the rest."""
        for choice in self.choices:
            choice.question.unwanted = True
        self._release(self.choices)

    def _teller(self, choice: Choice) -> Callable[[Sequence[int]], None]:
        sequence = choice.question.sequence

        def tell(token_ids: Sequence[int]) -> None:
            noted = sequence.choosing.noted if sequence.choosing is not None else []
            newest = noted[-1] if noted else None
            self._post(self._grow, choice, token_ids[-1], sequence.logprobs[-1], newest)

        return tell

    def _grow(self, choice: Choice, token: int, logprob: float, noted: Alternatives | None) -> None:
        choice.grow(token, logprob, noted)
        self.grown.set()

    def _post(self, call: Callable[..., None], *values: object) -> None:
        """Call something in the event loop, from the sampler's thread."""
        with contextlib.suppress(RuntimeError):  # a loop that has ended waits for nothing
            self._loop.call_soon_threadsafe(call, *values)
