"""HTTP requests of sinks: every failure is a :class:`SinkError` without secrets."""

from __future__ import annotations

import ssl
from collections.abc import Mapping

import httpx2

from art_trainer.tracking.sinks.base import EventRefusedError, SinkError, SinkUnavailableError
from art_trainer.tracking.sinks.redaction import Redactor

_PERMANENT = (400, 413, 422)
"""Bad request, too large, cannot be processed: the same request gets the same answer."""
_SHOWN = 200  # characters of a server's answer
_READ = 10_000  # of those that are looked at


class HttpClient:
    """Posts to one service.

    Args:
        redactor: Masks secrets in messages.
        headers: Of each request.
        timeout: Seconds without an answer after which a request fails.
        certificate: PEM file with the authority that signed the server's certificate; ``None``: the system's.
    """

    def __init__(
        self, redactor: Redactor, headers: Mapping[str, str], timeout: float, certificate: str | None = None
    ) -> None:
        self._redactor = redactor
        verify = True if certificate is None else ssl.create_default_context(cafile=certificate)
        self._client = httpx2.Client(headers=dict(headers), timeout=timeout, verify=verify)
        self.close = self._client.close

    def post(self, url: str, content: str | bytes, content_type: str, **headers: str) -> httpx2.Response:
        """Post and return the answer of a success.

        Raises:
            SinkUnavailableError: If the key was refused.
            EventRefusedError: If the content was refused and always will be.
            SinkError: For any other failure.
        """
        try:
            reply = self._client.post(url, content=content, headers={"Content-Type": content_type, **headers})
        except httpx2.HTTPError as fault:
            # `from None`: the cause may hold a URL with a password.
            raise SinkError(f"nothing was delivered: {self._redactor(repr(fault))}") from None
        if reply.is_success:
            return reply
        status, answer = reply.status_code, f"HTTP {reply.status_code}: {self.excerpt(reply.text)}"
        if status in (401, 403):
            raise SinkUnavailableError(f"the server refused the key, {answer}")
        kind = EventRefusedError if status in _PERMANENT else SinkError
        raise kind(f"the server answered {answer}")

    def excerpt(self, text: object) -> str:
        """The beginning of a server's answer, on one line and without secrets."""
        # Masked before the cut, which could leave a part of a secret.
        return " ".join(self._redactor(str(text)[:_READ]).split())[:_SHOWN]

    def unexpected(self, reply: httpx2.Response) -> SinkError:
        """The error for an answer that has a good status, but does not come from the service's API."""
        return SinkError(f"unexpected answer of the server, which begins {self.excerpt(reply.text)!r}")
