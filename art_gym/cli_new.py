"""``art-gym new``: begin an environment of one's own.

As `art_gym.cli`, of which it is a part, it imports typer only when a command runs, and does without
``from __future__ import annotations``.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    import typer

_NEW_HELP = """Write a package with an environment of your own: a small task that plays, tests, README.

NAME is the environment's, as word-ladder or lab/word-ladder: the latter becomes lab/WordLadder-v0, in a
folder lab-word-ladder. Install it, and art-trainer and art-gym know it.

Example: art-gym new word-ladder --folder ~/envs
"""


def add_new_command(app: "typer.Typer") -> None:
    """Add ``new`` to the ``art-gym`` command."""
    app.command("new", help=_NEW_HELP)(_command_new())


def _command_new() -> Callable[..., None]:
    import typer

    def command(
        name: Annotated[str, typer.Argument(help="The environment's name.", show_default=False)],
        folder: Annotated[Path, typer.Option(help="Where the package's folder is made.")] = Path(),
    ) -> None:
        from art_gym.scaffold import EnvName, write_package

        try:
            env_name = EnvName.parse(name)
            written = write_package(env_name, folder)
        except (ValueError, OSError) as error:
            print(f"art-gym: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        package = written[0].parent
        for path in written:
            print(f"written: {path}")
        print(f"\n{env_name.env_id} is ready to play. Next:")
        print(f'  pip install -e "{package}[test]"')
        print(f"  pytest {package}")
        print(f"  art-trainer train --env {env_name.env_id} --model scratch")

    return command
