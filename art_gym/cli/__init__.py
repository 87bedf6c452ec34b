"""The ``art-gym`` command."""

import logging
import sys


def main() -> None:
    """Run the ``art-gym`` command with the arguments of this process."""
    try:
        from art_gym.cli.app import app
    except ModuleNotFoundError as error:
        if error.name not in ("typer", "rich", "click"):
            raise
        sys.exit(f'art-gym needs {error.name}, which is not installed; run: pip install "art-gym[cli]"')
    logging.basicConfig(format="%(message)s")
    logging.getLogger("art_gym").setLevel(logging.INFO)
    app()
