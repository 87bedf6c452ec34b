"""The form of what a text environment declares and returns: the first half of the contract's sentences."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any, Final

from art_gym._plays import BASELINE, Case, Seen, fail, promised, quoted
from art_gym.spaces import UnicodeText

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
SPACES: Final = "action_space and observation_space must be UnicodeText spaces."
DOCSTRING: Final = "The class docstring must have Gymnasium's headings in their order."
TOOLS: Final = "Every tool must have a JSON schema in OpenAI's format, with every part described."
INFO: Final = "info must hold the standard keys with the standard types."
JSON: Final = "info must be JSON-able."
WITHIN: Final = "Every observation must lie in the observation space."
SYSTEM: Final = "The first observation must begin with info['system'] and a blank line."
SCORE_TERMS: Final = "score_terms must be named floats that sum to the reward."
TASK_ID: Final = "task_id must name one of env.tasks, the same for a whole episode."
NOT_BOTH: Final = "terminated and truncated must not both be true."
MAX_TURNS: Final = "An episode must be truncated at exactly max_turns turns."
AT_THE_END: Final = "success (a bool) and metrics (named floats) must be in info at the end, and only then."

_TOLD: Final[dict[str, dict[str, type]]] = {
    "call": {"name": str, "arguments": dict},
    "error": {"kind": str, "message": str},
}


def check_spaces(case: Case) -> None:
    """Hold :data:`SPACES`."""
    for name in ("action_space", "observation_space"):
        space = getattr(case.env, name, None)
        if not isinstance(space, UnicodeText):
            raise fail(SPACES, f"{name} is {space!r}.")


def check_docstring(case: Case) -> None:
    """Hold :data:`DOCSTRING`."""
    lines = [line.strip("# \t") for line in (type(case.env).__doc__ or "").splitlines()]
    found = [line for line in lines if line in HEADINGS]
    if found != list(HEADINGS):
        raise fail(DOCSTRING, f"Wanted {', '.join(HEADINGS)}; found {', '.join(found) or 'none'}.")


def check_tools(case: Case) -> None:
    """Hold :data:`TOOLS`."""
    with promised(TOOLS, "reading the schemas"):
        schemas = [item.schema() for item in case.env.tools.values()]
        json.dumps(schemas, allow_nan=False)
        for name, schema in zip(case.env.tools, schemas, strict=True):
            function = schema["function"]
            parameters = function["parameters"]
            if schema["type"] != "function" or function["name"] != name or parameters["type"] != "object":
                raise fail(TOOLS, f"The schema of `{name}` is {schema}.")
            described = {"the tool": function} | parameters["properties"]
            for part, words in described.items():
                if not str(words.get("description", "")).strip():
                    raise fail(TOOLS, f"`{name}` does not describe {part}.")
            unknown = set(parameters["required"]) - set(parameters["properties"])
            if unknown:
                raise fail(TOOLS, f"`{name}` requires {sorted(unknown)}, which it does not declare.")
    if not schemas:
        raise fail(TOOLS, "There is no tool.")


def check_info(case: Case) -> None:
    """Hold :data:`INFO`."""
    for play in case.plays:
        for turn, seen in enumerate(play):
            wrong = _wrong_in_info(seen.info, turn)
            if wrong:
                raise fail(INFO, f"After {quoted(seen.reply)} {wrong}; info has the keys {list(seen.info)}.")
        if play[0].info["tools"] != [item.schema() for item in case.env.tools.values()]:
            raise fail(INFO, "After reset `tools` is not the list of the tools' schemas.")


def _wrong_in_info(info: dict[str, Any], turn: int) -> str | None:
    """What is wrong with the keys that every info has, in words."""
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
    told, parts = info[key], _TOLD[key]
    if type(told) is not dict or {name: type(value) for name, value in told.items()} != parts:
        return f"`{key}` is {told!r}, not a dict with {' and '.join(parts)}"
    return None


def check_json(case: Case) -> None:
    """Hold :data:`JSON`."""
    for seen in itertools.chain.from_iterable(case.plays):
        with promised(JSON, f"writing info after {quoted(seen.reply)}"):
            text = json.dumps(seen.info, allow_nan=False)
        if json.loads(text) != seen.info:
            raise fail(JSON, f"After {quoted(seen.reply)} it comes back changed: {text[:400]}")


def check_within(case: Case) -> None:
    """Hold :data:`WITHIN`."""
    for seen in itertools.chain.from_iterable(case.plays):
        must_lie_within(case, seen)


def must_lie_within(case: Case, seen: Seen) -> None:
    """Raise where an observation is not in the observation space."""
    if seen.observation not in case.env.observation_space:
        raise fail(
            WITHIN,
            f"After {quoted(seen.reply)} it has {len(seen.observation):,} code points, "
            f"and ends {seen.observation[-60:]!r}; the space is {case.env.observation_space}.",
        )


def check_system(case: Case) -> None:
    """Hold :data:`SYSTEM`."""
    for play in case.plays:
        system = play[0].info.get("system")
        if system and not play[0].observation.startswith(f"{system}\n\n"):
            raise fail(SYSTEM, f"It begins {play[0].observation[:80]!r}, system {system[:80]!r}.")


def check_score_terms(case: Case) -> None:
    """Hold :data:`SCORE_TERMS`."""
    for play in case.plays:
        for seen in play[1:]:
            terms = seen.info.get("score_terms", {})
            named = all(type(name) is str and type(value) is float for name, value in terms.items())
            if not named or not math.isclose(sum(terms.values()), seen.reward, rel_tol=0, abs_tol=1e-9):
                raise fail(SCORE_TERMS, f"After {quoted(seen.reply)}: {terms}, reward {seen.reward!r}.")


def check_task_id(case: Case) -> None:
    """Hold :data:`TASK_ID`."""
    known = {task.id for task in case.env.tasks}
    for play in case.plays:
        ids = {str(seen.info.get("task_id")) for seen in play}
        if len(ids) != 1 or not ids <= known:
            raise fail(TASK_ID, f"An episode had {sorted(ids)}.")


def check_baseline(case: Case) -> None:
    """Hold :data:`BASELINE`."""
    for seen in itertools.chain.from_iterable(case.random_plays.values()):
        if "error" in seen.info:
            raise fail(BASELINE, f"{quoted(seen.reply)} was answered {seen.info['error']}.")


def check_not_both(case: Case) -> None:
    """Hold :data:`NOT_BOTH`."""
    for seen in itertools.chain.from_iterable(case.plays):
        if seen.terminated and seen.truncated:
            raise fail(NOT_BOTH, f"They were after {quoted(seen.reply)}.")


def check_max_turns(case: Case) -> None:
    """Hold :data:`MAX_TURNS`."""
    limit = case.env.max_turns
    for play in case.plays:
        for turn, seen in enumerate(play):
            if seen.truncated and turn != limit:
                raise fail(MAX_TURNS, f"An episode was truncated at turn {turn}; max_turns is {limit}.")
            if turn >= limit and not seen.ended:
                raise fail(MAX_TURNS, f"An episode went on after turn {turn}; max_turns is {limit}.")


def check_at_the_end(case: Case) -> None:
    """Hold :data:`AT_THE_END`."""
    for seen in itertools.chain.from_iterable(case.plays):
        if not seen.ended:
            early = {"success", "metrics"} & set(seen.info)
            if early:
                raise fail(AT_THE_END, f"{sorted(early)} came before it, after {quoted(seen.reply)}.")
            continue
        success, metrics = seen.info.get("success"), seen.info.get("metrics")
        named = type(metrics) is dict and all(type(value) is float for value in metrics.values())
        if type(success) is not bool or not named:
            raise fail(AT_THE_END, f"At the end success is {success!r} and metrics is {metrics!r}.")


FORM_CHECKS: Final = (
    check_spaces,
    check_docstring,
    check_tools,
    check_info,
    check_json,
    check_within,
    check_system,
    check_score_terms,
    check_task_id,
    check_baseline,
    check_not_both,
    check_max_turns,
    check_at_the_end,
)
