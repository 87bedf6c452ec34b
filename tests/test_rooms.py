"""Which part of a package may import which: one way along the table, and no circle of files."""

import ast
import functools
import re
from graphlib import TopologicalSorter

import pytest

from tests.test_imports import FILES as MODULES
from tests.test_imports import FOLDERS, imported

ROOMS = {
    "art_trainer": (
        "types errors formatting signals config algorithms models inference rollout tracking analysis "
        "training serving distributed trl cli"
    ).split(),
    "art_gym": (
        "errors closing cache terminal spaces parameters tasks tools parsing random_calls base baselines env "
        "registration arguments catalog lookup testing games wrappers envs servers cli"
    ).split(),
    "art_gym.wrappers": (
        "isolated_random text_adapter record_episodes judging rubric_reward adapters"
    ).split(),
    "art_gym.wrappers.judging": (
        "base agreement cache budget prompt http_client llm_judge rubric_judge"
    ).split(),
    "art_gym.envs.mail": (
        "message words values grading store synthetic questions importers collection rewards baselines env"
    ).split(),
    "art_gym.envs.game_2048": (
        "compiling rules options rendering search players env array_env duel vector"
    ).split(),
    "art_gym.envs.coding": (
        "sandbox drivers values problem problems judge sharing loaders "
        "statement collection baselines validate env"
    ).split(),
}
"""The parts of a package from the ground floor up: each imports only what stands before it."""

MOST_LINES = 800
"""The longest module."""

TINY = 40
"""A module shorter than this has more than one importer, or belongs into the one that it has."""


@functools.cache
def graph() -> dict[str, set[str]]:
    """The modules that each module imports when it runs."""
    return {
        name: {found for found in imported(name, path, for_types=False) if found in MODULES} - {name}
        for name, path in MODULES.items()
    }


def room(name: str, package: str) -> str:
    """The part of its package that a module is in; empty for the package itself."""
    return name.removeprefix(package).removeprefix(".").split(".")[0]


def test_imports_run_one_way_along_the_rooms():
    wrong = [
        f"{name} imports {other}"
        for package, rooms in ROOMS.items()
        for name, found in graph().items()
        if name.startswith(f"{package}.") and room(name, package) in rooms
        for other in found
        if other.startswith(f"{package}.")
        and room(other, package) in rooms
        and rooms.index(room(other, package)) > rooms.index(room(name, package))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", ROOMS)
def test_every_module_is_in_a_room(package):
    found = {room(name, package) for name in MODULES if f"{name}.".startswith(f"{package}.")}
    assert found <= {"", "__main__", *ROOMS[package]}


def test_no_circle_of_files():
    inner = {name: found - FOLDERS.keys() for name, found in graph().items() if name not in FOLDERS}
    TopologicalSorter(inner).prepare()  # raises a CycleError that names the circle


def test_no_module_is_too_long():
    lines = {name: path.read_text("utf-8").count("\n") for name, path in MODULES.items()}
    assert not {name: count for name, count in lines.items() if count > MOST_LINES}


def test_the_name_of_every_exception_ends_in_error():
    wrong = [
        f"{name}.{node.name}"
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(re.search(r"(Error|Exception)$", ast.unparse(base)) for base in node.bases)
        and not re.search(r"(Error|Exception|Interrupt)$", node.name)
    ]
    assert not wrong, wrong


def test_a_small_module_has_more_than_one_importer():
    importers = {name: [other for other in graph() if name in graph()[other]] for name in graph()}
    single = [
        name
        for name, path in MODULES.items()
        if path.name not in ("__init__.py", "__main__.py", "main.py")
        and path.read_text("utf-8").count("\n") < TINY
        and len(importers[name]) == 1
        and importers[name][0] != name.rpartition(".")[0]  # a package that loads it when it is used
    ]
    assert not single, single


def calls_of_print(tree: ast.AST) -> int:
    """How often a tree calls ``print``, but for the methods that render for a person."""
    if isinstance(tree, ast.FunctionDef) and tree.name == "_render_human":
        return 0
    own = isinstance(tree, ast.Call) and ast.unparse(tree.func) in ("print", "typer.echo", "sys.stdout.write")
    return own + sum(calls_of_print(child) for child in ast.iter_child_nodes(tree))


def test_only_commands_print():
    wrong = [
        name
        for name, path in MODULES.items()
        if ".cli." not in name
        and ".sandbox.child." not in name
        and calls_of_print(ast.parse(path.read_text("utf-8")))
    ]
    assert not wrong, wrong
