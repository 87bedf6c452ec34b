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
    """A context with no room left for a reply.

    Args:
        limit: Most tokens of a context and its reply.
        reply: Most tokens the reply may have.
        param: Where the context came from.
    """

    def __init__(self, limit: int, reply: int, param: str = "messages") -> None:
        super().__init__(
            f"this model's context holds {limit} tokens, and the {param} leave less than the {reply} that "
            f"a reply may have: shorten the {param}, or ask for fewer tokens",
            code="context_length_exceeded",
            param=param,
        )


class BodyTooLarge(ApiError):
    """A request with a body above the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes", status=413, code="body_too_large")


class SamplingFailed(ApiError):
    """The policy broke while it sampled."""

    def __init__(self, words: str) -> None:
        super().__init__(f"the policy failed: {words}", status=500, code="policy_error", kind="server_error")
