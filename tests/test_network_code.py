"""Code that reads what the network sends never unpickles, evaluates or runs any of it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "art_trainer"
PACKAGES = ("distributed", "inference/engines", "serving")
SOURCES = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
MODULES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
"""What turns bytes into objects by running what they say."""
CALLS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("yaml", "load"), ("yaml", "unsafe_load")}


def faults(source: str) -> Iterator[str]:
    """What a source does that network code may not do."""
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        for name in names:
            if name.partition(".")[0] in MODULES or name == "torch.load":
                yield f"imports {name}"
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in CALLS:
            yield f"calls {called.id}"
        if isinstance(called, ast.Attribute):
            owner = called.value.id if isinstance(called.value, ast.Name) else ""
            if (owner, called.attr) in ATTRIBUTES:
                yield f"calls {owner}.{called.attr}"
        trusting = [
            word.arg
            for word in node.keywords
            if word.arg in ("trust_remote_code", "allow_pickle")
            and not (isinstance(word.value, ast.Constant) and word.value.value is False)
        ]
        if trusting:
            yield f"sets {trusting[0]}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_nothing_that_runs_what_it_reads(path: Path) -> None:
    assert not list(faults(path.read_text(encoding="utf-8")))


def test_every_package_is_there() -> None:
    assert all(list((ROOT / package).glob("*.py")) for package in PACKAGES)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import loads",
        "import torch\ntorch.load('x')",
        "from torch import load",
        "eval('1')",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
        "model(trust_remote_code=True)",
        "def f():\n    import marshal",
    ],
)
def test_a_fault_would_be_noticed(source: str) -> None:
    assert list(faults(source))
