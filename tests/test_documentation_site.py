"""The documentation site builds without a warning, asks nobody for anything, and says what the code says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import docstrings
import generate
import generate_commands
import generate_environments
import generate_settings
import gymnasium as gym
import pytest

import art_gym
from art_gym.testing.checker import CHECKS
from art_trainer.training.run_settings import SETTINGS

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder))
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return folder


@pytest.mark.e2e
def test_every_page_of_the_folder_is_in_the_site(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").exists(), page
    assert not list(site.rglob("*.py"))
    shown = "".join(page.read_text(encoding="utf-8") for page in site.rglob("*.html"))
    assert not re.findall(r":(?:class|func|meth|data|mod):", shown), "a role of Sphinx"


@pytest.mark.e2e
def test_the_site_asks_nobody_else_for_anything(site: Path) -> None:
    loaded = []
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        loaded += re.findall(r"<(?:script|img|iframe|source)\b[^>]*\bsrc=\"?(?:https?:)?//[^\s>]+", text)
        links = re.findall(r"<link\b[^>]*\bhref=\"?(?:https?:)?//[^>]+", text)
        loaded += [link for link in links if "canonical" not in link]
    for sheet in site.rglob("*.css"):
        loaded += re.findall(r"url\(\"?(?:https?:)?//[^)]+", sheet.read_text(encoding="utf-8"))
    assert not loaded


def test_each_environment_has_a_page_whose_code_runs() -> None:
    pages = generate_environments.pages()
    ours = [env_id for env_id in gym.registry if env_id.startswith("art/")]
    for env_id in [*ours, "art/2048Duel-v0"]:
        page = pages[generate_environments.address(env_id)]
        assert page.startswith(f"# {env_id}\n")
        assert "## Rewards" in page
        for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(compile(code, env_id, "exec", dont_inherit=True), {"__name__": "page"})


def test_the_contracts_page_has_a_line_for_each_check() -> None:
    page = generate_environments.pages()["environments/contract.md"]
    assert len(re.findall(r"^\d+\. [A-Za-z'\[].*\.$", page, re.MULTILINE)) == len(CHECKS)


@pytest.mark.e2e
def test_the_reference_has_what_the_package_lists(site: Path) -> None:
    for page, names in {
        "art_gym": [f"art_gym.{name}" for name in art_gym.__all__],
        "trainer": ["art_trainer.config.GRPOConfig.learning_rate"],
        "games": ["art_gym.games.aec.TextAECEnv"],
        "algorithms": ["art_trainer.algorithms.advantages.group_advantages"],
    }.items():
        text = (site / "reference" / f"{page}.html").read_text(encoding="utf-8")
        for name in names:
            assert f'id="{name}"' in text, name


def test_docstrings_become_markdown() -> None:
    shown = docstrings.markdown(
        "Do it, see :func:`~art_gym.tool` and :math:`x_1`.\n\nAs in::\n\n    run(1)\n\nMore."
    )
    assert shown == "Do it, see `tool` and `x_1`.\n\nAs in:\n\n```python\nrun(1)\n```\n\nMore."


def test_the_commands_page_has_every_flag() -> None:
    page = generate_commands.page()
    commands = ("art-gym new", "art-gym mail import", "art-trainer judge eval")
    assert all(f"## {command}" in page for command in commands)
    assert "| `--max-steps` |" in page
    assert "| `--env-args` | Argument of the environment: a JSON value or text. Repeatable. |" in page


def test_the_settings_page_has_every_setting() -> None:
    page = generate_settings.page()
    assert re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE) == list(SETTINGS)
    assert "| `seed` | int (0 or more) | `42` | Random seed of tasks, sampling and shuffling. |" in page
    assert "| `scratch` | mapping | `{}` |" in page
    assert "`scratch`: `lr_final_ratio=0.1`" in page


def test_what_is_not_there_is_left_out_of_the_navigation() -> None:
    nav = [{"Home": "index.md"}, {"Guides": [{"A": "guides/a.md"}, {"B": "guides/b.md"}]}, {"X": "x.md"}]
    known = {"index.md", "guides/b.md", "guides/new.md", "other/page.md"}
    assert generate._complete(nav, known) == [
        {"Home": "index.md"},
        {"Guides": [{"B": "guides/b.md"}, "guides/new.md"]},
    ]
