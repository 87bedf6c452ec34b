"""Checks of what a text environment declares and returns: the first half of the contract."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any, Final

import gymnasium as gym

from art_gym.spaces import UnicodeText
from art_gym.testing.rules import Rule, check, must_not_raise
from art_gym.testing.trajectories import Subject, Transition, quoted

HEADINGS: Final = (
    "Description",
    "Action Space",
    "Observation Space",
    "Starting State",
    "Rewards",
    "Episode End",
    "Information",
    "Arguments",
    "References",
    "Version History",
)
"""The headings of an environment's docstring, in their order."""
_VALID_CALLS: Final = (
    "Declare values that the tool takes, as in @tool(examples={'city': ['Paris', 'Lima']}), "
    "or, where valid calls depend on the state, write your own baselines['random']."
)
_PARTS: Final[dict[str, dict[str, type]]] = {
    "call": {"name": str, "arguments": dict},
    "error": {"kind": str, "message": str},
}


@check(Rule.SPACES)
def _spaces(subject: Subject) -> Iterator[str]:
    for name in ("action_space", "observation_space"):
        space = getattr(subject.env, name, None)
        if not isinstance(space, UnicodeText):
            yield f"{name} is {space!r}."


@check(Rule.TOOLS)
def _tools(subject: Subject) -> Iterator[str]:
    with must_not_raise(Rule.TOOLS, "reading the schemas"):
        schemas = {name: item.schema() for name, item in subject.env.tools.items()}
        json.dumps(schemas, allow_nan=False)
        faults = [fault for name, schema in schemas.items() for fault in _wrong_in_schema(name, schema)]
    yield from faults
    if not schemas:
        yield "There is no tool."


def _wrong_in_schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    function = schema["function"]
    parameters = function["parameters"]
    if schema["type"] != "function" or function["name"] != name or parameters["type"] != "object":
        yield f"The schema of `{name}` is {schema}."
    for part, about in ({"the tool": function} | parameters["properties"]).items():
        if not str(about.get("description", "")).strip():
            yield f"`{name}` does not describe {part}."
    if unknown := set(parameters["required"]) - set(parameters["properties"]):
        yield f"`{name}` requires {sorted(unknown)}, which it does not declare."


@check(Rule.INFO)
def _info(subject: Subject) -> Iterator[str]:
    for episode in subject.episodes:
        for turn, seen in enumerate(episode):
            if wrong := _wrong_in_info(seen.info, turn):
                yield f"After {quoted(seen.reply)} {wrong}; info has the keys {list(seen.info)}."
        free_text = getattr(subject.env, "takes_free_text", False)
        schemas = [] if free_text else [item.schema() for item in subject.env.tools.values()]
        if episode[0].info["tools"] != schemas:
            yield "After reset `tools` is not the list of the tools' schemas."


def _wrong_in_info(info: dict[str, Any], turn: int) -> str | None:
    kinds: dict[str, type] = {"task_id": str, "turn": int}
    kinds |= {"score_terms": dict} if turn else {"tools": list, "system": str}
    for key, kind in kinds.items():
        if type(info.get(key)) is not kind:
            return f"`{key}` is not a {kind.__name__}"
    if info["turn"] != turn:
        return f"`turn` is {info['turn']}, not {turn}"
    if not turn:
        return None
    if ("call" in info) == ("error" in info):
        return "there is not exactly one of `call` and `error`"
    key = "call" if "call" in info else "error"
    found, parts = info[key], _PARTS[key]
    if type(found) is not dict or {name: type(value) for name, value in found.items()} != parts:
        return f"`{key}` is {found!r}, not a dict with {' and '.join(parts)}"
    return None


@check(Rule.JSON)
def _json(subject: Subject) -> Iterator[str]:
    for seen in subject.transitions:
        with must_not_raise(Rule.JSON, f"writing info after {quoted(seen.reply)}"):
            text = json.dumps(seen.info, allow_nan=False)
        if json.loads(text) != seen.info:
            yield f"After {quoted(seen.reply)} it comes back changed: {text[:400]}"


@check(Rule.WITHIN)
def _within(subject: Subject) -> Iterator[str]:
    for seen in subject.transitions:
        yield from outside_space(subject, seen)


def outside_space(subject: Subject, seen: Transition) -> Iterator[str]:
    """Yield the fault if an observation is not in the observation space."""
    if seen.observation not in subject.env.observation_space:
        yield (
            f"After {quoted(seen.reply)} it has {len(seen.observation):,} code points, "
            f"and ends {seen.observation[-60:]!r}; the space is {subject.env.observation_space}."
        )


@check(Rule.SYSTEM)
def _system(subject: Subject) -> Iterator[str]:
    for first, *_ in subject.episodes:
        system = first.info.get("system")
        if system and not first.observation.startswith(f"{system}\n\n"):
            yield f"It begins {first.observation[:80]!r}, system {system[:80]!r}."


@check(Rule.SCORE_TERMS)
def _score_terms(subject: Subject) -> Iterator[str]:
    for seen in subject.transitions:
        terms = seen.info.get("score_terms", {})
        named = all(type(name) is str and type(value) is float for name, value in terms.items())
        if not named or not math.isclose(sum(terms.values()), seen.reward, rel_tol=0, abs_tol=1e-9):
            yield f"After {quoted(seen.reply)}: {terms}, reward {seen.reward!r}."


@check(Rule.TASK_ID)
def _task_id(subject: Subject) -> Iterator[str]:
    known = {task.id for task in subject.env.tasks}
    for episode in subject.episodes:
        ids = {str(seen.info.get("task_id")) for seen in episode}
        if len(ids) != 1 or not ids <= known:
            yield f"An episode had {sorted(ids)}."


@check(Rule.BASELINE)
def _baseline(subject: Subject) -> Iterator[str]:
    calls = [seen.info["call"] for seen in subject.transitions if "call" in seen.info]
    called = {call.get("name") for call in calls if isinstance(call, dict)}
    never = ", ".join(f"`{name}`" for name in subject.env.tools if name not in called)
    note = f"No call of {never} was accepted, so what comes of one was not checked. " if never else ""
    for episode in subject.random_episodes.values():
        for seen in episode:
            if "error" in seen.info:
                yield f"{note}{quoted(seen.reply)} was answered {seen.info['error']}. {_VALID_CALLS}"


@check(Rule.NOT_BOTH)
def _not_both(subject: Subject) -> Iterator[str]:
    for seen in subject.transitions:
        if seen.terminated and seen.truncated:
            yield f"They were after {quoted(seen.reply)}."


@check(Rule.MAX_TURNS)
def _max_turns(subject: Subject) -> Iterator[str]:
    limit = subject.env.max_turns
    made = subject.env.spec
    cut = None if made is None or made.id not in gym.registry else gym.registry[made.id].max_episode_steps
    if cut is not None and cut < limit:
        yield (
            f"It is registered with max_episode_steps={cut}, so Gymnasium's TimeLimit ends episodes without "
            f"on_truncation, success and metrics; max_turns is {limit}. Give max_turns={cut} instead."
        )
    for episode in subject.episodes:
        for turn, seen in enumerate(episode):
            if seen.truncated and turn != limit:
                yield f"An episode was truncated at turn {turn}; max_turns is {limit}."
            if turn >= limit and not seen.ended:
                yield f"An episode continued after turn {turn}; max_turns is {limit}."


@check(Rule.AT_THE_END)
def _at_the_end(subject: Subject) -> Iterator[str]:
    for seen in subject.transitions:
        early = {"success", "metrics"} & set(seen.info)
        if not seen.ended:
            if early:
                yield f"{sorted(early)} came before it, after {quoted(seen.reply)}."
            continue
        success, metrics = seen.info.get("success"), seen.info.get("metrics")
        named = type(metrics) is dict and all(type(value) is float for value in metrics.values())
        if type(success) is not bool or not named:
            yield f"At the end success is {success!r} and metrics is {metrics!r}."
