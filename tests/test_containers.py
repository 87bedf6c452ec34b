"""The container files name what is there: their commands and extras are those of the package."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from art_trainer.cli.main import app

ROOT = Path(__file__).parents[1]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
COMMANDS = [shlex.split(service["command"]) for service in COMPOSE["services"].values()]
COMMANDS.append(json.loads(re.findall(r"^CMD (.*)$", DOCKERFILE, re.MULTILINE)[0]))


@pytest.mark.parametrize("command", COMMANDS, ids=[command[0] for command in COMMANDS])
def test_each_command_is_read_by_the_command_line(command: list[str]) -> None:
    name, *arguments = command
    parsed = get_command(app).commands[name].make_context(name, list(arguments))  # type: ignore[attr-defined]
    given = {flag.removeprefix("--").replace("-", "_") for flag in arguments if flag.startswith("--")}
    assert given <= {key.rstrip("_") for key, value in parsed.params.items() if value}


def test_the_server_is_found_by_its_name_and_protected() -> None:
    server, worker = COMPOSE["services"]["server"], COMPOSE["services"]["worker"]
    assert "--allowed-host server" in server["command"]
    assert worker["command"].endswith("http://server:8270")
    assert all("ART_SERVER_TOKEN" in service["environment"] for service in (server, worker))
    assert server["ports"] == ["127.0.0.1:8270:8270"]


def test_the_image_installs_extras_that_there_are() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (named,) = re.findall(r'"\.\[([\w,]+)\]"', DOCKERFILE)
    assert set(named.split(",")) <= project["optional-dependencies"].keys()
