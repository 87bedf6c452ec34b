"""Makes a page of each environment from its class: docstring, tools, scripted players."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
from docstrings import markdown, table

from art_gym.catalog import EnvEntry, documented_class, entries, summary
from art_gym.testing import ADVICE, CHECKS
from art_gym.tools import Tool, usage_lines

_EXTRAS = {"art/2048Array-v0": "fast"}
"""Extras that an environment is better with; games need PettingZoo."""


def pages() -> dict[str, str]:
    """The pages by their address in the site: an overview, the contract, and one for each of our ids."""
    ours = [entry for entry in entries() if entry.id.startswith("art/")]
    made = {"environments/index.md": _overview(ours), "environments/contract.md": _contract()}
    return made | {address(entry.id): _page(entry) for entry in ours}


def address(env_id: str) -> str:
    """``environments/email.md`` for ``art/Email-v0``."""
    name = env_id.removeprefix("art/")
    return f"environments/{re.sub(r'-v[0-9]+$', '', name).lower()}.md"


def _overview(ours: list[EnvEntry]) -> str:
    rows = [(f"[`{one.id}`]({address(one.id).split('/')[1]})", one.summary) for one in ours]
    intro = "What each is, from its own docstring. `art-gym info ID` tells the same of the installed version."
    return "\n".join(["# Environments", "", intro, "", table(("id", ""), *rows), ""])


def _contract() -> str:
    """The rules that ``check_text_env`` checks."""
    rows = [f"{number}. {rule}" for number, rule in enumerate(CHECKS, 1)]
    intro = (
        "Every text environment keeps these rules. `art_gym.check_text_env(env)` raises at the first that is "
        "broken; `art-gym check ID` reports on each of them. Some are advice until "
        f"others use it (`check_text_env(env, publish=True)`, `art-gym check --publish`): "
        f"{', '.join(str(number) for number, rule in enumerate(CHECKS, 1) if rule in ADVICE)}."
    )
    return "\n".join(["# The contract", "", intro, "", *rows, ""])


def _page(entry: EnvEntry) -> str:
    if entry.game:
        import pettingzoo

        made = documented_class(pettingzoo.aec_registry[entry.id].entry_point)
    else:
        made = documented_class(gym.registry[entry.id].entry_point)
    body = markdown(_without_summary(made))
    extra = "pettingzoo" if entry.game else _EXTRAS.get(entry.id)
    parts = [f"# {entry.id}", summary(made)]
    parts += [f'```bash\npip install "art-gym[{extra}]"\n```'] if extra else []
    parts += [f"```python\n{_snippet(entry)}\n```", body]
    parts += [_seats(made) if entry.game else _tools_and_players(made)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _without_summary(made: Any) -> str:
    """The docstring from its first heading on."""
    text = (made.__doc__ or "").replace("\n    ", "\n")
    return text[text.index("## ") :] if "## " in text else text


def _snippet(entry: EnvEntry) -> str:
    if entry.game:
        made = f'env = pettingzoo.make("aec", "{entry.id}")\nenv.reset(seed=0)'
        return f"import art_gym.games.aec\nimport pettingzoo\n\n{made}"
    made = f'env = gym.make("{entry.id}")\nobservation, info = env.reset(seed=0)'
    return f"import gymnasium as gym\nimport art_gym\n\n{made}"


def _tools_and_players(made: Any) -> str:
    tools: dict[str, Tool] = getattr(made, "tools", {})
    parts = ["## Tools\n\n" + _tool_list(tools)] if tools else []
    players = {**getattr(made, "baselines", {}), **getattr(made, "teachers", {})}
    if players:
        names = ", ".join(f"`{name}`" for name in players)
        teachers = ", ".join(f"`{name}`" for name in getattr(made, "teachers", {}))
        note = f" ({teachers} may look at the answer)" if teachers else ""
        parts.append(f"## Scripted players\n\n{names}{note}. How well they do: `art-gym info … --play 100`.")
    return "\n\n".join(parts)


def _seats(made: Any) -> str:
    parts = []
    for seat in made.seats:
        players = ", ".join(f"`{name}`" for name in made.players.get(seat, {}))
        tools = _tool_list(made.tools[seat])
        parts.append(f"## Seat {seat}\n\n{tools}\n\nScripted players: {players}.")
    return "\n\n".join(parts)


def _tool_list(tools: dict[str, Tool]) -> str:
    lines = usage_lines(tools.values()).split("\n")
    return "\n".join(re.sub(r"^- (.*\)): ", r"- `\1`: ", line) for line in lines)
