"""What the README and the documentation show works: their Python runs, their commands exist with their flags.

A block that cannot run here says why: ```` ```python no-run: needs a GPU ````.
"""

import os
import re
import shlex
import sys
import tomllib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import typer
import typer.main

from art_gym.cli.app import app as gym_app
from art_gym.envs.coding.sandbox import SandboxFailedError
from art_trainer.cli.main import app as trainer_app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Typer's own copy of click's errors, or click's: they live where the public one does.
ERRORS: Any = sys.modules[typer.BadParameter.__module__]
SHELLS = ("bash", "sh", "shell", "console")
FENCE = re.compile(r"^```(?P<language>\w+)(?P<rest>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
REASON = re.compile(r"no-run: *([^\"]*)")
MENTION = re.compile(r"`((?:art-gym|art-trainer|make|python (?:benchmarks|integrations)/)[^`…]*)`")
MOST_MARKS = 3
"""Blocks of all pages that may say they cannot run."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    code: str
    reason: str | None

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    found = []
    for match in FENCE.finditer(text):
        marked = REASON.search(match["rest"])
        line = text.count("\n", 0, match.start()) + 1
        reason = marked[1].strip() if marked else None
        found.append(Block(page, line, match["language"], match["code"], reason))
    return found


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
ELSEWHERE = (ROOT / "docs" / "guides" / "your-own-agent.md",)
"""Pages whose Python has a test of its own, which also looks at what comes out."""
PYTHON = {
    page: chosen
    for page in PAGES
    if page not in ELSEWHERE
    and (
        chosen := [one for one in BLOCKS if one.page == page and one.language == "python" and not one.reason]
    )
}
SHELL = [one for one in BLOCKS if one.language in SHELLS and not one.reason]


@pytest.fixture
def page_module(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """Where a page's blocks run: a module that pickles can refer to by name, as a user's file."""
    module = types.ModuleType("documentation_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    registered = dict(gym.registry)
    yield module
    gym.registry.clear()
    gym.registry.update(registered)


# What transformers says to TRL, and torch of a machine without a GPU.
@pytest.mark.filterwarnings("ignore:`(is_)?gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.e2e if page.name == "trl.md" else ()) for page in PYTHON],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_pages_python_runs(
    page: Path, page_module: types.ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # Commands are found as where the project is installed, even if nobody activated that environment.
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    for block in PYTHON[page]:
        code = compile("\n" * block.line + block.code, str(page), "exec", dont_inherit=True)
        try:
            exec(code, vars(page_module))
        except SandboxFailedError as error:
            pytest.skip(str(error))  # the kernel here has no layer to build a sandbox from


def split_commands(code: str) -> Iterator[list[str]]:
    """The words of each command of a shell block."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line.removeprefix("$ "), posix=True, punctuation_chars="|&;")
        words.whitespace_split = True
        command: list[str] = []
        for word in [*words, ";"]:
            if not word.strip("|&;"):
                if command:
                    yield command
                command = []
            elif command or not re.fullmatch(r"\w+=.*", word):
                command.append(word)


def check_command(words: list[str], *, whole: bool) -> None:
    """Raise where a command of ours is not there or has no such flag.

    Args:
        words: The command.
        whole: Whether it must be complete, arguments and all.
    """
    name, *rest = words
    if name in ("art-gym", "art-trainer"):
        check_ours(name, rest, whole=whole)
    elif name == "torchrun" and "art_trainer" in rest:
        check_ours("art-trainer", rest[rest.index("art_trainer") + 1 :], whole=whole)
    elif name == "make" and rest:
        makefile = (ROOT / "Makefile").read_text()
        targets = [word for word in rest if "=" not in word]
        assert all(re.search(rf"^{re.escape(target)}:", makefile, re.MULTILINE) for target in targets), rest
    elif name in ("python", "python3") and rest and rest[0].endswith(".py"):
        source = (ROOT / rest[0]).read_text()
        if "harness.parser" in source:
            source += (ROOT / "benchmarks" / "harness.py").read_text()
        own = "\n".join(word for word in rest if " " not in word)  # a quoted word is for another command
        for flag in re.findall(r"^--[\w-]+", own, re.MULTILINE):
            assert f'"{flag}"' in source, f"{rest[0]} has no {flag}"
    elif name == "pip" and rest[:1] == ["install"]:
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        for names in re.findall(r"art-gym\[([\w,-]+)\]", " ".join(rest)):
            assert set(names.split(",")) <= set(extras), names


def check_ours(name: str, arguments: list[str], *, whole: bool) -> None:
    """Let the command's own parser read the arguments, without running it."""
    app = gym_app if name == "art-gym" else trainer_app
    command: Any = typer.main.get_command(app)
    rest = list(arguments)
    while rest and hasattr(command, "commands"):
        child = rest.pop(0)
        if child == "--help":
            return
        assert child in command.commands, f"{name} has no {child}; it has {', '.join(command.commands)}"
        command = command.commands[child]
    if hasattr(command, "commands") or "--help" in rest:
        assert not whole or "--help" in rest, f"{name} alone only shows its help"
        return
    try:
        command.make_context(command.name, rest)
    except (ERRORS.MissingParameter, ERRORS.BadOptionUsage):
        assert not whole, f"{name} {' '.join(arguments)} lacks arguments"
    except ERRORS.NoSuchOption:
        raise
    except typer.BadParameter as error:
        # The reader's files are not here.
        if "does not exist" not in error.message:
            raise


@pytest.mark.parametrize("block", SHELL, ids=lambda block: block.where)
def test_a_blocks_commands_exist(block: Block) -> None:
    for words in split_commands(block.code):
        check_command(words, whole=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_that_are_mentioned_exist(page: Path) -> None:
    for span in MENTION.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        for words in split_commands(span.replace("\n", " ")):
            check_command(words, whole=False)


@pytest.mark.parametrize(
    "line",
    [
        "art-gym serach box.db",
        "art-trainer train --env",
        "art-trainer train --modle art-tiny",
        "art-trainer export",
        "art-trainer judge",
        "torchrun --nproc-per-node 2 -m art_trainer train --modle art-tiny",
        "X=1 art-gym list && art-gym list --flag",
        "make trian",
        "python benchmarks/learning_curve.py --sedes 1",
        'pip install "art-gym[trian]"',
    ],
)
def test_a_wrong_command_would_be_noticed(line: str) -> None:
    commands = list(split_commands(line))
    for words in commands[:-1]:
        check_command(words, whole=True)
    with pytest.raises((AssertionError, ERRORS.UsageError)):
        check_command(commands[-1], whole=True)


def test_few_blocks_are_not_run_and_each_says_why() -> None:
    marked = [block for block in BLOCKS if block.reason is not None]
    assert len(marked) <= MOST_MARKS, [block.where for block in marked]
    for block in marked:
        assert block.reason
        assert len(block.reason.split()) >= 3, f"{block.where} should say why it cannot run"


def test_every_block_says_its_language() -> None:
    for page in PAGES:
        bare = re.findall(r"^```.*$", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert bare.count("```") * 2 >= len(bare), page
        assert len(bare) % 2 == 0, page


@pytest.mark.parametrize("page", PAGES[:2], ids=lambda page: page.name)
def test_links_lead_to_files(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text(encoding="utf-8")):
        assert "://" in target or (page.parent / target).exists(), target
