"""Run other people's libraries on these environments, each in a throw-away environment of its own.

A folder here is a library. Its ``requirements.txt`` pins what is tried: the library's own packages, a blank
line, then what they need besides. A package with ``--hash=sha256:…`` behind its version is that very file.
Comments before the first requirement may say

    # library: the name to show
    # tests: the test files, with blanks between, if they are not in this folder
    # pinned: why another version makes no sense; --newest leaves such a library out

The environment sees the packages of the interpreter that runs this script behind its own, so that torch is
not installed again.
The first paragraph of a test's docstring is what the table says: under "works" if the test passes, under
"does not" if its name begins with ``test_limit_``. So each limit is shown by a test too, and that test
fails on the day that the limit is gone.

    python integrations/run.py                       # all of them
    python integrations/run.py sb3 rllib --keep      # two; their environments stay in .venv-integrations/
    python integrations/run.py --newest              # the newest versions on the index, not those pinned here
    python integrations/run.py --json integrations/results.json --table docs/integrations.md
    python integrations/run.py --no-run --json integrations/results.json --table docs/integrations.md
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import re
import signal
import site
import subprocess
import sys
import tempfile
import time
import venv
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from art_gym.errors import did_you_mean

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
KEPT = ROOT / ".venv-integrations"
BEGIN, END = "<!-- integrations: begin -->", "<!-- integrations: end -->"


@dataclass(frozen=True)
class Library:
    """What a folder says of its library."""

    folder: str
    title: str
    packages: tuple[str, ...]
    """The library's own packages, by name."""
    tests: tuple[Path, ...]
    pinned: str = ""
    """Why no other version is tried; empty for most."""


@dataclass(frozen=True)
class Case:
    """One test: what it shows, and how it went."""

    name: str
    says: str
    outcome: str
    """``passed``, ``failed`` or ``skipped``."""
    detail: str = ""
    """Why it failed or was skipped, in a line."""


@dataclass(frozen=True)
class Result:
    """One library's run."""

    folder: str
    title: str
    versions: dict[str, str]
    replaced: dict[str, str]
    """Packages of ours that the library put another version before, and that version."""
    python: str
    outcome: str
    """``passed``, ``failed``, ``not installed`` or ``timed out``."""
    install_seconds: float
    test_seconds: float
    cases: list[Case] = field(default_factory=list)
    detail: str = ""

    @property
    def named(self) -> str:
        """The library's packages with their versions."""
        return ", ".join(f"{name} {version}" for name, version in self.versions.items())


def read_library(folder: Path) -> Library:
    """Read a folder's ``requirements.txt``.

    Raises:
        ValueError: If it pins nothing, leaves a version open, or there is no test.
    """
    path = folder / "requirements.txt"
    text = path.read_text(encoding="utf-8")
    told = dict(re.findall(r"^#\s*(library|tests|pinned):\s*(.+?)\s*$", text, re.MULTILINE))
    own, _, others = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).strip().partition("\n\n")
    for line in [*own.splitlines(), *others.split()]:
        if "==" not in line:
            raise ValueError(f"{path}: `{line}` leaves the version open; write name==version")
    named = [ROOT / name for name in told.get("tests", "").split()]
    tests = named or sorted(folder.glob("test_*.py"))
    if not tests or not all(test.is_file() for test in tests):
        raise ValueError(f"{path}: no test: write {folder.name}/test_{folder.name}.py, or `# tests: PATH`")
    packages = tuple(re.split(r"[\[=]", line)[0].strip() for line in own.splitlines())
    return Library(
        folder.name, told.get("library", folder.name), packages, tuple(tests), told.get("pinned", "")
    )


def choose(names: Sequence[str]) -> list[Library]:
    """The libraries of these names; all of them for none.

    Raises:
        ValueError: For a name that is no folder here.
    """
    there = sorted(path.parent.name for path in HERE.glob("*/requirements.txt"))
    for name in names:
        if name not in there:
            raise ValueError(f"no library `{name}`{did_you_mean(name, there)} There are: {', '.join(there)}")
    return [read_library(HERE / name) for name in (names or there)]


def run_command(command: Sequence[str | Path], env: dict[str, str], seconds: float) -> tuple[int | None, str]:
    """Run a command from the repository's root; all that it started ends with it.

    Returns:
        The exit status (``None`` if time ran out) and all that was printed.
    """
    child = subprocess.Popen(
        command, cwd=ROOT, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True,
    )  # fmt: skip
    try:
        printed, _ = child.communicate(timeout=seconds)
        return child.returncode, printed
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        return None, child.communicate()[0]
    finally:
        with suppress(ProcessLookupError):  # the usual case: nothing was left behind
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def make_environment(folder: Path) -> Path:
    """Make a virtual environment, or take the one that is there; return its interpreter."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True, symlinks=True)
    # addsitedir and not the bare path: it also reads the .pth files there, such as an editable install's.
    lines = [str(ROOT), *(f"import site; site.addsitedir({path!r})" for path in site.getsitepackages())]
    behind = _packages(folder) / "zz_behind_its_own_packages.pth"
    behind.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return python


def _packages(folder: Path) -> Path:
    (packages,) = (folder / "lib").glob("python*/site-packages")
    return packages


def installed(paths: Sequence[str]) -> dict[str, str]:
    """The packages in some folders, with their versions."""
    return {canonicalize_name(dist.name): dist.version for dist in distributions(path=list(paths))}


def read_cases(report: Path, tests: Sequence[Path]) -> list[Case]:
    """Put pytest's JUnit report and the tests' docstrings together; a parametrised test is one case."""
    says = {}
    for path in tests:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                text = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ").rstrip(".")
                says[node.name] = text or node.name.removeprefix("test_").replace("_", " ")
    found: dict[str, Case] = {}
    for element in ET.parse(report).getroot().iter("testcase"):
        name = element.get("name", "").split("[")[0]
        bad = [part for part in element if part.tag in ("failure", "error", "skipped")]
        outcome = "passed" if not bad else "skipped" if bad[0].tag == "skipped" else "failed"
        detail = bad[0].get("message", "").split("\n")[0][:200] if bad else ""
        if name not in found or found[name].outcome == "passed":
            found[name] = Case(name, says.get(name, name), outcome, detail)
    return list(found.values())


def try_library(library: Library, folder: Path, seconds: float, *, newest: bool, verbose: bool) -> Result:
    """Make its environment in ``folder``, install the pinned or the newest versions, and run its tests."""
    env = {"OMP_NUM_THREADS": "1"} | os.environ | {"ART_GYM_CACHE": str(folder.parent / "art-gym-cache")}
    env.pop("PYTHONPATH", None)
    began = time.monotonic()
    python = make_environment(folder)
    requirements = HERE / library.folder / "requirements.txt"
    pip = f"{python} -m pip --disable-pip-version-check install --quiet --requirement".split()
    if newest:
        pip.insert(-1, "--upgrade")
    status, printed = 0, ""
    # pip wants either every package's hash or none, so those that have one are installed alone and first.
    pins = requirements.read_text(encoding="utf-8")
    if newest:
        pins = re.sub("==.*", "", pins)
    hashed = [line for line in pins.splitlines() if "--hash=" in line]
    for lines, options in ((hashed, ["--no-deps"]), (re.sub(r" --hash=\S+", "", pins).splitlines(), [])):
        if lines and status == 0:
            chosen = folder / "requirements.txt"
            chosen.write_text("\n".join(lines), encoding="utf-8")
            status, printed = run_command([*pip, chosen, *options], env, seconds)
    middle = time.monotonic()
    own, ours = installed([str(_packages(folder))]), installed(site.getsitepackages())
    others = own.keys() & ours.keys() - {"pip", "setuptools"}
    cases: list[Case] = []
    if status != 0:
        outcome = "timed out" if status is None else "not installed"
    else:
        report = folder / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", "-W", "default", f"--junitxml={report}"]
        tests = map(str, library.tests)
        status, printed = run_command([str(python), "-m", "pytest", *options, *tests], env, seconds)
        outcome = "timed out" if status is None else "passed" if status == 0 else "failed"
        cases = read_cases(report, library.tests) if report.is_file() and status is not None else []
        if outcome == "passed" and not any(case.outcome == "passed" for case in cases):
            outcome = "failed"  # all skipped: nothing was shown
    if verbose or outcome != "passed":
        print(printed)
    versions = {name: (ours | own).get(canonicalize_name(name), "?") for name in library.packages}
    replaced = {name: own[name] for name in sorted(others) if ours[name] != own[name]}
    took = round(middle - began, 1), round(time.monotonic() - middle, 1)
    detail = "" if outcome == "passed" else " ".join(printed.split())[-300:]
    what = library.folder, library.title, versions, replaced, platform.python_version(), outcome
    return Result(*what, *took, cases, detail)


def table_row(result: Result) -> str:
    """A row of the table in Markdown: library, version, works, does not, command."""
    works, limits = [], []
    for case in result.cases:
        limit = case.name.startswith("test_limit_") or case.outcome != "passed"
        failed = "" if case.outcome == "passed" else f"**{case.outcome}**: "
        (limits if limit else works).append(f"{failed}{case.says}")
    if not result.cases:
        limits.append(f"**{result.outcome}**")
    versions = result.named
    if result.replaced:
        others = ", ".join(f"{name} {version}" for name, version in result.replaced.items())
        versions += f" (brings its own {others})"
    command = f"`python integrations/run.py {result.folder}`"
    cells = [result.title, versions, "<br>".join(works), "<br>".join(limits), command]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def write_table(path: Path, results: Sequence[Result]) -> None:
    """Replace what stands between the two marker comments of a page.

    Raises:
        ValueError: If the page has no such comments.
    """
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{path} has no lines `{BEGIN}` and `{END}` in this order")
    head = "| library | version tried | works | does not | command |\n|---|---|---|---|---|\n"
    rows = "\n".join(map(table_row, results))
    path.write_text(f"{before}{BEGIN}\n{head}{rows}\n{END}{after}", encoding="utf-8")


def load(path: Path | None) -> dict[str, Result]:
    """Read results of earlier runs; none if there is no such file."""
    if path is None or not path.is_file():
        return {}
    rows = json.loads(path.read_text(encoding="utf-8"))
    made = (Result(**{**row, "cases": [Case(**case) for case in row["cases"]]}) for row in rows)
    return {one.folder: one for one in made}


def main() -> int:
    """Run what is asked for; 1 if anything failed."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="folders here; all by default")
    parser.add_argument("--keep", action="store_true", help="keep the environments, and take kept ones")
    parser.add_argument("--newest", action="store_true", help="try the newest versions, not those pinned")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write results; other libraries' rows stay")
    parser.add_argument("--table", type=Path, metavar="PAGE", help="write the table into a Markdown page")
    parser.add_argument("--no-run", action="store_true", help="only write the table from --json FILE")
    parser.add_argument("--timeout", type=float, default=900, help="seconds for an install, and for tests")
    parser.add_argument("--verbose", action="store_true", help="print what pytest printed")
    options = parser.parse_args()
    try:
        libraries = [] if options.no_run else choose(options.names)
    except ValueError as error:
        parser.error(str(error))
    results, broken = load(options.json), []
    # So that what was started ends, and is cleaned up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        home = KEPT
        if options.keep:
            KEPT.mkdir(exist_ok=True)
            (KEPT / ".gitignore").write_text("*\n", encoding="utf-8")
        else:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="art-gym-integrations-")))
        for library in libraries:
            if options.newest and library.pinned:
                print(f"{library.folder:14} left out: {library.pinned}")
                continue
            how = {"newest": options.newest, "verbose": options.verbose}
            result = try_library(library, home / library.folder, options.timeout, **how)
            results[library.folder] = result
            broken += [] if result.outcome == "passed" else [result.folder]
            passed = sum(case.outcome == "passed" for case in result.cases)
            print(
                f"{library.folder:14} {result.outcome:14} {passed:3} of {len(result.cases):3} tests  install "
                f"{result.install_seconds:5.0f} s  tests {result.test_seconds:5.0f} s  {result.named}",
                flush=True,
            )
            if options.json:
                rows = [asdict(results[name]) for name in sorted(results)]
                options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if options.table:
        write_table(options.table, [results[name] for name in sorted(results)])
    if broken:
        print(f"broke: {', '.join(broken)}")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
