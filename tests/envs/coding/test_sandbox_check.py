"""The probes of ``art-gym sandbox check``, and the command."""

from __future__ import annotations

import os
import shutil
import sys

import pytest

from art_gym import cli
from art_gym.envs.coding.sandbox import Outcome, Run, Sandbox, SandboxUnavailable, backends, check
from art_gym.envs.coding.sandbox.probes import FIRST, PROBES, Probe


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["art-gym", "sandbox", "check", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code


def test_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        Sandbox().close()
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    assert run(monkeypatch) == 0
    shown = capsys.readouterr().out
    assert f"{len(PROBES)} of {len(PROBES)} held" in shown
    assert "GOT OUT" not in shown
    for word in (
        "zygote",
        "bubblewrap",
        "container",
        "landlock",
        "namespaces",
        "system calls",
        "endless loop",
    ):
        assert word in shown


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has no walls at all."""
    monkeypatch.setattr(shutil, "which", lambda *_: None)
    monkeypatch.setattr(backends, "_WALLS", ())
    monkeypatch.setattr(backends, "_KNOWN", {})
    monkeypatch.setattr(backends, "_MISSING", {})


@pytest.mark.usefixtures("nothing")
def test_a_machine_without_walls(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch) == 1
    assert "No sandbox holds on this machine: programs are refused." in capsys.readouterr().out


@pytest.mark.usefixtures("nothing")
def test_layers_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "--layers", "bubblewrap") == 2
    assert "bubblewrap is not installed" in capsys.readouterr().out
    assert run(monkeypatch, "--layers", "bubblewrp") == 2
    assert "did you mean `bubblewrap`?" in capsys.readouterr().out


@pytest.mark.usefixtures("nothing")
def test_the_probes_do_get_out_where_nothing_holds() -> None:
    with Sandbox(unsafe_without_isolation=True) as sandbox:
        runs = {name: sandbox.run("script", probe.program) for name, probe in SAFE_TO_SUCCEED.items()}
    for name, result in runs.items():
        assert result.outcome is not Outcome.REFUSED
        assert not SAFE_TO_SUCCEED[name].held(result), f"{name} shows nothing: it holds where nothing does"


FREE = ("fork", "exec", "read files", "list files", "network", "abstract socket", "processes")
SAFE_TO_SUCCEED = {probe.name: probe for probe in PROBES if probe.name in FREE}


@pytest.mark.usefixtures("nothing")
def test_no_further_program_runs_after_one_of_the_first_got_out(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = Probe("fork", "", "print('OUT')")
    assert FIRST[0].name == "endless loop"
    monkeypatch.setattr(check, "FIRST", (harmless,))
    monkeypatch.setattr(check, "PROBES", (harmless, Probe("next", "", "print('HELD')")))
    with Sandbox(unsafe_without_isolation=True) as sandbox:
        [result] = check.probe(sandbox)
    assert not result.held
    assert result.after


def test_a_refused_run_shows_nothing() -> None:
    for probe in PROBES:
        assert not probe.held(Run(Outcome.REFUSED, stdout=b"HELD\n"))
    assert not FIRST[1].held(Run(Outcome.EXITED, stdout=b"OUT\n"))
    assert not FIRST[0].held(Run(Outcome.EXITED, stdout=b"HELD\n"))


def test_nothing_is_written_by_the_probes() -> None:
    assert not os.path.exists("/tmp/art-gym-probe")
