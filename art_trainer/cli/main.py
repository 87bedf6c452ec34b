"""The ``art-trainer`` command. Each module of this package adds its commands to the app, in this order."""

from __future__ import annotations

import sys
from importlib import import_module

try:
    import typer  # noqa: F401
    from rich.console import Console
except ModuleNotFoundError as missing:
    raise SystemExit(f'art-trainer needs {missing.name}: pip install "art-gym[train]"') from missing

from art_gym.errors import ArtGymError
from art_trainer.cli.options import app
from art_trainer.errors import TrainerError

for _name in (
    *("train", "self_play", "serve", "worker", "supervise", "dash", "eval", "play", "export", "analyze"),
    *("suites", "records", "sync", "judge"),
):
    import_module(f"art_trainer.cli.{_name}")


def main(arguments: list[str] | None = None) -> None:
    """Run ``art-trainer``; a user's error is one line and exit code 2, Ctrl-C is exit code 130."""
    try:
        app(args=arguments, prog_name="art-trainer")
    except KeyboardInterrupt:
        Console(stderr=True).print("Stopped.")
        sys.exit(130)
    except (ArtGymError, TrainerError, FileNotFoundError) as error:
        Console(stderr=True).print(f"art-trainer: {error}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(getattr(error, "exit_code", 2))


if __name__ == "__main__":
    main()
