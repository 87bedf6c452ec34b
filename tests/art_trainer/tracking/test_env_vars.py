"""Settings of services: where they come from, errors, and that no secret is shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from art_trainer.errors import ConfigError
from art_trainer.tracking.env_vars import ENV_VARS, load_env_vars


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / ".env"


def test_the_environment_wins_over_the_file_and_the_file_over_defaults(file: Path) -> None:
    file.write_text(
        "# keys\nexport WANDB_API_KEY='from the file'\n\nWANDB_BASE_URL=http://file\nART_SERVER_PORT=1\n"
        "WANDB_ENTITY=a\nWANDB_ENTITY=b\nVLLM_API_KEY=\n"
    )
    environ = {"WANDB_BASE_URL": "http://environment", "OTHER": "x", "OPENAI_API_KEY": ""}
    found = load_env_vars(environ, file)
    sources = {name: (setting.value, setting.source) for name, setting in found.settings.items()}
    assert sources["WANDB_API_KEY"] == ("from the file", ".env line 2")
    assert sources["WANDB_BASE_URL"] == ("http://environment", "environment")
    assert sources["ART_SERVER_PORT"] == ("1", ".env line 5")
    assert sources["WANDB_ENTITY"] == ("b", ".env line 7")
    assert sources["ART_CLIENT_WORKERS"] == ("1", "default")
    assert not {"OTHER", "OPENAI_API_KEY", "VLLM_API_KEY"} & found.values.keys()


def test_no_secret_is_in_any_repr() -> None:
    secret = "sk-very-secret-1234567"
    names = [known.name for known in ENV_VARS if known.secret]
    found = load_env_vars(dict.fromkeys(names, secret), None)
    assert all(found.values[name] == secret for name in names)
    assert secret not in repr(found) + "".join(s.shown + repr(s) for s in found.settings.values())


def test_a_near_miss_in_the_file_is_named_and_names_of_other_programs_are_ignored(file: Path) -> None:
    file.write_text("WANDB_APIKEY=x\nDATABASE_URL=y\nMYSQL_PORT=1\n")
    (near,) = load_env_vars({}, file).unknown.items()
    assert near[0] == "WANDB_APIKEY"
    assert "did you mean `WANDB_API_KEY`?" in near[1]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"A=1\nKEY='sk-secret\n", r"\.env line 2 is not NAME=value"), (b"\xff\xfe\x00", "cannot be read")],
)
def test_a_file_that_is_none_is_named_without_its_words(file: Path, content: bytes, words: str) -> None:
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as error:
        load_env_vars({}, file)
    assert "sk-secret" not in str(error.value)


def test_numbers_are_checked_where_they_are_used() -> None:
    assert load_env_vars({"ART_SERVER_PORT": "9000"}, None).integer("ART_SERVER_PORT") == 9000
    with pytest.raises(ConfigError, match="ART_CLIENT_WORKERS from environment is 'many'"):
        load_env_vars({"ART_CLIENT_WORKERS": "many"}, None).integer("ART_CLIENT_WORKERS")


def test_nothing_is_read_at_import(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("= broken")
    code = (
        "import sys, art_trainer.tracking.env_vars, art_trainer.tracking.loggers.base, os\n"
        "assert 'WANDB_API_KEY' not in os.environ\n"
        "assert not {'wandb', 'tensorboard', 'torch'} & set(sys.modules)"
    )
    environ = {"PATH": "", "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, check=True, timeout=1000)
