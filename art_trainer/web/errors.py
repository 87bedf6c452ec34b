"""Errors that a client is told, in the form of OpenAI's API on every server."""

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


class BodyTooLarge(ApiError):
    """A request with a body above the limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"the body is larger than {limit} bytes", status=413, code="body_too_large")
