"""The ``art-trainer`` command. Each module of this package adds its commands to the app, in this order."""

from __future__ import annotations

import errno
import io
import os
import sys
from importlib import import_module
from importlib.util import find_spec

# A plain `pip install art-gym` installs the command without what it needs.
if _missing := [name for name in ("typer", "rich", "yaml", "torch") if find_spec(name) is None]:
    raise SystemExit(f'art-trainer needs {", ".join(_missing)}; run: pip install "art-gym[train]"')

# Set before PyTorch is loaded: threads that wait for each other give their core away. By default they spin:
# another process on one of their cores made a small model twelve times slower, see docs/guides/bigger.md.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

from rich.console import Console
from rich.text import Text

from art_gym.errors import ArtGymError
from art_gym.terminal import visible
from art_trainer.cli.options import app
from art_trainer.errors import TrainerError

_SERVING = ("fastapi", "starlette", "uvicorn", "websockets")
_DISK = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EFBIG, errno.EIO))

for _name in (
    *("train", "self_play", "serve", "worker", "dash", "eval", "play", "export", "analyze"),
    *("models", "runs", "top", "episodes", "doctor", "show_config", "judge"),
):
    import_module(f"art_trainer.cli.{_name}")


def main(arguments: list[str] | None = None) -> None:
    """Run ``art-trainer``; what a user can mend is one line.

    The exit code of an error is 2 if it would happen again, 1 if it might not, such as a full disk.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding without ▁ or – must not stop a run
    # Workers, agents' programs and clients of a local engine reach this machine without the user's proxy.
    direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or "localhost,127.0.0.1,::1"
    if "127.0.0.1" not in direct and direct != "*":
        direct += ",localhost,127.0.0.1,::1"
    os.environ["no_proxy"] = os.environ["NO_PROXY"] = direct
    try:
        app(args=arguments, prog_name="art-trainer")
    except Exception as error:
        found = user_error(error)
        if found is None:
            raise
        message, code = found
        Console(stderr=True).print(Text(visible(f"art-trainer: {message}")), soft_wrap=True)
        sys.exit(code)


def user_error(error: Exception) -> tuple[str, int] | None:
    """The line and the exit code of an error that a user can mend; ``None`` for any other."""
    message = " ".join(str(error).split())
    if isinstance(error, ArtGymError | TrainerError | FileNotFoundError):
        return message, getattr(error, "exit_code", 2)
    if isinstance(error, OSError) and (error.filename is not None or error.errno in _DISK):
        place = "" if error.filename is None else f": {error.filename}"
        return f"{error.strerror}{place}", 1
    if isinstance(error, ModuleNotFoundError) and str(error.name).partition(".")[0] in _SERVING:
        return f'this needs {error.name}; run: pip install "art-gym[serve]"', 2
    safetensors = sys.modules.get("safetensors")
    if safetensors is not None and isinstance(error, safetensors.SafetensorError):
        return message, 1
    return None


if __name__ == "__main__":
    main()
