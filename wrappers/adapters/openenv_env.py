"""``openenv/Env-v0``: an environment behind a running OpenEnv server, by its address.

One field of the server's actions takes the reply. If the server lists tasks by split, these are the tasks;
its ``reset`` then gets ``split`` and ``index``, as in what OpenEnv's importers write. Written for openenv
0.10; https://github.com/huggingface/OpenEnv.

Not supported: actions that need more than one field, servers of tools alone (MCP), pictures, and rewards that
change after the step that they are for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from art_gym.wrappers.adapters.common import FreeTextEnv, ReplayedAdapter, import_optional, split_tasks
from art_gym.wrappers.text_adapter import DEFAULT_MAX_TURNS

_TEXTS = ("text", "observation", "prompt", "message", "content", "output")
"""Names of the field that an observation's text is in, if it has several texts."""


class RefusedActionError(Exception):
    """The server says that an action is not valid."""


class OpenEnvEnv(FreeTextEnv):
    """A session with an OpenEnv server, with Gymnasium's interface.

    Args:
        url: The server's address.
        text: The field of an observation that is shown; ``None`` shows all of them as JSON.
        action: The field of an action that takes the reply.
    """

    def __init__(self, url: str, text: str | None, action: str) -> None:
        super().__init__()
        self.settings = url, text, action
        self.past: tuple[Any, ...] = ()
        self.client = import_optional("openenv", "openenv").GenericEnvClient(base_url=url).sync()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.settings

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Begin an episode; the server is sent the seed and the options."""
        return self._shown(self.client.reset(seed=seed, **(options or {})).observation), {"success": False}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Send a reply.

        Raises:
            RefusedActionError: If the server cannot read it as an action.
        """
        sent = action.encode(errors="replace").decode()  # JSON cannot hold half a character
        try:
            result = self.client.step({self.settings[2]: sent})
        except RuntimeError as error:  # all that OpenEnv's client raises for an answer that is an error
            if "VALIDATION_ERROR" not in str(error):
                raise
            raise RefusedActionError(str(error)) from error
        reward, told = float(result.reward or 0.0), result.metadata or {}
        success = bool(result.done and told.get("success", reward >= 1))
        cut = bool(result.done and told.get("truncated"))
        return self._shown(result.observation), reward, result.done and not cut, cut, {"success": success}

    def close(self) -> None:
        """End the session."""
        self.client.close()

    def _shown(self, observation: Mapping[str, Any]) -> str:
        if (key := self.settings[1]) is not None:
            return str(observation[key])
        fields = {name: value for name, value in observation.items() if name != "metadata"}
        return json.dumps(fields or observation.get("metadata"), ensure_ascii=False)


class OpenEnvTextEnv(ReplayedAdapter):
    """Play an environment behind an OpenEnv server.

    An episode is a success if the server's metadata say so, or else if the last reward is 1 or more. The same
    seed gives the same episode if the server keeps to it; a snapshot plays the episode again from its start.

    Args:
        url: The server's address, such as ``"http://localhost:8000"``.
        text: The field of an observation that is shown; by default its only text, or one named ``text`` or
            the like, or else all fields as JSON.
        action: The field of an action that takes the reply; by default its only text.
        split: A split that the server lists, such as ``"train"``.
        max_turns: Replies in an episode; the server's own limit, if it has one.
        render_mode: As in every ``TextEnv``.

    Raises:
        ModuleNotFoundError: If OpenEnv's client is missing.
        ValueError: If no field, or more than one, could take the reply.
    """

    def __init__(
        self,
        url: str,
        *,
        text: str | None = None,
        action: str | None = None,
        split: str = "train",
        max_turns: int = DEFAULT_MAX_TURNS,
        render_mode: str | None = None,
    ) -> None:
        url = url.rstrip("/")
        with import_optional("httpx", "openenv").Client(base_url=url, timeout=60.0) as http:
            schema = http.get("/schema").raise_for_status().json()
            sizes = _splits(http)
        shown = _text_fields(schema["observation"])
        named = shown if len(shown) == 1 else [name for name in _TEXTS if name in shown]
        places = [(name, place) for name, size in sizes.items() for place in range(size)]
        super().__init__(
            OpenEnvEnv(url, text or next(iter(named), None), action or _reply_field(url, schema["action"])),
            tasks=split_tasks(sizes, lambda n: {"options": {"split": places[n][0], "index": places[n][1]}})
            if places
            else None,
            split=split,
            max_turns=max_turns,
            refusals=(RefusedActionError,),
            render_mode=render_mode,
        )


def _splits(http: Any) -> dict[str, int]:
    """How many tasks each split has; none if the server does not list tasks (404 or 501)."""
    names = http.get("/list_environments")
    if names.status_code == 404:
        return {}
    (name,) = names.raise_for_status().json()
    splits = http.get(f"/{name}/splits")
    if splits.status_code == 501:
        return {}
    found = {}
    for one in splits.raise_for_status().json():
        counted = http.post(f"/{name}/num_tasks", json={"split": one["name"]})
        found[one["name"]] = int(counted.raise_for_status().json()["num_tasks"])
    return found


def _text_fields(schema: Mapping[str, Any]) -> list[str]:
    """The fields of an object that may be a text."""
    fields = schema.get("properties", {})
    return [
        name
        for name, kind in fields.items()
        if any(one.get("type") == "string" for one in (kind, *kind.get("anyOf", ())))
    ]


def _reply_field(url: str, schema: Mapping[str, Any]) -> str:
    """The one field of an action that takes a text, where no other is required."""
    texts, needed = _text_fields(schema), set(schema.get("required", ()))
    fitting = [name for name in texts if needed <= {name}]
    if len(fitting) != 1:
        fields = ", ".join(name for name in schema.get("properties", {}) if name != "metadata")
        raise ValueError(
            f"the actions of {url} have the fields {fields or '(none)'}: which takes the reply? Pass "
            "action=, its name, if the others may be left out"
        )
    return fitting[0]
