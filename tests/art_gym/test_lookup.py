"""An environment is named by its id, by its module or by the one file that defines it."""

import multiprocessing
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import gymnasium as gym
import pytest

from art_gym.errors import EnvLookupError
from art_gym.lookup import find_env, make_env

COIN = '''
from art_gym import Outcome, TextEnv, tool

class CoinEnv(TextEnv):
    """Call a coin."""

    @tool(ends=True)
    def call(self, heads: bool) -> Outcome:
        """Call it.

        Args:
            heads: Whether it is heads.
        """
        return Outcome("Over.")
'''
REGISTER = "import gymnasium as gym\ngym.register('{id}', entry_point=CoinEnv)\n"
HEADS, TAILS = (COIN + REGISTER.format(id=f"mine/{name}-v0") for name in ("Heads", "Tails"))

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Write a file of the current folder."""
    monkeypatch.chdir(tmp_path)

    def to(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    return to


@pytest.mark.parametrize("name", ["own_coin.py", "own_coin.py:mine/Heads-v0", "own_coin:mine/Heads-v0"])
def test_a_file_is_found_from_any_folder(write: Write, name: str, tmp_path: Path) -> None:
    path = write("own_coin.py", HEADS)
    found = find_env(name)
    assert (found.id, found.name) == ("mine/Heads-v0", f"{path}:mine/Heads-v0")
    assert gym.make(found.id).reset(seed=0)[1]["task_id"]
    os.chdir(tmp_path.parent)
    assert find_env(found.name) == found
    assert find_env(found.id).name == "mine/Heads-v0"


def test_a_package_of_the_current_folder_is_found_from_any_folder(write: Write, tmp_path: Path) -> None:
    write("own_package/env.py", COIN)
    register = "gym.register('mine/Packed-v0', entry_point='own_package.env:CoinEnv')\n"
    path = write("own_package/__init__.py", f"import gymnasium as gym\n{register}")
    found = find_env("own_package:mine/Packed-v0")
    assert found.name == f"{path}:mine/Packed-v0"
    os.chdir(tmp_path.parent)
    assert find_env(found.name) == found
    make_env(found.name, {}).reset(seed=0)


def test_the_only_class_of_a_file_that_registers_nothing_is_registered(write: Write) -> None:
    path = write("bare_coin.py", "import words\n" + COIN + "    instructions = words.TEXT\n")
    write("words.py", "TEXT = 'Call it.'")
    env = make_env("bare_coin.py", {"max_turns": 3})
    assert env.reset(seed=0)[1]["system"].startswith("Call it.")
    assert find_env("bare_coin.py").name == f"{path}:mine/Coin-v0"
    copy = pickle.loads(pickle.dumps(env.unwrapped))
    assert copy.max_turns == 3


def test_a_file_that_imports_others_environments_has_its_own(write: Write) -> None:
    write("library.py", HEADS + REGISTER.format(id="mine/Edge-v0"))
    write("user.py", "import library\n" + TAILS)
    assert find_env("user.py").id == "mine/Tails-v0"
    write(
        "borrower.py",
        "import gymnasium as gym\ngym.register('mine/Loan-v0', entry_point='library:CoinEnv')\n",
    )
    assert find_env("borrower.py").id == "mine/Loan-v0"
    write("older.py", COIN + REGISTER.format(id="mine/Old-v0"))  # of a class registered as it is imported
    write("heir.py", "import older\n\n\nclass HeirEnv(older.CoinEnv):\n    pass\n")
    assert find_env("heir.py").id == "mine/Heir-v0"


def test_a_class_without_spaces_is_named(write: Write) -> None:
    row = "gym.register('mine/{}-v0', gym.Env, order_enforce=False, disable_env_checker={})\n"
    write("bare.py", "import gymnasium as gym\n" + row.format("Bare", False) + row.format("Barer", True))
    for name, words in (("Bare", "must specify an action space"), ("Barer", "has no attribute")):
        with pytest.raises(ValueError, match=f"mine/{name}-v0: .*{words}"):
            make_env(f"bare.py:mine/{name}-v0", {})


def test_a_file_registers_a_game(write: Write) -> None:
    pettingzoo = pytest.importorskip("pettingzoo")
    write(
        "own_game.py",
        "import pettingzoo\npettingzoo.register('aec', 'mine/Game-v0', entry_point='own_game:env')\n",
    )
    try:
        assert find_env("own_game.py").id == "mine/Game-v0"
    finally:
        pettingzoo.aec_registry.pop("mine/Game-v0", None)


@pytest.mark.parametrize(
    ("file", "text", "name", "message"),
    [
        ("pair.py", HEADS + REGISTER.format(id="mine/Edge-v0"), "pair.py", "mine/Edge-v0: name one"),
        ("near.py", HEADS, "near.py:mine/Head-v0", "did you mean `mine/Heads-v0`"),
        ("bug.py", "x = 1\ny = absent\n", "bug.py", "bug.py, line 2: NameError"),
        ("typo.py", "x = (\n", "typo.py", r"SyntaxError.*typo.py, line 1"),
        ("needs.py", "import no_such_module_here\n", "needs.py", "line 1: ModuleNotFoundError"),
        ("none.py", "x = 1\n", "none.py", "no class derived from TextEnv that has a @tool: .* pettingzoo"),
        ("many.py", COIN + "class EdgeEnv(CoinEnv): pass\n", "many.py", r"\(CoinEnv, EdgeEnv\)"),
        ("calendar.py", HEADS, "calendar.py", "as `calendar`, which is .*calendar.py; rename"),
        ("sys.py", HEADS, "sys.py", "as `sys`, which is .*python"),
        ("my.own.py", HEADS, "my.own.py", "use letters"),
        ("here.py", HEADS, "absent.py", "no file .*absent.py on this machine"),
        ("here.py", HEADS, "absent:mine/Heads-v0", "a module that is neither in .* nor installed"),
    ],
)  # fmt: skip
def test_the_error_says_what_is_wrong(write: Write, file: str, text: str, name: str, message: str) -> None:
    write(file, text)
    for _ in range(2):  # a failed import leaves nothing behind that the next one would take for the file
        with pytest.raises(EnvLookupError, match=message):
            find_env(name)


def test_two_files_of_one_name_are_not_taken_for_each_other(write: Write) -> None:
    write("one/same_coin.py", HEADS)
    write("other/same_coin.py", TAILS)
    assert find_env("one/same_coin.py").id == "mine/Heads-v0"
    with pytest.raises(EnvLookupError, match=r"which is .*one/same_coin.py; rename"):
        find_env("other/same_coin.py")


@pytest.mark.e2e
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_new_processes_find_the_file(write: Write, method: str) -> None:
    assert method in multiprocessing.get_all_start_methods()
    write("far_coin.py", COIN)
    env_id = find_env("far_coin.py").id
    vector = gym.make_vec(
        env_id,
        num_envs=2,
        vectorization_mode="async",
        vector_kwargs={"context": method, "shared_memory": False},
    )
    observations, _ = vector.reset(seed=0)
    assert len(observations) == 2
    vector.close()


@pytest.mark.e2e
def test_the_console_script_takes_the_readmes_file(tmp_path: Path) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    block = next(part for part in readme.split("```") if "class GuessEnv" in part)
    (tmp_path / "guess.py").write_text(block.removeprefix("python\n"), encoding="utf-8")
    run = "import sys; from art_gym.cli import main; sys.exit(main())"
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    for name in ("guess.py", "guess:mine/Guess-v0"):
        done = subprocess.run(
            [sys.executable, "-c", run, "check", name],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1000, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "mine/Guess-v0 keeps" in done.stdout
