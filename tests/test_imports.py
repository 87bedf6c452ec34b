"""What importing the packages loads, what may import what, and what their names promise."""

import ast
import importlib
import pathlib
import pkgutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
FOLDERS = {
    "art_gym": ROOT / "art_gym",
    "art_gym.envs": ROOT / "envs",
    "art_gym.wrappers": ROOT / "wrappers",
    "art_trainer": ROOT / "art_trainer",
}
ALLOWED = {
    "art_gym": {"art_gym"},
    "art_gym.envs": {"art_gym", "art_gym.envs"},
    "art_gym.wrappers": {"art_gym", "art_gym.wrappers"},
    "art_trainer": {"art_gym", "art_gym.wrappers", "art_trainer"},
}
COMMANDS = {"art_gym.cli"} | {
    f"art_gym.cli.{name}" for name in "app certify coding common envs mail mail_writer mcp new play".split()
}
"""The command line loads environments and wrappers when a command asks; only the trainer's imports it."""

HEAVY = {"torch", "transformers", "tokenizers", "peft", "typer", "rich", "openai", "yaml", "jinja2", "numba"}
EXTRAS = {"art_gym.envs.game_2048.compiling": {"numba"}, "art_gym.wrappers.judging.http_client": {"openai"}}
"""The one place that imports a heavy extra; what needs it imports that place late."""
LINKED = {("art_gym", "envs"), ("art_gym", "wrappers"), ("art_trainer", "recipes")}
"""Folders of the repository that a package has by a symbolic link."""


def sources(package):
    """(module name, file) of a package's own modules, without the packages linked into it."""
    folder = FOLDERS[package]
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder).with_suffix("").parts
        if (package, parts[0]) in LINKED:
            continue
        yield ".".join([package, *(part for part in parts if part != "__init__")]), path


MODULES = [(package, name, path) for package in FOLDERS for name, path in sources(package)]
FILES = {name: path for _, name, path in MODULES}


def package_of(module):
    """The longest of our packages that a module name lies in; ``None`` for others' modules."""
    inside = [package for package in FOLDERS if f"{module}.".startswith(f"{package}.")]
    return max(inside, key=len, default=None)


def imported(name, path, *, for_types=True):
    """The modules that a source file imports, anywhere in it, or but for types."""
    tree = ast.parse(path.read_text("utf-8"))
    skipped = set() if for_types else only_for_types(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import) and node not in skipped:
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node not in skipped:
            above = name.split(".")[: len(name.split(".")) - node.level + (path.name == "__init__.py")]
            base = ".".join([*(above if node.level else []), *filter(None, [node.module])])
            for alias in node.names:
                whole = f"{base}.{alias.name}"
                yield whole if whole in FILES else base


def only_for_types(tree):
    """What stands below ``if TYPE_CHECKING``."""
    blocks = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    return {inner for block in blocks for inner in ast.walk(block)}


def run(code):
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def test_modules_are_found():
    assert {package for package, _, _ in MODULES} == set(FOLDERS)
    assert ("art_gym", "art_gym.spaces") in {(package, name) for package, name, _ in MODULES}


def test_import_arrows():
    for package, name, path in MODULES:
        ours = {package_of(module) for module in imported(name, path)} - {None}
        more = {"art_gym.envs", "art_gym.wrappers"} if name in COMMANDS else set()
        assert ours <= ALLOWED[package] | more, name
        if name not in COMMANDS and not name.startswith("art_trainer.cli."):
            assert not COMMANDS & set(imported(name, path)), name


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import art_gym.envs.mail", "art_gym.envs"),
        ("from art_gym import envs", "art_gym.envs"),
        ("from . import rollout", "art_trainer"),
        ("def f():\n    from art_gym.wrappers import ruler", "art_gym.wrappers"),
    ],
)
def test_the_arrows_test_sees_every_kind_of_import(tmp_path, source, found):
    path = tmp_path / "module.py"
    path.write_text(source)
    assert found in {package_of(module) for module in imported("art_trainer.module", path)}


def test_heavy_packages_stay_in_the_trainer():
    for package, name, path in MODULES:
        heavy = {module.split(".")[0] for module in imported(name, path)} & HEAVY
        allowed = {"typer", "rich"} if name in COMMANDS else EXTRAS.get(name, set())
        if package != "art_trainer":
            assert heavy <= allowed, f"{name} imports {heavy}"


def test_importing_art_gym_loads_only_what_it_registers_with_and_numpy():
    code = """
import sys, gymnasium
before = set(sys.modules)
import art_gym
print(*{name.split(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names))
"""
    loaded = {name for name in run(code) if not name.startswith("__editable__")}
    assert "art_gym" in loaded
    assert loaded <= {"art_gym", "gymnasium", "pettingzoo", "numpy"}
    code = "import sys, art_gym; print(*(name for name in sys.modules if name.startswith('art_gym.envs')))"
    assert run(code) == [], "environments load when they are made"


def test_pettingzoo_is_imported_only_if_it_is_used():
    without = "import sys; sys.modules['pettingzoo'] = None; import "
    run(without + "art_gym.games.seats, art_gym.wrappers")


@pytest.mark.parametrize("package", ["art_gym", "art_trainer"])
def test_importing_changes_nothing_global(package):
    code = f"""
import gymnasium, logging, os, random, warnings
import numpy as np
def state():
    root = logging.getLogger()
    return (random.getstate(), str(np.random.get_state()), root.level, list(root.handlers),
            list(warnings.filters), dict(os.environ), os.getcwd())
before = state()
import {package}
print(before == state())
"""
    assert run(code) == ["True"]


@pytest.mark.parametrize("package", list(FOLDERS))
def test_all_names_what_is_public(package):
    module = importlib.import_module(package)
    if not hasattr(module, "__all__"):
        assert not public_names(module), "a package with public names lists them in __all__"
        return
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert hasattr(module, name)
    assert public_names(module) <= set(module.__all__)


def public_names(module):
    """Names that a package defines or imports from us, other than its modules."""
    modules = {found.name for found in pkgutil.iter_modules(module.__path__)}
    return {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and name not in modules
        and package_of(getattr(value, "__module__", None) or "") is not None
    }
