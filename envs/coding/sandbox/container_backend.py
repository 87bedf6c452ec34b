"""The container backend: one Docker or Podman container for each run."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from typing import Any, BinaryIO

from art_gym.envs.coding.sandbox.bundle import BOOTSTRAP, bundle
from art_gym.envs.coding.sandbox.child.channel import ENDED, write_all
from art_gym.envs.coding.sandbox.child.relay import END, FROM_CHILD, HEAD, TO_CHILD
from art_gym.envs.coding.sandbox.interpreter import ENVIRONMENT, FLAGS
from art_gym.envs.coding.sandbox.process import Ended
from art_gym.envs.coding.sandbox.run import Request, SandboxUnavailableError
from art_gym.envs.coding.sandbox.streams import Pipes

_ENGINES = ("docker", "podman")
_TRIAL_SECONDS = 30.0
_BLOCK = 1 << 16
IMAGE = f"python:{sys.version_info[0]}.{sys.version_info[1]}-slim"


class ContainerBackend:
    """Starts a container for each run.

    Args:
        config: As for a zygote.

    Raises:
        SandboxUnavailableError: No engine runs here, or the image is missing (it is never fetched unasked).
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        engine = next(filter(None, map(shutil.which, _ENGINES)), None)
        if engine is None:
            raise SandboxUnavailableError(f"none of {', '.join(_ENGINES)} is installed")
        self._engine = engine
        try:
            command = [engine, "image", "inspect", IMAGE]
            found = subprocess.run(command, capture_output=True, timeout=_TRIAL_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxUnavailableError(str(error)) from error
        if found.returncode:
            last = found.stderr.decode(errors="replace").strip().splitlines()[-1:]
            name = os.path.basename(engine)
            raise SandboxUnavailableError(
                f"{last[0] if last else 'no image'}; to get a missing image: {name} pull {IMAGE}"
            )
        self.layers = ("container", *config["plan"])
        """The layers of isolation of a run."""
        self.ahead = False
        self.alive = True
        self._config = dict(config)
        self._drivers = self._config.pop("drivers")

    def spawn(self, request: Request, pipes: Pipes) -> ContainerHandle:
        """Start a run on the child's ends of these pipes.

        Raises:
            OSError: The engine could not be started.
        """
        name = f"art-gym-{uuid.uuid4().hex}"
        command = [self._engine, "run", "--rm", "--interactive", "--name", name, "--pull=never"]
        command += ["--network=none", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"]
        command += ["--user=65534:65534", "--pids-limit=128", "--workdir=/"]
        command += [f"--memory={request.limits.memory_bytes + (64 << 20)}"]  # the relay and the interpreter
        command += [f"--env={key}={value}" for key, value in ENVIRONMENT.items()]
        command += [IMAGE, "python3", *FLAGS, "-c", BOOTSTRAP]
        config = {**self._config, "request": request.to_json(), "driver": self._drivers[request.driver]}
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return ContainerHandle(process, bundle("relay", config), pipes, [self._engine, "kill", name])

    def close(self) -> None:
        """Nothing is kept between runs."""
        self.alive = False


class ContainerHandle:
    """A run in a container; see ``Handle``. Two threads carry its pipes."""

    def __init__(
        self, process: subprocess.Popen[bytes], words: bytes, pipes: Pipes, kill_command: list[str]
    ) -> None:
        assert process.stdin
        assert process.stdout
        self._process, self._kill_command = process, kill_command
        self._ended: Ended | None = None
        self._killed = False
        self._news, self._bell = os.pipe()
        # The threads need the pipes longer than the caller, who closes his.
        mine = [os.dup(pipe) for pipe in pipes]
        carriers = (
            threading.Thread(target=_carry_in, args=(process.stdin, words, mine), daemon=True),
            threading.Thread(target=self._carry_out, args=(process.stdout, mine), daemon=True),
        )
        for carrier in carriers:
            carrier.start()
        self._carriers = carriers

    def fileno(self) -> int:
        """Readable when the run has ended."""
        return self._news

    def ended(self) -> Ended | None:
        """How it ended; ``None`` while it has not."""
        return self._ended

    def kill(self) -> None:
        """Kill the container, and the engine's client with it."""
        if self._ended is None:
            self._killed = True
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                subprocess.run(self._kill_command, capture_output=True, timeout=_TRIAL_SECONDS, check=False)
            self._process.kill()

    def close(self) -> None:
        """Kill what is left."""
        self.kill()
        self._process.wait()
        for carrier in self._carriers:
            carrier.join()
        os.close(self._news)

    def _carry_out(self, source: BinaryIO, targets: list[int]) -> None:
        ended = None
        while head := source.read(HEAD.size):
            pipe, length = HEAD.unpack(head)
            data = source.read(length)
            if pipe == END:
                ended = Ended.of(*ENDED.unpack(data))
            elif pipe in FROM_CHILD:
                with contextlib.suppress(BrokenPipeError):
                    write_all(targets[pipe], data)
        if ended is None:
            word = "" if self._killed else "the container ended without saying how its program did"
            ended = Ended(None, int(signal.SIGKILL), 0.0, word)
        self._ended = ended
        for pipe in FROM_CHILD:
            os.close(targets[pipe])
        os.close(self._bell)
        source.close()


def _carry_in(target: BinaryIO, words: bytes, sources: list[int]) -> None:
    """First the bundle, then what the parent writes to stdin and channel, until it closes them."""
    with contextlib.suppress(BrokenPipeError), target:
        target.write(words)
        target.flush()
        poll = select.poll()
        for pipe in TO_CHILD:
            poll.register(sources[pipe], select.POLLIN)
        places = {sources[pipe]: pipe for pipe in TO_CHILD}
        while places:
            for source, _ in poll.poll():
                data = os.read(source, _BLOCK)
                target.write(HEAD.pack(places[source], len(data)) + data)
                target.flush()
                if not data:
                    poll.unregister(source)
                    del places[source]
    for pipe in TO_CHILD:
        os.close(sources[pipe])
