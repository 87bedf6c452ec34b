"""The backends and layers: what is chosen if something is missing; ``art-gym sandbox check``."""

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from art_gym import cli
from art_gym.envs.coding.sandbox import (
    Limits,
    Outcome,
    Run,
    Sandbox,
    SandboxUnavailableError,
    backends,
    bundle,
    check,
    container_backend,
)
from art_gym.envs.coding.sandbox.check import FIRST, PROBES, Probe
from art_gym.envs.coding.sandbox.child.lockdown import unused_id
from art_gym.envs.coding.sandbox.interpreter import Interpreter, interpreters
from tests.envs.coding.sandboxes import opened

PATIENT = Limits(wall_seconds=20.0, cpu_seconds=20.0)
Break = Callable[..., None]


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Break:
    """Change a line of the code that runs in the child: ``broken("lockdown", "old", "new")``."""
    changes: dict[str, list[tuple[str, str]]] = {}
    source = bundle.source

    def changed(name: str) -> str:
        text = source(name)
        for old, new in changes.get(name, []):
            assert old in text
            text = text.replace(old, new)
        return text

    def change(module: str, old: str, new: str) -> None:
        changes.setdefault(module, []).append((old, new))

    monkeypatch.setattr(bundle, "source", changed)
    monkeypatch.setattr(backends, "_KNOWN", {})
    monkeypatch.setattr(backends, "_MISSING", {})
    return change


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if no container engine were installed."""
    monkeypatch.setattr(shutil, "which", lambda *_: None)


FORK = "            pid = os.fork()\n        except"
NO_FORK = f"            if memory_bytes == 77 << 20: raise OSError(11, 'no more')\n{FORK}"


def while_locking_down(statement: str) -> tuple[str, str, str]:
    """The change that runs a statement in the child that is to have 77 MiB."""
    step = "            make(calls)"
    condition = "if LIMIT.unpack(self._memory)[0] == 77 << 20"
    return "lockdown", step, f"            {condition}: {statement}\n{step}"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (while_locking_down("raise OSError(1, 'a wall fell')"), "a wall fell"),
        (while_locking_down("os._exit(0)"), "before it was locked down (exit code 0)"),
        (while_locking_down("raise MemoryError"), ""),
        (while_locking_down("raise KeyboardInterrupt"), ""),
        (("zygote", FORK, NO_FORK), "fork: [Errno 11] no more"),
    ],
)
def test_a_fault_before_the_program_refuses_one_run_and_no_other(
    broken: Break, change: tuple[str, str, str], why: str
) -> None:
    broken(*change)
    with opened(layers="zygote") as sandbox:
        with sandbox.start("script", b"print(input())", stdin=b"still here\n", limits=PATIENT) as other:
            result = sandbox.run("script", "print('ran')", limits=Limits(memory_bytes=77 << 20))
            assert (result.outcome, result.stdout, result.exit_code) == (Outcome.REFUSED, b"", None)
            assert why in result.why
            assert other.wait().stdout == b"still here\n"
        assert sandbox.run("script", "print('ran')", limits=PATIENT).stdout == b"ran\n"


@pytest.mark.usefixtures("alone")
def test_capabilities_that_are_left_are_noticed(broken: Break) -> None:
    broken("lockdown", 'libc("capset", header, bytes(24))', "pass")
    broken("lockdown", "if user is not None:", "if False:")
    # Root has some to begin with, and anybody gets them all in a namespace of his own.
    if os.geteuid() != 0 and "namespaces" in backends.missing_layers():
        pytest.skip("there are no capabilities to be left")
    with pytest.raises(SandboxUnavailableError, match="capabilities are left"):
        Sandbox()


LANDLOCK = ("landlock", "    version = abi()\n    actions", "    raise OSError(38, 'gone')\n    actions")
NAMESPACES = ("namespaces", "    uid, gid = os.get", "    raise OSError(1, 'gone')\n    uid, gid = os.get")
MOUNTS = ("namespaces", "    _mount_empty(_STAGE)", "    raise OSError(1, 'gone')")


@pytest.mark.parametrize("missing", [LANDLOCK, NAMESPACES])
def test_one_layer_around_the_files_is_enough(broken: Break, missing: tuple[str, str, str]) -> None:
    broken(*missing)
    with opened(layers="zygote") as sandbox:
        kept = {"landlock": ("namespaces", "mounts"), "namespaces": ("landlock",)}[missing[0]]
        assert sandbox.layers == ("zygote", *kept, "seccomp")
        assert "gone" in backends.missing_layers()[missing[0]]
        assert sandbox.run("script", "open('/etc/passwd')", limits=PATIENT).exit_code == 1
        with Sandbox(layers="zygote") as second:
            assert second.layers == sandbox.layers


ALLOW_ALL = "= [(_RETURN, 0, 0, _ALLOW)]"
BECOME = "        os.setresuid(user, user, user)\n"
RISCV = ("kernel", "MACHINE = platform.machine()", "MACHINE = 'riscv64'")
nobody_else = pytest.mark.skipif(unused_id(0) is None, reason="there is no other user to become")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([("seccomp", "= _shared(machine)", ALLOW_ALL)], "does not hold"),
        ([("seccomp", "= _own(machine)", ALLOW_ALL)], "does not hold"),
        pytest.param([("lockdown", BECOME, "")], "still .* after becoming", marks=nobody_else),
        ([LANDLOCK, MOUNTS], r"landlock: .* gone.*none of docker"),
        ([RISCV], "written for x86_64, aarch64, not for riscv64"),
    ],
    ids=["filter of all runs", "filter of a run", "same user", "no layer around the files", "architecture"],
)
def test_what_does_not_hold_is_noticed(
    broken: Break, changes: list[tuple[str, str, str]], words: str
) -> None:
    for change in changes:
        broken(*change)
    with pytest.raises(SandboxUnavailableError, match=words):
        Sandbox()


def test_an_interpreter_in_a_private_place(tmp_path: Path) -> None:
    private = tmp_path / "home"
    (private / "lib").mkdir(parents=True)
    private.chmod(0o700)
    assert not Interpreter("x", (3, 11), (str(private / "lib"),), (), ()).public
    assert Interpreter("x", (3, 11), ("/usr/lib",), (), ()).public


def test_installed_packages_are_hidden() -> None:
    for interpreter in interpreters():
        for path in interpreter.readable():
            assert "site-packages" not in path
            assert "dist-packages" not in path
        assert any(path.endswith("os.py") or path in interpreter.library for path in interpreter.readable())


ECHO = {"echo": "channel.write_frame(payload + channel.read_frame())"}


def check_backend(sandbox: Sandbox) -> None:
    """Streams, frames, exit codes, signals and limits come through."""
    program = "import sys\nprint(input(), len(sys.stdin.read()))\nprint('e', file=sys.stderr)\nexit(3)"
    result = sandbox.run("script", program, stdin=b"hi\n" + b"x" * 200_000, limits=PATIENT)
    assert (result.stdout, result.stderr, result.exit_code) == (b"hi 200000\n", b"e\n", 3)
    with sandbox.start("echo", b"a" * 100_000, limits=PATIENT) as process:
        process.send(b"b")
        assert process.receive() == b"a" * 100_000 + b"b"
        assert process.wait().ok
    crash = sandbox.run("script", "import os; os.abort()", limits=PATIENT)
    assert (crash.outcome, crash.signal) == (Outcome.KILLED, 6)
    slow = sandbox.run("script", "import time; time.sleep(60)", limits=Limits(wall_seconds=0.5))
    assert slow.outcome is Outcome.TIMEOUT
    flood = sandbox.run("script", "while True: print('x' * 1000)", limits=PATIENT)
    assert (flood.outcome, len(flood.stdout)) == (Outcome.OUTPUT, PATIENT.output_bytes)


def command(path: Path, program: str) -> None:
    path.write_text(f"#!{sys.executable}\n{program}\n")
    path.chmod(stat.S_IRWXU)


ENGINE = """
import os, sys
words = sys.argv[1:]
if words[:2] == ["image", "inspect"]:
    sys.exit(0)
if words[0] == "kill":
    os.kill(int(open(f"{os.path.dirname(__file__)}/{words[1]}").read()), 9)
    sys.exit()
open(os.path.dirname(__file__) + "/" + words[words.index("--name") + 1], "w").write(str(os.getpid()))
for wanted in ("--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--rm",
               "--interactive", "--user=65534:65534", "--pull=never", "--pids-limit=128"):
    assert wanted in words, wanted
place = next(i for i, word in enumerate(words) if word.startswith("python:"))
environment = dict(word[6:].split("=", 1) for word in words if word.startswith("--env="))
os.execve(PYTHON, words[place + 1 :], environment)
"""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A container engine that runs the command just so: the pipes are tested, not the walls."""
    command(tmp_path / "docker", ENGINE.replace("PYTHON", repr(interpreters()[0].path)))
    monkeypatch.setattr(shutil, "which", lambda name: str(tmp_path / name) if name == "docker" else None)


@pytest.mark.usefixtures("engine")
def test_a_container() -> None:
    with Sandbox(layers="container", drivers=ECHO) as sandbox:
        assert sandbox.layers[0] == "container"
        check_backend(sandbox)


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (None, "none of docker, podman is installed"),
        ("import sys; sys.exit('no daemon')", f"no daemon; .* pull {container_backend.IMAGE}"),
        ("import sys; sys.exit(sys.argv[1] != 'image')", "the container ended without saying how"),
    ],
)
def test_an_engine_that_does_not_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, program: str | None, words: str
) -> None:
    if program is not None:
        command(tmp_path / "docker", program)
    monkeypatch.setattr(shutil, "which", lambda name: program and str(tmp_path / name))
    with pytest.raises(SandboxUnavailableError, match=words):
        Sandbox(layers="container")


def check_command(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int | str | None:
    monkeypatch.setattr(sys, "argv", ["art-gym", "sandbox", "check", *arguments])
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code


def test_the_probes_hold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    opened(layers="zygote").close()
    assert check_command(monkeypatch) == 0
    shown = capsys.readouterr().out
    assert f"{len(PROBES)} of {len(PROBES)} held" in shown
    for word in ("zygote", "container", "landlock", "namespaces", "endless loop"):
        assert word in shown
    assert not os.path.exists("/tmp/art-gym-probe")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 1, "No sandbox works on this machine"),
        (["--layers", "container"], 2, "none of docker, podman is installed"),
        (["--layers", "contaner"], 2, "did you mean `container`?"),
    ],
)
def test_layers_that_are_not_there(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    for name, value in (("_LAYERS", ()), ("_KNOWN", {}), ("_MISSING", {})):
        monkeypatch.setattr(backends, name, value)
    assert check_command(monkeypatch, *arguments) == code
    assert words in "".join(capsys.readouterr())


FREE = ("fork", "exec", "read files", "list files", "network", "abstract socket", "processes")


@pytest.mark.parametrize("probe", [probe for probe in PROBES if probe.name in FREE], ids=lambda p: p.name)
def test_the_probes_do_get_out_if_nothing_holds(probe: Probe) -> None:
    done = subprocess.run([sys.executable, "-c", probe.program], capture_output=True, check=False)
    run = Run(Outcome.EXITED, done.returncode, stdout=done.stdout)
    assert not probe.held(run), "it shows nothing: it holds where nothing does"


def test_no_further_program_runs_after_one_of_the_first_got_out(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = Probe("fork", "", "print('OUT')")
    monkeypatch.setattr(check, "FIRST", (harmless,))
    monkeypatch.setattr(check, "PROBES", (harmless, Probe("next", "", "print('HELD')")))
    with opened(layers="zygote") as sandbox:
        [result] = check.probe(sandbox)
    assert (result.held, result.after) == (False, True)


def test_a_refused_run_shows_nothing() -> None:
    for probe in PROBES:
        assert not probe.held(Run(Outcome.REFUSED, stdout=b"HELD\n"))
    assert [probe.name for probe in FIRST] == ["endless loop", "fork", "signal"]
    assert not FIRST[1].held(Run(Outcome.EXITED, stdout=b"OUT\n"))
    assert not FIRST[0].held(Run(Outcome.EXITED, stdout=b"HELD\n"))
