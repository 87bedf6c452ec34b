"""Errors that a client is told in OpenAI's form."""

from __future__ import annotations

from typing import Any

from art_trainer.errors import TrainerError


class ApiError(TrainerError, ValueError):
    """A request that cannot be answered; the message goes to the client.

    Attributes:
        status: The HTTP status.
        code: A short name of the fault, such as ``context_length_exceeded``.
        param: Which field of the request is at fault.
        kind: OpenAI's ``type`` of the error.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        code: str | None = None,
        param: str | None = None,
        kind: str = "invalid_request_error",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param
        self.kind = kind

    def to_json(self) -> dict[str, Any]:
        """The answer's body."""
        return {
            "error": {"message": str(self), "type": self.kind, "param": self.param, "code": self.code},
        }


class ContextFull(ApiError):
    """A conversation with no room left for a reply."""

    def __init__(self, limit: int, reply: int) -> None:
        super().__init__(
            f"this model's context holds {limit} tokens, and the messages leave less than the {reply} that "
            "a reply may have: shorten the messages, or ask for fewer tokens",
            code="context_length_exceeded",
            param="messages",
        )


class EpisodeOver(ApiError):
    """A request under an episode that has its reward, or was given up."""

    def __init__(self) -> None:
        super().__init__("this episode is over: it takes no more requests", status=410, code="episode_over")


class SamplingFailed(ApiError):
    """The policy broke while it sampled."""

    def __init__(self, words: str) -> None:
        super().__init__(f"the policy failed: {words}", status=500, code="policy_error", kind="server_error")
