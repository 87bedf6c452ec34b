"""verifiers' code with whoever calls ``step`` as its model: tasks are loaded, and a seat plays them.

An ``Env`` of verifiers asks a seat's program for replies, and the program a model over HTTP. Here the seat
asks ``ask``, a coroutine; the task's hooks, stops, metrics and rewards run as verifiers runs them.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import lru_cache
from itertools import islice
from typing import Any

from art_gym.wrappers.adapters.common import import_optional

Ask = Callable[[str], Awaitable[str | None]]
"""Shows a text and waits for the reply; ``None`` if nobody replies any more."""


@lru_cache(maxsize=8)
def load(env_id: str, settings: str, most: int) -> tuple[Any, tuple[Any, ...]]:
    """An environment of verifiers and its first tasks.

    Args:
        env_id: The name of its module.
        settings: Of its taskset, as JSON.
        most: The most tasks.

    Raises:
        ValueError: If it needs more than a text and a reply.
    """
    vf = _library()
    config = vf.resolve_env_config({"taskset": {"id": env_id, **json.loads(settings)}})
    env = vf.load_environment(config)
    tasks = tuple(islice(env.taskset, most))
    kind, made, seats = type(env.taskset).task_type(), config.taskset, config.agent_harnesses()
    programs = [vf.load_harness(one) for one in seats.values() if one.id != "bash"]  # bash: none was named
    discover = _library("utils.decorators").discover_decorated
    hooks = [hook for task in tasks[:1] for hook in task.hooks("stop")]
    boundary = _library("session").hook_boundary
    needs = {
        f"{len(seats)} seats ({', '.join(seats)})": len(seats) != 1,
        "a program as player": any(program.EXECUTES_CODE for program in programs),
        "tools": kind.toolsets(made.task) or type(env.taskset).toolsets(made),
        "judges that ask a model": made.task.judges,
        "a container": kind.NEEDS_CONTAINER or any(task.data.image for task in tasks),
        "shared servers": type(env).start is not vf.Env.start,
        "hooks on requests": any(discover(task, "intercept") for task in tasks[:1])
        or any(boundary(hook, allow_trace=True) is not vf.Trace for hook in hooks),
    }
    if missing := [name for name, needed in needs.items() if needed]:
        raise ValueError(f"`{env_id}` needs {' and '.join(missing)}, which verifiers/Env-v0 does not have")
    if not tasks:
        raise ValueError(f"`{env_id}` has no tasks with the settings {settings}")
    return env, tasks


class Seat:
    """What ``Env.run`` knows as an agent."""

    trainable = True

    def __init__(self, config: Any, ask: Ask) -> None:
        self.config, self.ask, self.trace = config, ask, None

    async def run(self, task: Any, **borrowed: Any) -> Any:
        """One reply to the task's prompt; the trace."""
        async with self.interaction(task) as interaction:
            await interaction.turn()
        return self.trace

    @asynccontextmanager
    async def interaction(self, task: Any, **borrowed: Any) -> AsyncIterator[Interaction]:
        """A conversation; the task scores it at its end."""
        if self.trace is not None:
            raise NotImplementedError("verifiers/Env-v0 plays one conversation an episode, not several")
        vf, invoke = _library(), _library("utils.decorators").invoke
        about = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        state = _library("state").state_cls(type(task))()
        self.trace = trace = vf.Trace(task=about, state=state, agent=vf.AgentInfo(config=self.config))
        given = {"trace": trace, "runtime": _NoRuntime()}
        await invoke(task.setup, given)
        yield Interaction(task, trace, self.ask)
        trace.stop("user_closed")
        await invoke(task.finalize, given)
        await task.score(trace, given["runtime"])
        trace.ok = True


class Interaction:
    """verifiers' ``Interaction``: each turn shows messages and waits for a reply."""

    def __init__(self, task: Any, trace: Any, ask: Ask) -> None:
        self.task, self.trace, self.ask = task, trace, ask

    async def turn(self, message: Any = None) -> Any:
        """Show the prompt or a user's message; the segment is terminated if no reply comes."""
        vf, nodes, stops = _library(), self.trace.nodes, self.task.hooks("stop")
        if self.trace.stop_condition:
            raise RuntimeError(f"the conversation is over ({self.trace.stop_condition}): its loop must end")
        opens = not nodes and self.task.data.prompt is not None
        if opens != (message is None):
            raise ValueError(
                "the prompt, if there is one, opens the conversation; each later turn has a message"
            )
        new = _messages(self.task.data.prompt if opens else message)
        for stop in stops:
            if not self.trace.stop_condition and await _library("session").call_hook(
                stop, {vf.Trace: self.trace}
            ):
                self.trace.stop(stop.__name__)
        reply = None if self.trace.stop_condition else await self.ask(_text(new))
        if reply is None:
            self.trace.stop("max_turns")
            return vf.Segment(messages=[], terminated=True)
        answer, system = vf.AssistantMessage(content=reply), self.task.data.system_prompt
        if not nodes and system is not None:
            new.insert(0, vf.SystemMessage(content=system))
        for one in [*new, answer]:
            nodes.append(
                vf.MessageNode(parent=len(nodes) - 1 if nodes else None, message=one, sampled=one is answer)
            )
        return vf.Segment(messages=[answer])


class _NoRuntime:
    """Lets hooks name a ``runtime`` among their arguments, but not use it."""

    def __getattr__(self, name: str) -> Any:
        raise NotImplementedError(f"the environment uses runtime.{name}: verifiers/Env-v0 has no sandbox")


def _library(part: str = "") -> Any:
    return import_optional(f"verifiers.v1.{part}".rstrip("."), "verifiers")


def _messages(said: Any) -> list[Any]:
    """A prompt or a turn as verifiers' messages."""
    if isinstance(said, str):
        return [_library().UserMessage(content=said)]
    return [_library("dialects").parse_message(one) if isinstance(one, dict) else one for one in said]


def _text(messages: list[Any]) -> str:
    """Messages as one text; if there are several, each below its role.

    Raises:
        ValueError: If there is a picture.
    """
    texts = []
    for one in messages:
        if not isinstance(one.content, str | None) and any(part.type != "text" for part in one.content):
            raise ValueError("a message has a picture: verifiers/Env-v0 shows text alone")
        text = _library("types").content_text(one.content)
        texts.append(text if len(messages) == 1 else f"[{one.role}]\n{text}")
    return "\n\n".join(texts)
