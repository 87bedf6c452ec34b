"""What a server's reply means to a sink that cannot use it."""

from __future__ import annotations

from art_trainer.monitoring.events import EventRefusedError, SinkError, SinkUnavailableError
from art_trainer.monitoring.redaction import Redactor

_LONGEST = 200  # characters of a server's words that are shown
_READ = 10_000  # of those that are looked at
ABOUT_THE_REQUEST = (400, 413, 422)
"""Bad request, too large, cannot be processed: the same again has the same answer."""


def excerpt(words: object, redactor: Redactor) -> str:
    """The beginning of a server's words, on one line and without secrets.

    Args:
        words: A reply's body, of any length.
        redactor: Masks the secrets, before a cut could leave a part of one.
    """
    return " ".join(redactor(str(words)[:_READ]).split())[:_LONGEST]


def refusal(status: int, words: object, redactor: Redactor) -> SinkError:
    """The error for an HTTP status that is no success.

    Args:
        status: As the server sent it.
        words: The reply's body; its beginning is shown.
        redactor: Masks the secrets in it.

    Returns:
        A :class:`SinkUnavailableError` where the key was refused, which another try would not change, and an
        :class:`EventRefusedError` where what was sent was refused for what it is.
    """
    shown = excerpt(words, redactor)
    told = f": {shown}" if shown else ""
    if status in (401, 403):
        return SinkUnavailableError(f"the server refused the key (HTTP {status}){told}")
    kind = EventRefusedError if status in ABOUT_THE_REQUEST else SinkError
    return kind(f"the server answered HTTP {status}{told}")


def nonsense(what: str, words: object, redactor: Redactor) -> SinkError:
    """The error for a reply that is a success by its status and not one of the API's by its body.

    Args:
        what: What was sent, in the plural.
        words: The reply's body; its beginning is shown.
        redactor: Masks the secrets in it.
    """
    return SinkError(f"the server's reply to {what} is not its API's: it begins {excerpt(words, redactor)!r}")
