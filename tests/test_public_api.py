"""The public names of ``art_trainer``: lazy, known to type checkers, and each in the reference."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import art_trainer

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "reference.md"


def essentials(name: str) -> str:
    """A name with its arguments, without types: ``*`` before those that are named, ``=`` where optional."""
    value = getattr(art_trainer, name)
    if isinstance(value, type) and (issubclass(value, Exception) or getattr(value, "_is_protocol", False)):
        return name
    if name in ("Ending", "GRPOConfig"):
        return f"{name}(…)"
    parts, named = [], False
    for one in inspect.signature(value).parameters.values():
        if one.kind is one.KEYWORD_ONLY and not named:
            parts.append("*")
            named = True
        text = f"**{one.name}" if one.kind is one.VAR_KEYWORD else one.name
        parts.append(text if one.default is one.empty else f"{text}=")
    return f"{name}({', '.join(parts)})"


@pytest.mark.parametrize("name", art_trainer.__all__)
def test_each_name_has_its_line_in_the_reference(name: str) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if line.startswith(f"| `{essentials(name)}` | ")]


def test_the_reference_has_no_other_names() -> None:
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert len(lines) == len(art_trainer.__all__)


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse(Path(art_trainer.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and node.test.__class__ is ast.Name)
    seen = {
        alias.asname: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted(seen, key=str) == art_trainer.__all__
    for name, module in seen.items():
        assert getattr(importlib.import_module(str(module)), str(name)) is getattr(art_trainer, str(name))


def test_importing_the_package_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, art_trainer\n"
        "assert not {'torch', 'transformers', 'gymnasium'} & set(sys.modules)\n"
        "art_trainer.GRPOConfig, art_trainer.Episode\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        art_trainer.nothing  # noqa: B018
    with pytest.raises(ImportError):
        from art_trainer import nothing  # noqa: F401
