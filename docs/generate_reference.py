"""Makes the API reference from the sources, without importing them: signatures and docstrings."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_LINE = 100  # characters of a signature before each argument gets a line of its own
_SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises")
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Page:
    """One page of the reference.

    Attributes:
        title: Its heading.
        intro: What it is about.
        modules: Whose public names it shows; of a package, those it lists in ``__all__``.
    """

    title: str
    intro: str
    modules: Sequence[str]


PAGES = {
    "reference/art_gym.md": Page(
        "art_gym", "What an author of environments needs; `from art_gym import …`.", ["art_gym"]
    ),
    "reference/games.md": Page(
        "art_gym.games", "Games of several seats, on PettingZoo's interface.", ["art_gym.games"]
    ),
    "reference/wrappers.md": Page(
        "art_gym.wrappers",
        "What changes an environment from outside, and the judges.",
        ["art_gym.wrappers", "art_gym.wrappers.judging"],
    ),
    "reference/trainer.md": Page(
        "art_trainer",
        "Training: its settings, its loop, the policies, and what an episode is.",
        [
            "art_trainer.config",
            "art_trainer.trainer",
            "art_trainer.policy",
            "art_trainer.transformers_policy",
            "art_trainer.openai_policy",
            "art_trainer.scripted_policy",
            "art_trainer.rollout",
            "art_trainer.episodes",
        ],
    ),
    "reference/algorithms.md": Page(
        "Algorithms",
        "Pure functions, each with its equation and its paper.",
        [
            "art_trainer.advantages",
            "art_trainer.estimators",
            "art_trainer.gae",
            "art_trainer.importance",
            "art_trainer.losses",
            "art_trainer.loss_weights",
        ],
    ),
    "reference/evaluation.md": Page(
        "Evaluation",
        "Numbers with their intervals, and comparisons on the same tasks.",
        ["art_trainer.evaluation", "art_trainer.statistics"],
    ),
}
"""The pages of the reference by their address in the site."""


def render(page: Page) -> str:
    """The page in Markdown."""
    parts = [f"# {page.title}", page.intro]
    for module in page.modules:
        tree = _parse(module)
        if len(page.modules) > 1:
            parts.append(f"## {module}")
            parts.append(markdown(ast.get_docstring(tree) or ""))
        for definition in _public(module, tree):
            parts += _describe(definition, "###")
    return "\n\n".join(part for part in parts if part) + "\n"


def markdown(docstring: str) -> str:
    """A Google-style docstring in Markdown."""
    text = re.sub(r":\w+:`~?(?:[\w.]*\.)?([\w.]+)`", r"`\1`", docstring)
    text = re.sub(r"::\n\n((?:[ ]{4}.*\n|\n)*[ ]{4}.*)", _literal_block, text)
    text = re.sub(r"\.\. math::[ ]*(.+)|:math:`([^`]+)`", lambda m: f"`{(m[1] or m[2]).strip()}`", text)
    pattern = rf"^({'|'.join(_SECTIONS)}):\n((?:[ ]+.*(?:\n|$)|\n)*)"
    return re.sub(pattern, _section, text, flags=re.MULTILINE).strip()


def _literal_block(match: re.Match[str]) -> str:
    return f":\n\n```python\n{textwrap.dedent(match[1]).strip()}\n```"


def _section(match: re.Match[str]) -> str:
    """A section as a list, one entry for each line at its least indentation."""
    title = {"Args": "Arguments"}.get(match[1], match[1])
    entries: list[str] = []
    for line in inspect.cleandoc(match[2]).split("\n"):
        if line[:1].strip() or not entries:
            name, colon, rest = line.partition(": ")
            named = colon and match[1] not in ("Returns", "Yields") and re.fullmatch(r"[\w*., ]+", name)
            entries.append(f"`{name}`: {rest}" if named else line)
        else:
            entries[-1] += f" {line.strip()}"
    if match[1] in ("Returns", "Yields"):
        return f"**{title}** {' '.join(entries)}\n\n"
    return f"**{title}**\n\n" + "\n".join(f"- {entry.strip()}" for entry in entries) + "\n\n"


def _source(module: str) -> Path:
    """The file of a module; `envs` and `wrappers` are linked into ``art_gym``."""
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def _parse(module: str) -> ast.Module:
    return ast.parse(_source(module).read_text(encoding="utf-8"))


def _public(module: str, tree: ast.Module) -> Iterator[Definition]:
    """The public classes and functions: those of the module, or those a package lists and has elsewhere."""
    own = {node.name: node for node in _definitions(tree)}
    listed = _listed(tree)
    if not listed:
        yield from (node for name, node in own.items() if not name.startswith("_"))
        return
    homes = _homes(tree)
    for name in listed:
        if name in own:
            yield own[name]
        elif name in homes:
            yield from _find(name, homes[name])


def _find(name: str, module: str) -> Iterator[Definition]:
    """The definition of a name that a module has, or has from another one of ours."""
    tree = _parse(module)
    found = [node for node in _definitions(tree) if node.name == name]
    home = _homes(tree).get(name, "")
    yield from found if found or not home.startswith("art_") else _find(name, home)


def _homes(tree: ast.Module) -> dict[str, str]:
    """Where each name comes from that a module imports."""
    return {
        alias.asname or alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module
        for alias in node.names
    }


def _definitions(tree: ast.Module) -> Iterator[Definition]:
    """The classes and functions of a module; of an overloaded one only the last, which does the work."""
    for node in tree.body:
        if isinstance(node, Definition) and "overload" not in map(ast.unparse, node.decorator_list):
            yield node


def _listed(tree: ast.Module) -> list[str]:
    """What ``__all__`` lists; empty without it."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(getattr(to, "id", "") == "__all__" for to in node.targets):
            return list(ast.literal_eval(node.value))
    return []


def _describe(node: Definition, mark: str) -> list[str]:
    """A definition: its heading, its signature, its docstring, of a class its fields and methods too."""
    parts = [
        f"{mark} {node.name}",
        f"```python\n{_signature(node)}\n```",
        markdown(ast.get_docstring(node) or ""),
    ]
    if not isinstance(node, ast.ClassDef):
        return parts
    fields = list(_fields(node))
    if fields:
        parts.append("\n".join(fields))
    for method in node.body:
        if isinstance(method, _FUNCTIONS) and not method.name.startswith("_") and ast.get_docstring(method):
            parts += _describe(method, f"{mark}#")
    return parts


def _signature(node: Definition) -> str:
    if isinstance(node, ast.ClassDef):
        bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
        made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name == "__init__"]
        head = f"class {node.name}{bases}"
        if made:
            return f"{head}\n{_call(node.name, _argument_list(made[0].args)[1:])}"
        fields = _dataclass_fields(node)
        return f"{head}\n{_call(node.name, fields)}" if fields else head
    decorators = [f"@{ast.unparse(one)}\n" for one in node.decorator_list]
    start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    return f"{''.join(decorators)}{start} {_call(node.name, _argument_list(node.args))}{returns}"


def _call(name: str, parts: Sequence[str]) -> str:
    """``name(arguments)``, on one line where that is short."""
    line = f"{name}({', '.join(parts)})"
    return line if len(line) <= _LINE else f"{name}(\n    " + ",\n    ".join(parts) + ",\n)"


def _dataclass_fields(node: ast.ClassDef) -> list[str]:
    """What a dataclass is made with; none for another class, or one whose fields are told of below it."""
    made = any("dataclass" in ast.unparse(one) for one in node.decorator_list)
    if not made or list(_fields(node)):
        return []
    annotated = (one for one in node.body if isinstance(one, ast.AnnAssign))
    return [
        line for line in map(ast.unparse, annotated) if not line.startswith("_") and "ClassVar" not in line
    ]


def _argument_list(arguments: ast.arguments) -> list[str]:
    """Each argument with its type and default, with the marks ``/`` and ``*``."""
    ordinary = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(ordinary) - len(arguments.defaults)) + [*arguments.defaults]
    parts = [_argument(one, default) for one, default in zip(ordinary, defaults, strict=True)]
    if arguments.posonlyargs:
        parts.insert(len(arguments.posonlyargs), "/")
    if arguments.vararg:
        parts.append(f"*{_argument(arguments.vararg, None)}")
    elif arguments.kwonlyargs:
        parts.append("*")
    keywords = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    parts += [_argument(one, default) for one, default in keywords]
    if arguments.kwarg:
        parts.append(f"**{_argument(arguments.kwarg, None)}")
    return parts


def _argument(argument: ast.arg, default: ast.expr | None) -> str:
    hint = f": {ast.unparse(argument.annotation)}" if argument.annotation else ""
    equals = " = " if hint else "="
    return f"{argument.arg}{hint}{equals + ast.unparse(default) if default is not None else ''}"


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """The annotated fields that have a docstring below them."""
    for field, below in zip(node.body, node.body[1:], strict=False):
        described = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(field, ast.AnnAssign) and described and isinstance(below.value.value, str):
            default = f" = {ast.unparse(field.value)}" if field.value else ""
            words = " ".join(markdown(inspect.cleandoc(below.value.value)).split())
            yield f"- `{ast.unparse(field.target)}: {ast.unparse(field.annotation)}{default}`: {words}"
