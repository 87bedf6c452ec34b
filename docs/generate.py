"""MkDocs hook: adds the pages that are made from the code, and leaves out what is not there."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

# The package lies beside this folder; the documentation is of this checkout, not of one installed elsewhere.
sys.path.insert(0, str(Path(__file__).parents[1]))

import generate_commands
import generate_environments
import generate_recipes
import generate_settings


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages, and complete the navigation."""
    pages = generate_environments.pages()
    pages["reference/commands.md"] = generate_commands.page()
    pages["reference/settings.md"] = generate_settings.page()
    pages["reference/recipes.md"] = generate_recipes.page()
    for address, text in pages.items():
        files.append(File.generated(config, address, content=text))
    known = {file.src_uri for file in files.documentation_pages()}
    config["nav"] = _complete(config["nav"], known)
    return files


def on_post_build(config: Any) -> None:
    """Write the site for language models: ``llms.txt``, the list of pages, and ``llms-full.txt``, their text.

    The form is that of https://llmstxt.org.
    """
    folder, site = Path(config["docs_dir"]), Path(config["site_dir"])
    listed, whole = [f"# {config['site_name']}\n\n> {config['site_description']}\n"], []
    for address in _addresses(config["nav"]):
        page = folder / address
        if page.is_file():  # those made from the code are long lists
            text = page.read_text(encoding="utf-8")
            title = next(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
            listed.append(f"- [{title}]({address.removesuffix('.md')}.html)")
            whole.append(text)
    (site / "llms.txt").write_text("\n".join(listed) + "\n", encoding="utf-8")
    (site / "llms-full.txt").write_text("\n\n".join(whole), encoding="utf-8")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Show above a block why it is not run: what stands behind its language is no title to the extension."""
    return re.sub(r"^```(\w+) (no-run: [^\n\"]+)$", r'```\1 title="\2"', markdown, flags=re.MULTILINE)


def _complete(nav: list[Any], known: set[str]) -> list[Any]:
    """The navigation without what is not there; what is there and not in it stands at its section's end."""
    listed = set(_addresses(nav))
    whole: list[Any] = []
    for entry in nav:
        [(title, value)] = entry.items()
        if isinstance(value, str):
            whole += [entry] if value in known else []
            continue
        section = [one for one in value if next(_addresses([one])) in known]
        folder = title.lower() + "/"
        section += sorted(page for page in known - listed if page.startswith(folder))
        whole.append({title: section})
    return whole


def _addresses(nav: list[Any]) -> Any:
    """Every address in a navigation, in order."""
    for entry in nav:
        values = entry.values() if isinstance(entry, dict) else [entry]
        for value in values:
            yield from [value] if isinstance(value, str) else _addresses(value)
