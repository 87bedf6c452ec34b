"""Settings of services: where they come from, what is said of mistakes, and that no secret is shown."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from art_trainer.errors import ConfigError
from art_trainer.monitoring.registry import SINK_NAMES, make_sink, sink_names
from art_trainer.monitoring.settings import load_settings


def _file(tmp_path: Path, text: str) -> Path:
    file = tmp_path / ".env"
    file.write_text(text)
    return file


def test_the_environment_wins_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    file = _file(
        tmp_path,
        "# keys\nexport WANDB_API_KEY='from the file'\n\nLANGFUSE_HOST=http://file\nART_SERVER_PORT=1\n",
    )
    found = load_settings({"LANGFUSE_HOST": "http://environment", "OTHER": "x"}, file)
    sources = {name: (setting.value, setting.source) for name, setting in found.settings.items()}
    assert sources["WANDB_API_KEY"] == ("from the file", ".env line 2")
    assert sources["LANGFUSE_HOST"] == ("http://environment", "environment")
    assert sources["ART_SERVER_PORT"] == ("1", ".env line 5")
    assert sources["ART_CLIENT_WORKERS"] == ("1", "default")
    assert "OTHER" not in sources
    assert "OPENAI_API_KEY" not in found.values


def test_the_last_of_a_name_counts_and_an_empty_one_is_none(tmp_path: Path) -> None:
    file = _file(tmp_path, "WANDB_ENTITY=a\nWANDB_ENTITY=b\nOPENPIPE_API_KEY=\n")
    found = load_settings({"LANGFUSE_SECRET_KEY": ""}, file)
    assert (found.values["WANDB_ENTITY"], found.settings["WANDB_ENTITY"].source) == ("b", ".env line 2")
    assert not {"OPENPIPE_API_KEY", "LANGFUSE_SECRET_KEY"} & found.values.keys()


def test_no_secret_is_in_any_repr(tmp_path: Path) -> None:
    secret = "sk-very-secret-1234567"
    names = (
        "WANDB_API_KEY",
        "OPENPIPE_API_KEY",
        "LANGFUSE_PUBLIC_KEY",
        "LANGFUSE_SECRET_KEY",
        "OPENAI_API_KEY",
    )
    found = load_settings(dict.fromkeys(names, secret), None)
    assert all(found.values[name] == secret for name in names)
    assert secret not in repr(found) + "".join(s.shown + repr(s) for s in found.settings.values())


def test_a_near_miss_in_the_file_is_named_and_other_names_are_others_business(tmp_path: Path) -> None:
    found = load_settings({}, _file(tmp_path, "WANDB_APIKEY=x\nDATABASE_URL=y\nMYSQL_PORT=1\n"))
    assert dict(found.unknown) == {
        "WANDB_APIKEY": ".env line 1: no setting `WANDB_APIKEY`; did you mean `WANDB_API_KEY`?"
    }


def test_a_line_that_is_none_is_named_without_its_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.env line 2 is not NAME=value") as error:
        load_settings({}, _file(tmp_path, "A=1\nKEY='sk-secret\n"))
    assert "sk-secret" not in str(error.value)


def test_a_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    (tmp_path / ".env").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings({}, tmp_path / ".env")


def test_numbers_are_checked_where_they_are_used() -> None:
    assert load_settings({"ART_SERVER_PORT": "9000"}, None).integer("ART_SERVER_PORT") == 9000
    with pytest.raises(ConfigError, match="ART_CLIENT_WORKERS from environment is 'many'"):
        load_settings({"ART_CLIENT_WORKERS": "many"}, None).integer("ART_CLIENT_WORKERS")


def test_nothing_is_read_at_import(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("= broken")
    code = (
        "import sys, art_trainer.monitoring.settings, art_trainer.monitoring.registry, os\n"
        "assert 'WANDB_API_KEY' not in os.environ\n"
        "assert not {'wandb', 'mlflow', 'trackio', 'tensorboard', 'langfuse', 'torch'} & set(sys.modules)"
    )
    environ = {"PATH": "", "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environ, check=True, timeout=60)


def test_names_of_sinks_are_read_from_lists_and_words() -> None:
    assert sink_names("wandb, tensorboard,,wandb") == ("wandb", "tensorboard")
    assert sink_names(["otel"]) == ("otel",)
    assert sink_names("") == sink_names(()) == ()
    with pytest.raises(ConfigError, match="no sink `wanbd`; did you mean `wandb`"):
        sink_names("tensorboard,wanbd")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in SINK_NAMES:
        with pytest.raises(ConfigError, match=r'pip install "art-gym\[\w+\]"'):
            make_sink(name, {})


def test_a_missing_key_is_an_error_before_anything_begins() -> None:
    pytest.importorskip("langfuse")
    with pytest.raises(ConfigError, match="LANGFUSE_SECRET_KEY"):
        make_sink("langfuse", {"LANGFUSE_PUBLIC_KEY": "pk-lf-1"})
