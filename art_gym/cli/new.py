"""``art-gym new``: write a package with an environment of one's own, from templates."""

import re
import shlex
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated, Final

import gymnasium as gym
import typer

from art_gym.cli.common import user_errors
from art_gym.lookup import NAMESPACE

_LONGEST = 40  # characters of a name: what a terminal's table and a folder's name still show well
_PART = r"[A-Za-z][A-Za-z0-9]*(?:[-_][A-Za-z0-9]+)*"
_FILES: Final = {
    "pyproject.toml": "pyproject.toml.txt",
    "README.md": "README.md.txt",
    "{module}/__init__.py": "init.py.txt",
    "{module}/env.py": "env.py.txt",
    "tests/test_env.py": "test_env.py.txt",
}


@dataclass(frozen=True, slots=True)
class EnvName:
    """What an environment is called, in all the forms that a package needs.

    Attributes:
        namespace: The part of the id before the slash, in lower case.
        name: The part after it, without the version, such as ``WordLadder``.
    """

    namespace: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "EnvName":
        """Read ``word-ladder``, ``WordLadder`` or ``lab/WordLadder``.

        Raises:
            ValueError: If no good names come of it, with what is wrong.
        """
        namespace, slash, name = text.rpartition("/")
        if not slash:
            namespace = NAMESPACE
        for what, part in (("namespace", namespace), ("name", name)):
            if not re.fullmatch(_PART, part) or not part.isascii():
                raise ValueError(
                    f"`{part}` cannot be the {what} of an environment: use letters and digits, begin with a "
                    "letter, with - between words, as in word-ladder or lab/word-ladder"
                )
            if len(part) > _LONGEST:
                raise ValueError(f"the {what} has {len(part)} characters; {_LONGEST} are the most")
        if version := re.search(r"-v\d+$", name):
            raise ValueError(f"leave {version[0]} away: the first version is v0, which is added")
        words = _words(name)
        if words[-1] == "env":
            raise ValueError(f"leave Env away at the end of `{name}`: the class gets it by itself")
        if namespace.lower() == "art":
            raise ValueError("the namespace `art` is this project's own; choose another, as in lab/my-task")
        return cls("_".join(_words(namespace)), "".join(word.capitalize() for word in words))

    @property
    def env_id(self) -> str:
        """The id for ``gym.make``."""
        return f"{self.namespace}/{self.name}-v0"

    @property
    def module(self) -> str:
        """The package that is imported."""
        return f"{self.namespace}_{'_'.join(_words(self.name))}"

    @property
    def distribution(self) -> str:
        """The package that pip installs, and the folder's name."""
        return self.module.replace("_", "-")

    @property
    def class_name(self) -> str:
        """The environment's class."""
        return f"{self.name}Env"


def new_command(
    name: Annotated[str, typer.Argument(help="The environment's name.", show_default=False)],
    folder: Annotated[Path, typer.Option(help="Where the package's folder is made.")] = Path(),
) -> None:
    """Write a package with your own environment: a small task that can be played, tests, a README.

    NAME is the environment's name, such as word-ladder or lab/word-ladder; the latter becomes
    lab/WordLadder-v0 in a folder lab-word-ladder. A package is for what others install; to try something, one
    file is enough: art-gym check my_env.py.

    Example: art-gym new word-ladder --folder ~/envs
    """
    with user_errors():
        env_name = EnvName.parse(name)
        written = write_package(env_name, folder)
    package = written[0].parent
    for path in written:
        print(f"written: {path}")
    name_here = f"{env_name.module}:{env_name.env_id}"
    print(f"\n{env_name.env_id} is ready to play. Next:")
    print(f"  cd {shlex.quote(str(package))}")
    print(f"  art-gym certify {name_here}")
    print(f"  art-trainer train --env {name_here} --model scratch")
    print(f'Once it is installed (pip install -e ".[test]"), {env_name.env_id} is enough, in any folder.')


def write_package(name: "EnvName", parent: Path) -> list[Path]:
    """Write a package with a small environment that plays, its tests and a README.

    Args:
        name: What the environment is called.
        parent: The folder in which the package's folder is made.

    Returns:
        The files, in the order written; the first lies in the package's folder.

    Raises:
        ValueError: If an environment of that id is there already.
        FileExistsError: If the package's folder is.
        OSError: If the folder cannot be written.
    """
    if name.env_id in gym.registry:
        raise ValueError(f"there is an environment {name.env_id} already; choose another name")
    folder = parent / name.distribution
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; choose another name, or another --folder")
    values = {
        field: getattr(name, field)
        for field in ("env_id", "module", "distribution", "class_name", "namespace", "name")
    }
    written = []
    for target, template in _FILES.items():
        path = folder / target.format(module=name.module)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = files("art_gym.cli").joinpath("templates", template).read_text(encoding="utf-8")
        path.write_text(Template(text).substitute(values), encoding="utf-8")
        written.append(path)
    return written


def _words(name: str) -> list[str]:
    """The words of a name, in lower case: ``HTTPServer2`` is ``http``, ``server2``."""
    parts = re.findall(r"[A-Z]+(?![a-z])[0-9]*|[A-Z]?[a-z]+[0-9]*|[0-9]+", name)
    return [part.lower() for part in parts]
