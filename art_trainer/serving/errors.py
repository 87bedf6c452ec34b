"""Errors of sampling that a client is told in OpenAI's form."""

from __future__ import annotations

from art_trainer.web.errors import ApiError


class ContextFull(ApiError):
    """A context with no room left for a reply.

    Args:
        limit: Most tokens of a context and its reply.
        reply: Most tokens the reply may have.
        param: Where the context came from.
    """

    def __init__(self, limit: int, reply: int, param: str = "messages") -> None:
        # Begins with OpenAI's own words, by which libraries recognise it.
        super().__init__(
            f"this model's maximum context length is {limit} tokens, and the {param} leave less than the "
            f"{reply} that a reply may have: shorten the {param}, or ask for fewer tokens",
            code="context_length_exceeded",
            param=param,
        )


class ModelNotFound(ApiError):
    """A request for a model that is not served."""

    def __init__(self, words: str) -> None:
        super().__init__(words, status=404, code="model_not_found", param="model")


class Overloaded(ApiError):
    """More requests than the server is ready to keep waiting."""

    def __init__(self, waiting: int) -> None:
        super().__init__(
            f"{waiting} replies are waited for already: ask again later",
            status=429,
            code="rate_limit_exceeded",
            kind="rate_limit_error",
        )


class ShuttingDown(ApiError):
    """A request that came while the server stops."""

    def __init__(self) -> None:
        super().__init__("the server is shutting down", status=503, code="shutting_down", kind="server_error")


class SamplingFailed(ApiError):
    """The policy broke while it sampled."""

    def __init__(self, words: str) -> None:
        super().__init__(f"the policy failed: {words}", status=500, code="policy_error", kind="server_error")
