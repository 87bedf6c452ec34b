"""Makes the page of the recipes from their files: what each one's comment says, and its settings."""

from __future__ import annotations

import re
from pathlib import Path

_INTRO = (
    "A recipe is the settings of a published result. `art-trainer train --recipe NAME` runs it, flags and "
    "`--set` change it, and a copy of the file is yours to edit: `art-trainer train --config my.yaml`."
)


def page() -> str:
    """The page in Markdown."""
    parts = ["# Recipes", _INTRO]
    for file in sorted((Path(__file__).parents[1] / "recipes").glob("*.yaml")):
        lines = file.read_text(encoding="utf-8").splitlines()
        start = next(number for number, line in enumerate(lines) if not line.startswith("#"))
        about = "\n".join(re.sub("^# ?", "", line) for line in lines[:start])
        parts += [f"## {file.stem}", about, "\n".join(["```yaml", *lines[start:], "```"])]
    return "\n\n".join(parts) + "\n"
