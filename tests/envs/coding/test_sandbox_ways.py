"""The ways of isolation: what is chosen where something is missing, and that nothing runs without walls."""

from __future__ import annotations

import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from art_gym.envs.coding.sandbox import (
    Limits,
    Outcome,
    Sandbox,
    SandboxUnavailable,
    backends,
    bundle,
    container,
)
from art_gym.envs.coding.sandbox.child.rights import unused_id
from art_gym.envs.coding.sandbox.interpreter import Interpreter, interpreters

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
    """As if neither bubblewrap nor a container engine were installed."""
    monkeypatch.setattr(shutil, "which", lambda *_: None)


def zygote(**arguments: object) -> Sandbox:
    try:
        return Sandbox(layers="zygote", **arguments)  # type: ignore[arg-type]
    except SandboxUnavailable as error:
        pytest.skip(str(error))


def break_lockdown(broken: Break, statement: str) -> None:
    """Let a child that is to have 77 MiB do this while it locks itself down."""
    condition = "if LIMIT.unpack(self._memory)[0] == 77 << 20: "
    step = "            make(calls)"
    broken("lockdown", step, f"            {condition}{statement}\n{step}")


def test_a_wall_that_fails_in_the_child_refuses_the_run(broken: Break) -> None:
    break_lockdown(broken, "raise OSError(1, 'a wall fell')")
    with zygote() as sandbox:
        result = sandbox.run("script", "print('ran')", limits=Limits(memory_bytes=77 << 20))
        assert result.outcome is Outcome.REFUSED
        assert "a wall fell" in result.why
        assert (result.stdout, result.exit_code, result.ok) == (b"", None, False)
        assert sandbox.run("script", "print('ran')", limits=PATIENT).stdout == b"ran\n"


def test_a_child_that_dies_before_its_lockdown_refuses_the_run(broken: Break) -> None:
    break_lockdown(broken, "os._exit(0)")
    with zygote() as sandbox:
        result = sandbox.run("script", "print('ran')", limits=Limits(memory_bytes=77 << 20))
        assert (result.outcome, result.stdout) == (Outcome.REFUSED, b"")
        assert "before it was locked down (exit code 0)" in result.why


def test_a_fork_that_fails_refuses_one_run(broken: Break) -> None:
    fork = "            pid = os.fork()\n        except"
    broken("zygote", fork, f"            if memory_bytes == 77 << 20: raise OSError(11, 'no more')\n{fork}")
    with zygote() as sandbox:
        with sandbox.start("script", b"print(input())", stdin=b"still here\n", limits=PATIENT) as other:
            result = sandbox.run("script", "print('ran')", limits=Limits(memory_bytes=77 << 20))
            assert (result.outcome, result.stdout) == (Outcome.REFUSED, b"")
            assert "fork: [Errno 11] no more" in result.why
            assert other.wait().stdout == b"still here\n"
        assert sandbox.run("script", "print('ran')", limits=PATIENT).ok


@pytest.mark.parametrize("kind", ["MemoryError", "KeyboardInterrupt", "ZeroDivisionError"])
def test_no_error_leads_past_the_lockdown(broken: Break, kind: str) -> None:
    break_lockdown(broken, f"raise {kind}")
    with zygote() as sandbox:
        result = sandbox.run("script", "print('ran')", limits=Limits(memory_bytes=77 << 20))
        assert (result.outcome, result.stdout) == (Outcome.REFUSED, b"")


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("part", ["_shared(machine)", "_own(machine)"])
def test_a_filter_that_does_not_hold_is_noticed(broken: Break, part: str) -> None:
    broken("seccomp", f"= {part}", "= [(_RETURN, 0, 0, _ALLOW)]")
    with pytest.raises(SandboxUnavailable, match="does not hold"):
        Sandbox()


@pytest.mark.usefixtures("alone")
@pytest.mark.skipif(unused_id(0) is None, reason="there is no other user to become")
def test_a_user_that_does_not_change_is_noticed(broken: Break) -> None:
    broken("rights", "        os.setresuid(user, user, user)\n", "")
    with pytest.raises(SandboxUnavailable, match=r"still .* after becoming"):
        Sandbox()


@pytest.mark.usefixtures("alone")
def test_capabilities_that_are_left_are_noticed(broken: Break) -> None:
    broken("rights", 'libc("capset", header, bytes(24))', "pass")
    broken("rights", "if user is not None:", "if False:")
    # Root has some to begin with, and anybody gets them all in a namespace of his own.
    if os.geteuid() != 0 and "namespaces" in backends.missing_walls():
        pytest.skip("there are no capabilities to be left")
    with pytest.raises(SandboxUnavailable, match="capabilities are left"):
        Sandbox()


def test_without_landlock_the_mounts_stand_alone(broken: Break) -> None:
    broken(
        "landlock", "    version = abi()\n    actions", "    raise OSError(38, 'no landlock')\n    actions"
    )
    with zygote() as sandbox:
        assert "landlock" not in sandbox.layers
        assert "mounts" in sandbox.layers
        assert "no landlock" in backends.missing_walls()["landlock"]
        assert sandbox.run("script", "open('/etc/passwd')", limits=PATIENT).exit_code == 1
        with Sandbox(layers="zygote") as second:
            assert second.layers == sandbox.layers


def test_without_namespaces_landlock_stands_alone(broken: Break) -> None:
    broken("namespaces", "    uid, gid = os.get", "    raise OSError(1, 'not here')\n    uid, gid = os.get")
    with zygote() as sandbox:
        assert sandbox.layers == ("zygote", "landlock", "seccomp")
        assert "not here" in backends.missing_walls()["namespaces"]
        assert sandbox.run("script", "open('/etc/passwd')", limits=PATIENT).exit_code == 1


@pytest.mark.usefixtures("alone")
def test_with_no_wall_around_files_there_is_no_sandbox(broken: Break) -> None:
    broken(
        "landlock", "    version = abi()\n    actions", "    raise OSError(38, 'no landlock')\n    actions"
    )
    broken("namespaces", "    _mount_empty(_STAGE)", "    raise OSError(1, 'no mounts')")
    with pytest.raises(SandboxUnavailable, match=r"no landlock.*bubblewrap is not installed.*docker"):
        Sandbox()
    with Sandbox(unsafe_without_isolation=True) as sandbox:
        assert sandbox.layers == ("nothing",)
        assert sandbox.run("script", "print(6 * 7)", limits=PATIENT).stdout == b"42\n"
        slow = Limits(wall_seconds=0.2)
        assert sandbox.run("script", "import time; time.sleep(9)", limits=slow).outcome is Outcome.TIMEOUT
        assert sandbox.run("script", "x = bytearray(1 << 34)", limits=PATIENT).outcome is Outcome.MEMORY


@pytest.mark.usefixtures("alone")
def test_other_architectures_are_refused_by_name(broken: Break) -> None:
    broken("kernel", "MACHINE = platform.machine()", "MACHINE = 'riscv64'")
    with pytest.raises(SandboxUnavailable, match="written for x86_64, aarch64, not for riscv64"):
        Sandbox(layers="zygote")


def test_unknown_layers() -> None:
    with pytest.raises(ValueError, match="did you mean `zygote`"):
        Sandbox(layers="zygotes")  # type: ignore[arg-type]


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


@pytest.fixture
def bubblewrap() -> Sandbox:
    try:
        return Sandbox(
            layers="bubblewrap", drivers={"echo": "channel.write_frame(payload + channel.read_frame())"}
        )
    except SandboxUnavailable as error:
        pytest.skip(str(error))


def test_bubblewrap(bubblewrap: Sandbox) -> None:
    with bubblewrap as sandbox:
        result = sandbox.run(
            "script", "import os, sqlite3\nprint(input(), os.getuid())", stdin=b"hi\n", limits=PATIENT
        )
        assert (result.stdout, result.stderr) == (b"hi 65534\n", b"")
        with sandbox.start("echo", b"a", limits=PATIENT) as process:
            process.send(b"b")
            assert process.receive() == b"ab"
        slow = sandbox.run("script", "while True: pass", limits=Limits(wall_seconds=0.5))
        assert slow.outcome is Outcome.TIMEOUT
        crash = sandbox.run("script", "import os; os.abort()", limits=PATIENT)
        assert (crash.outcome, crash.signal) == (Outcome.KILLED, 6)
        spent = sandbox.run("script", "while True: pass", limits=Limits(wall_seconds=20, cpu_seconds=0.5))
        assert spent.outcome is Outcome.CPU


def test_a_bubblewrap_that_does_not_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command(tmp_path / "bwrap", "import sys; sys.exit('No permissions to create a new namespace')")
    monkeypatch.setattr(shutil, "which", lambda name: str(tmp_path / name))
    with pytest.raises(SandboxUnavailable, match=r"No permissions to create|Permission denied"):
        Sandbox(layers="bubblewrap")


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
def engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A container engine that runs the command just so: the pipes are tested, not the walls."""
    command(tmp_path / "docker", ENGINE.replace("PYTHON", repr(interpreters()[0].path)))
    monkeypatch.setattr(shutil, "which", lambda name: str(tmp_path / name) if name == "docker" else None)
    return tmp_path / "docker"


@pytest.mark.usefixtures("engine")
def test_a_container() -> None:
    echo = "channel.write_frame(payload + channel.read_frame())"
    with Sandbox(layers="container", drivers={"echo": echo}) as sandbox:
        assert sandbox.layers[0] == "container"
        program = "import sys\nprint(input(), len(sys.stdin.read()))\nprint('e', file=sys.stderr)\nexit(3)"
        result = sandbox.run("script", program, stdin=b"hi\n" + b"x" * 200_000, limits=PATIENT)
        assert (result.stdout, result.stderr, result.exit_code) == (b"hi 200000\n", b"e\n", 3)
        with sandbox.start("echo", b"a" * 100_000, limits=PATIENT) as process:
            process.send(b"b")
            assert process.receive() == b"a" * 100_000 + b"b"
            assert process.wait().ok
        crash = sandbox.run("script", "import os; os.abort()", limits=PATIENT)
        assert (crash.outcome, crash.signal) == (Outcome.KILLED, 6)
        slow = sandbox.run("script", "import time; time.sleep(60)", limits=Limits(wall_seconds=0.3))
        assert slow.outcome is Outcome.TIMEOUT
        flood = sandbox.run("script", "while True: print('x' * 1000)", limits=PATIENT)
        assert (flood.outcome, len(flood.stdout)) == (Outcome.OUTPUT, PATIENT.output_bytes)


def test_an_engine_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(SandboxUnavailable, match="none of docker, podman is installed"):
        Sandbox(layers="container")
    command(tmp_path / "docker", "import sys; sys.exit('Cannot connect to the daemon')")
    monkeypatch.setattr(shutil, "which", lambda name: str(tmp_path / name))
    with pytest.raises(SandboxUnavailable, match=f"Cannot connect to the daemon; .* pull {container.IMAGE}"):
        Sandbox(layers="container")


def test_a_container_that_ends_at_once(engine: Path) -> None:
    command(engine, "import sys; sys.exit(sys.argv[1] != 'image')")
    with pytest.raises(SandboxUnavailable, match="the container ended without saying how"):
        Sandbox(layers="container")
