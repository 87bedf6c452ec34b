"""What policies with tokens have in common: settings that hold as long as a conversation is live."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import nn
from transformers import PreTrainedTokenizerBase

from art_trainer.chat import ChatFormat
from art_trainer.sampler import SamplingParams
from art_trainer.stop_strings import StopStrings
from art_trainer.token_thread import turn_stops


class TokenPolicy(ABC):
    """A policy that samples tokens; how it does is up to those below.

    Attributes:
        format: How messages become tokens.
        tokenizer: The format's tokenizer.
    """

    format: ChatFormat
    tokenizer: PreTrainedTokenizerBase
    _version: int
    _sampling: SamplingParams
    _stop_strings: StopStrings | None

    @property
    def version(self) -> int:
        """Counts updates of the weights; may change only while no conversation is live."""
        return self._version

    @version.setter
    def version(self, value: int) -> None:
        self._require_idle("the weights' version")
        self._set_version(value)

    @property
    def sampling(self) -> SamplingParams:
        """How replies are sampled; may change only while no conversation is live."""
        return self._sampling

    @sampling.setter
    def sampling(self, value: SamplingParams) -> None:
        self._require_idle("sampling")
        self._set_sampling(value)

    @property
    def stop_token_ids(self) -> frozenset[int]:
        """All tokens that end a turn: the template's, the tokenizer's, the model's and the caller's."""
        return turn_stops(self.format, self.tokenizer, self._weights(), self._sampling.stop_token_ids)

    def _set_version(self, value: int) -> None:
        self._version = value

    def _set_sampling(self, value: SamplingParams) -> None:
        self._sampling = value
        strings = value.stop_strings
        self._stop_strings = StopStrings(strings, self.format.decode) if strings else None

    def _require_idle(self, what: str) -> None:
        live = self._count_live()
        if live:
            raise RuntimeError(
                f"{what} cannot change while {live} conversations are live, which began with the old; "
                "release them first"
            )

    @abstractmethod
    def _weights(self) -> nn.Module | None:
        """The model, where there is one in this process."""

    @abstractmethod
    def _count_live(self) -> int:
        """How many conversations are under way."""
