"""The errors of the contract. Each also inherits the standard type it replaces, so old handlers work."""

from __future__ import annotations

import difflib
import os
import traceback
from collections.abc import Iterable
from pathlib import Path

_HERE = Path(__file__).resolve().parents[1]
_PACKAGES = [str(_HERE / name) for name in ("art_gym", "art_trainer", "envs", "wrappers")]
_NOT_THE_USERS = ("<", *_PACKAGES, os.path.dirname(os.__file__))
_INSTALLED = {"site-packages", "dist-packages"}


class ArtGymError(Exception):
    """Base of the errors raised by ``art_gym``."""


class ResetNeededError(ArtGymError, RuntimeError):
    """``step`` was called before ``reset`` or after the episode's end."""


class UnknownTaskError(ArtGymError, KeyError):
    """A task id or split does not exist."""

    def __str__(self) -> str:
        # KeyError would show the message's repr.
        return str(self.args[0]) if self.args else ""


class EnvLookupError(ArtGymError, LookupError):
    """A file has no such environment, or cannot be imported."""


class EnvArgumentError(ArtGymError, TypeError):
    """An environment does not take an argument of this name or type."""


class ToolDeclarationError(ArtGymError, TypeError):
    """A method marked with ``@tool`` cannot be offered as a tool."""


class ContractError(ArtGymError, AssertionError):
    """An environment breaks a sentence of the ``TextEnv`` contract; raised by ``check_text_env``."""


class ToolError(ArtGymError, ValueError):
    """Raised inside a tool to reject a call with a message.

    The message becomes the observation, and the call counts as an invalid action. Anything else that a tool
    raises is a bug of the environment and leaves ``step`` as it is.
    """

    def __str__(self) -> str:
        return super().__str__() or "This call was refused."


def described(error: BaseException) -> str:
    """``"KeyError: 'title' (desk.py, line 11)"``: an error, with :func:`user_line` if there is one."""
    place = user_line(error)
    return f"{type(error).__name__}: {error}{f' ({place})' if place else ''}"


def user_line(error: BaseException) -> str | None:
    """The last line of the user's own code that an error passed, as ``desk.py, line 11``.

    ``None`` if only this project, Python and installed libraries took part.
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        frame
        for frame in frames
        if not frame.filename.startswith(_NOT_THE_USERS) and _INSTALLED.isdisjoint(Path(frame.filename).parts)
    ]
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}" if own else None


def did_you_mean(wrong: str, known: Iterable[str]) -> str:
    """``"; did you mean `x`?"`` if a known name is near ``wrong``, else the list of known names."""
    names = list(known)
    # Nothing near is longer than this, and difflib is quadratic.
    near = difflib.get_close_matches(wrong[:100], names, n=1, cutoff=0.6)
    if near:
        return f"; did you mean `{near[0]}`?"
    shown = ", ".join(f"`{name}`" for name in names[:10])
    return f"; known: {shown}{', …' if len(names) > 10 else ''}" if names else ""
