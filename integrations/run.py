"""Run other people's libraries on these environments, each in a throw-away environment of its own.

A folder here is a library. Its ``requirements.txt`` pins what is tried: the library's own packages, a blank
line, then what they need besides. Comments before the first requirement may say

    # library: the name to show
    # tests: the test files, with blanks between, where they are not in this folder
    # environment: full

The environment sees the packages of the interpreter that runs this script behind its own, so that torch is
not installed again; a *full* one sees none of them, only this checkout, and pins everything that it needs.
The first paragraph of a test's docstring is what the table says: under "works" where the test passes, under
"does not" where its name begins with ``test_limit_``. So each limit is shown by a test too, and that test
fails on the day that the limit is gone.

    python integrations/run.py                       # all of them
    python integrations/run.py sb3 rllib --keep      # two; their environments stay in .venv-integrations/
    python integrations/run.py --json integrations/results.json --table docs/integrations.md
    python integrations/run.py --no-run --json integrations/results.json --table docs/integrations.md
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import signal
import site
import subprocess
import sys
import tempfile
import time
import venv
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from importlib.metadata import distributions
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
KEPT = ROOT / ".venv-integrations"
BEGIN, END = "<!-- integrations: begin -->", "<!-- integrations: end -->"
_LIMIT = "test_limit_"


@dataclass(frozen=True)
class Library:
    """What a folder says of its library."""

    folder: str
    title: str
    packages: tuple[str, ...]
    """The library's own packages, by name."""
    tests: tuple[Path, ...]
    full: bool
    """Whether its environment sees nothing of ours but the checkout."""

    @property
    def requirements(self) -> Path:
        """The file that pip reads."""
        return HERE / self.folder / "requirements.txt"


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
    full: bool
    python: str
    outcome: str
    """``passed``, ``failed``, ``not installed`` or ``timed out``."""
    install_seconds: float
    test_seconds: float
    cases: list[Case] = field(default_factory=list)
    detail: str = ""

    @property
    def command(self) -> str:
        """What shows it again."""
        return f"python integrations/run.py {self.folder}"


def read_library(folder: Path) -> Library:
    """Read a folder's ``requirements.txt``.

    Raises:
        ValueError: Where it pins nothing, leaves a version open, or there is no test.
    """
    path = folder / "requirements.txt"
    said: dict[str, str] = {}
    blocks: list[list[str]] = [[]]
    for line in path.read_text(encoding="utf-8").splitlines():
        if told := re.match(r"#\s*(library|tests|environment):\s*(.+)", line):
            said[told[1]] = told[2].strip()
        elif not line.strip() and blocks[-1]:
            blocks.append([])
        elif line.strip() and not line.startswith("#"):
            if "==" not in line:
                raise ValueError(f"{path}: `{line}` leaves the version open; write name==version")
            blocks[-1].append(re.split(r"[\[=]", line)[0].strip())
    if not blocks[0]:
        raise ValueError(f"{path} pins no package")
    tests = (
        [ROOT / name for name in said["tests"].split()]
        if "tests" in said
        else sorted(folder.glob("test_*.py"))
    )
    if not tests or not all(test.is_file() for test in tests):
        raise ValueError(f"{path}: no test: write {folder.name}/test_{folder.name}.py, or `# tests: PATH`")
    if said.get("environment", "full") != "full":
        raise ValueError(f"{path}: environment can only be `full`, not `{said['environment']}`")
    title = said.get("library", folder.name)
    return Library(folder.name, title, tuple(blocks[0]), tuple(tests), "environment" in said)


def choose(names: Sequence[str]) -> list[Library]:
    """The libraries of these names; all of them for none.

    Raises:
        ValueError: For a name that is no folder here.
    """
    there = sorted(path.parent.name for path in HERE.glob("*/requirements.txt"))
    for name in names:
        if name not in there:
            near = get_close_matches(name, there, n=1)
            hint = f"; did you mean `{near[0]}`?" if near else ""
            raise ValueError(f"no library `{name}`{hint} There are: {', '.join(there)}")
    return [read_library(HERE / name) for name in (names or there)]


def run_command(command: Sequence[str | Path], env: dict[str, str], seconds: float) -> tuple[int | None, str]:
    """Run a command from the repository's root; all that it started ends with it.

    Returns:
        The exit status (``None`` where time ran out) and all that was printed.
    """
    child = subprocess.Popen(
        [str(part) for part in command],
        cwd=ROOT,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
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


def make_environment(folder: Path, *, full: bool) -> Path:
    """Make a virtual environment, or take the one that is there.

    Returns:
        Its interpreter.
    """
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, with_pip=True, symlinks=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    lines = [str(ROOT)]
    if not full:
        # addsitedir and not the bare path: it also reads the .pth files there, such as an editable install's.
        lines += [f"import site; site.addsitedir({path!r})" for path in site.getsitepackages()]
    (packages / "zz_behind_its_own_packages.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return python


def installed(folder: Path) -> dict[str, str]:
    """The packages in an environment's own folder, with their versions."""
    (packages,) = (folder / "lib").glob("python*/site-packages")
    return {_canonical(dist.name): dist.version for dist in distributions(path=[str(packages)])}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_cases(report: Path, tests: Sequence[Path]) -> list[Case]:
    """Put pytest's JUnit report and the tests' docstrings together; a parametrised test is one case."""
    says = {}
    for path in tests:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                text = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ").rstrip(".")
                says[node.name] = text or node.name.removeprefix("test_").replace("_", " ")
    found: dict[str, Case] = {}
    for element in ET.parse(report).getroot().iter("testcase"):
        name = element.get("name", "").split("[")[0]
        bad = [part for tag in ("failure", "error", "skipped") for part in element.findall(tag)]
        outcome = "passed" if not bad else "skipped" if bad[0].tag == "skipped" else "failed"
        detail = bad[0].get("message", "").split("\n")[0][:200] if bad else ""
        if name not in found or found[name].outcome == "passed":
            found[name] = Case(name, says.get(name, name), outcome, detail)
    return list(found.values())


def try_library(library: Library, folder: Path, seconds: float, *, verbose: bool) -> Result:
    """Make its environment in ``folder``, install, and run its tests."""
    cache = folder.parent / "art-gym-cache"
    env = {"OMP_NUM_THREADS": "1"} | os.environ | {"ART_GYM_CACHE": str(cache)}
    env.pop("PYTHONPATH", None)
    began = time.monotonic()
    python = make_environment(folder, full=library.full)
    pip = f"{python} -m pip --disable-pip-version-check install --quiet --requirement".split()
    status, printed = run_command([*pip, library.requirements], env, seconds)
    middle = time.monotonic()
    own, ours = installed(folder), {} if library.full else _ours()
    versions = {name: ({**ours, **own}).get(_canonical(name), "?") for name in library.packages}
    replaced = {name: own[name] for name in sorted(own) if ours.get(name, own[name]) != own[name]}
    replaced = {name: version for name, version in replaced.items() if name not in ("pip", "setuptools")}
    cases: list[Case] = []
    if status != 0:
        outcome = "timed out" if status is None else "not installed"
    else:
        report = folder / "report.xml"
        options = ["-q", "-p", "no:cacheprovider", "-W", "default", f"--junitxml={report}"]
        status, printed = run_command([python, "-m", "pytest", *options, *library.tests], env, seconds)
        outcome = "timed out" if status is None else "passed" if status == 0 else "failed"
        cases = read_cases(report, library.tests) if report.is_file() and status is not None else []
        if outcome == "passed" and not any(case.outcome == "passed" for case in cases):
            outcome = "failed"  # all skipped: nothing was shown
    if verbose or outcome != "passed":
        print(printed)
    return Result(
        library.folder,
        library.title,
        versions,
        replaced,
        library.full,
        ".".join(map(str, sys.version_info[:3])),
        outcome,
        round(middle - began, 1),
        round(time.monotonic() - middle, 1),
        cases,
        "" if outcome == "passed" else " ".join(printed.split())[-300:],
    )


def _ours() -> dict[str, str]:
    return {_canonical(dist.name): dist.version for dist in distributions(path=site.getsitepackages())}


@contextmanager
def _home(keep: bool) -> Iterator[Path]:
    """The folder of the environments."""
    if keep:
        KEPT.mkdir(exist_ok=True)
        (KEPT / ".gitignore").write_text("*\n", encoding="utf-8")
        yield KEPT
    else:
        with tempfile.TemporaryDirectory(prefix="art-gym-integrations-") as name:
            yield Path(name)


def table_row(result: Result) -> str:
    """A row of the table in Markdown: library, version, works, does not, command."""
    works = [case.says for case in result.cases if case.outcome == "passed" and not _is_limit(case)]
    limits = [case.says for case in result.cases if case.outcome == "passed" and _is_limit(case)]
    limits += [f"**{case.outcome}**: {case.says}" for case in result.cases if case.outcome != "passed"]
    if not result.cases:
        limits.append(f"**{result.outcome}**")
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    if result.replaced:
        others = ", ".join(f"{name} {version}" for name, version in result.replaced.items())
        versions += f" (brings its own {others})"
    cells = [result.title, versions, "<br>".join(works), "<br>".join(limits), f"`{result.command}`"]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _is_limit(case: Case) -> bool:
    return case.name.startswith(_LIMIT)


def write_table(path: Path, results: Sequence[Result]) -> None:
    """Replace what stands between the two marker comments of a page.

    Raises:
        ValueError: Where the page has no such comments.
    """
    page = path.read_text(encoding="utf-8")
    if not 0 <= page.find(BEGIN) < page.find(END):
        raise ValueError(f"{path} has no lines `{BEGIN}` and `{END}` in this order")
    head = "| library | version tried | works | does not | command |\n|---|---|---|---|---|\n"
    rows = "\n".join(map(table_row, results))
    before, after = page[: page.index(BEGIN)], page[page.index(END) :]
    path.write_text(f"{before}{BEGIN}\n{head}{rows}\n{after}", encoding="utf-8")


def load(path: Path) -> dict[str, Result]:
    """Read results of earlier runs; none where there is no such file."""
    if not path.is_file():
        return {}
    found = {}
    for row in json.loads(path.read_text(encoding="utf-8")):
        cases = [Case(**case) for case in row.pop("cases")]
        found[row["folder"]] = Result(**row, cases=cases)
    return found


def main() -> int:
    """Run what is asked for; 1 where anything failed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="folders here; all by default")
    parser.add_argument("--keep", action="store_true", help="keep the environments, and take kept ones")
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
    results = load(options.json) if options.json else {}
    good = True
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # so that what was started ends, and is cleaned up
    with _home(options.keep) as home:
        for library in libraries:
            result = try_library(library, home / library.folder, options.timeout, verbose=options.verbose)
            results[library.folder] = result
            good = good and result.outcome == "passed"
            versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
            passed = sum(case.outcome == "passed" for case in result.cases)
            print(
                f"{library.folder:14} {result.outcome:14} {passed:3} of {len(result.cases):3} tests  install "
                f"{result.install_seconds:5.0f} s  tests {result.test_seconds:5.0f} s  {versions}",
                flush=True,
            )
            if options.json:
                rows = [asdict(results[name]) for name in sorted(results)]
                options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    if options.table:
        write_table(options.table, [results[name] for name in sorted(results)])
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
