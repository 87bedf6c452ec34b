"""An agent that is a program: run once for each attempt, in a folder of its own.

The program finds the episode's URL and key where the official clients look for them, in ``OPENAI_BASE_URL``,
``OPENAI_API_KEY``, ``ANTHROPIC_BASE_URL`` and ``ANTHROPIC_API_KEY``, and its task in its arguments. It is
told nothing else of the task, which may hold the answer, and cannot set its own reward.
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from art_trainer.errors import ConfigError
from art_trainer.serving.agents.rollouts import Result
from art_trainer.serving.agents.sessions import Reward
from art_trainer.serving.dialects.chat import json_text

OUTPUT = "output.txt"
"""The file beside the working folder with what the program printed."""
_KEPT_FOLDERS = 1000
_LAST_BYTES = 64 * 2**10
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Attempt:
    """A program that has ended by itself, as a reward function sees it."""

    task: Any
    """The task."""
    folder: Path
    """The program's working folder, as it left it."""
    exit_code: int
    """Its exit code; below 0 the signal that ended it."""
    output: str
    """The last 64 KiB of what it printed."""
    conversations: list[list[dict[str, Any]]]
    """The messages of each of its conversations with the model, the model's as they were sampled."""


RewardFunction = Callable[[Attempt], Result | Mapping[str, Any]]
"""The reward of an attempt: a number, or a mapping with ``reward`` and perhaps ``success`` and ``metrics``;
``None`` if the program failed for a reason that is not the model's, so that nothing is learned from it."""


class Program:
    """Runs a command for one attempt after another; several may run at one time.

    Args:
        command: The command, split as a shell would, but run without one. ``{task}`` becomes the task, as
            JSON if it is no text, and ``{key}`` an entry of a task that is a mapping.
        folder: Where each attempt gets a folder, of which the newest 1000 are kept.
        timeout: Seconds after which the program and all its children are killed.

    Raises:
        ConfigError: The command is empty, has an open quote, or names a program that is not there.
    """

    def __init__(self, command: str, folder: Path, *, timeout: float) -> None:
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"agent {command!r}: {error}") from None
        found = shutil.which(self._arguments[0]) if self._arguments else None
        if found is None:
            raise ConfigError(f"agent {command!r}: no program {next(iter(self._arguments), '')!r} in PATH")
        # Attempts run in other folders than this one: what is a file here gets its whole path. Links stay, as
        # the Python of a virtual environment is one.
        parts = [found, *self._arguments[1:]]
        self._arguments = [os.path.abspath(part) if Path(part).is_file() else part for part in parts]
        self._folder = folder
        self._timeout = timeout
        self._folders = sorted(folder.glob("[0-9]*"))
        self._numbers = itertools.count(int(self._folders[-1].name) + 1 if self._folders else 0)
        self._running: set[subprocess.Popen[bytes]] = set()
        self._closed = False
        self._lock = threading.Lock()

    def arguments(self, task: Any) -> list[str]:
        """The command's arguments for a task.

        Raises:
            ConfigError: The task has not all entries that the command names.
        """
        entries = {"task": task, **task} if isinstance(task, Mapping) else {"task": task}

        def value(match: re.Match[str]) -> str:
            if match[1] not in entries:
                known = ", ".join(f"{{{name}}}" for name in entries)
                raise ConfigError(f"the agent's command has {match[0]}, but a task has only {known}")
            return json_text(entries[match[1]])

        return [_PLACEHOLDER.sub(value, part) for part in self._arguments]

    def run(self, base_url: str, api_key: str, task: Any, env: Mapping[str, str] | None = None) -> Attempt:
        """Run the program, and wait for its end.

        Args:
            base_url: The URL of OpenAI's API for this attempt, which ends in ``/v1``.
            api_key: Its key.
            task: The task.
            env: Other environment variables.

        Raises:
            TimeoutError: It ran longer than it may.
            OSError: It cannot be started.
        """
        number = next(self._numbers)
        place = self._folder / f"{number:06d}"
        work = place / "work"
        work.mkdir(parents=True)
        self._forget_folders(place)
        urls = {"OPENAI_BASE_URL": base_url, "OPENAI_API_BASE": base_url, "OPENAI_API_KEY": api_key}
        claude = {"ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"), "ANTHROPIC_API_KEY": api_key}
        given = {**os.environ, **urls, **claude, **(env or {})}
        with (place / OUTPUT).open("wb") as printed:
            started = subprocess.Popen(
                self.arguments(task),
                cwd=work,
                env=given,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            with self._lock:
                self._running.add(started)
                if self._closed:
                    _kill(started)
            try:
                exit_code = started.wait(self._timeout)
            except subprocess.TimeoutExpired:
                raise TimeoutError(f"the program ran for {self._timeout:g} s: see {place / OUTPUT}") from None
            finally:
                _kill(started)  # and what it left running
                with self._lock:
                    self._running.discard(started)
        return Attempt(task, work, exit_code, _tail(place / OUTPUT), _conversations(base_url, api_key))

    def close(self) -> None:
        """Kill what runs."""
        with self._lock:
            self._closed = True
            for started in self._running:
                _kill(started)

    def _forget_folders(self, newest: Path) -> None:
        with self._lock:
            self._folders.append(newest)
            oldest = self._folders.pop(0) if len(self._folders) > _KEPT_FOLDERS else None
        if oldest is not None:
            shutil.rmtree(oldest, ignore_errors=True)


class CommandAgent:
    """An agent for :class:`~art_trainer.serving.agents.rollouts.AgentBackend` that runs a program.

    Args:
        program: The program.
        reward: Gives an attempt's reward.
    """

    __name__ = "agent"
    posts_reward = False

    def __init__(self, program: Program, reward: RewardFunction) -> None:
        self._program = program
        self._reward = reward

    def __call__(self, base_url: str, api_key: str, task: Any) -> Result:
        """Play one attempt.

        Raises:
            RuntimeError: The program got no reply, or the reward function raises or says that it failed.
        """
        attempt = self._program.run(base_url, api_key, task)
        if not attempt.conversations:
            silent = "it got no reply from the policy (does it read OPENAI_BASE_URL and OPENAI_API_KEY?)"
            raise RuntimeError(f"{silent}; {failed_attempt(attempt)}")
        try:
            found = self._reward(attempt)
        except Exception as error:  # the user's own code
            raised = f"reward(attempt) raised {type(error).__name__}: {error}"
            raise RuntimeError(f"{raised}; {failed_attempt(attempt)}") from error
        if found is None:
            left_out = "reward(attempt) returned None, which leaves the attempt out (0.0 is a failed one)"
            raise RuntimeError(f"{left_out}; {failed_attempt(attempt)}")
        return Reward.model_validate(dict(found)) if isinstance(found, Mapping) else found


def failed_attempt(attempt: Attempt) -> RuntimeError:
    """The error of a program that failed: its exit code, and the last line that it printed."""
    last = attempt.output.strip().rpartition("\n")[2] or "it printed nothing"
    return RuntimeError(f"the program ended with exit code {attempt.exit_code}: {last[-300:]}")


def load_reward(file: Path) -> RewardFunction:
    """The function ``reward`` of a Python file.

    Raises:
        ConfigError: There is no such file or function, or the file cannot be imported.
    """
    spec = importlib.util.spec_from_file_location(file.stem, file) if file.is_file() else None
    if spec is None or spec.loader is None:
        raise ConfigError(f"reward {str(file)!r}: there is no such Python file")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # a file of the user's
        raise ConfigError(f"reward {str(file)!r}: {type(error).__name__}: {error}") from error
    function = getattr(module, "reward", None)
    if not callable(function):
        raise ConfigError(f"reward {str(file)!r}: it has no function `reward(attempt)`")
    found: RewardFunction = function
    return found


def read_tasks(file: Path) -> list[Any]:
    """The tasks of a file, one JSON value a line; a line that is no JSON is a text.

    Raises:
        ConfigError: The file cannot be read, or has no task.
    """
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"tasks {str(file)!r}: {error}") from None
    tasks = [_value(line, f"{file}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]
    if not tasks:
        raise ConfigError(f"tasks {str(file)!r}: the file has no task, write one a line")
    return tasks


def _value(line: str, place: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        if line.lstrip()[0] in '{["':
            raise ConfigError(f"tasks {place}: it begins like JSON, but is none: {error}") from None
        return line


def _kill(started: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(started.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        started.wait(5)


def _tail(file: Path) -> str:
    with file.open("rb") as printed:
        printed.seek(max(0, file.stat().st_size - _LAST_BYTES))
        return printed.read().decode("utf-8", "replace")


def _conversations(base_url: str, api_key: str) -> list[list[dict[str, Any]]]:
    url = f"{base_url.removesuffix('/v1')}/conversations"
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {api_key}"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through the user's proxy
    try:
        with direct.open(request, timeout=60) as answer:
            found: list[list[dict[str, Any]]] = json.load(answer)["conversations"]
    except urllib.error.HTTPError as error:
        error.close()
        raise RuntimeError(f"the attempt was given up: {error}") from None
    return found
