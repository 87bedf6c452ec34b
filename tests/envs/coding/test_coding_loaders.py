import ast
import gzip
import json
import lzma
import re
import tomllib
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from art_gym.cli.coding import coding_app
from art_gym.envs.coding.judge import grade
from art_gym.envs.coding.loaders.assertions import UnsupportedTestError, constant, doctest_cases, simple_cases
from art_gym.envs.coding.loaders.load import FORMATS, Loaded, load_problems, save_problems
from art_gym.envs.coding.problem import Case, Problem
from art_gym.envs.coding.sandbox import Sandbox
from art_gym.envs.coding.validate import validate
from tests.envs.coding.tasks import TRIPLE

TEXTS = tomllib.loads(Path(__file__).with_name("assertions.toml").read_text("utf-8"))
TASKS = tomllib.loads(Path(__file__).with_name("formats.toml").read_text("utf-8"))["tasks"]
HALF = "half a character (a lone surrogate)"
OWN = Problem(
    id="own/one",
    prompt="Say ü.",
    level=2,
    entry_point="f",
    template="def f(x):\n    ...\n",
    public=(Case((1,), expected=(1, {2})),),
    hidden=(Case(([None, float("inf")],), {"y": b"z"}, expected=10**700), Case(expected=frozenset())),
    reference="def f(x): ...",
    mutants=("def f(): ...",),
    tolerance=1e-6,
    equality="python",
    limits={"cpu_seconds": 9},
    split="test",
    source="here",
)
SCRIPT = Problem(id="own/two", prompt="p", kind="script", hidden=(Case(stdin="a\n", stdout="b\n"),))
TESTS = Problem(id="own/three", prompt="p", kind="unittest", entry_point="m", tests="import m")


def loaded(path: Path, *rows: dict[str, Any], format: str | None = None) -> Loaded:
    file = path / "tasks.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    return load_problems(file, format)


def solved(problem: Problem, code: str, sandbox: Sandbox) -> bool:
    return grade(problem, code, sandbox).solved


@pytest.mark.parametrize("pack", [lambda data: data, gzip.compress, lzma.compress])
def test_problems_come_back_from_a_file_as_they_were(pack: Any, tmp_path: Path) -> None:
    save_problems((OWN, SCRIPT, TESTS), tmp_path / "plain.jsonl")
    suffix = {gzip.compress: ".gz", lzma.compress: ".xz"}.get(pack, "")
    file = tmp_path / f"tasks.jsonl{suffix}"
    file.write_bytes(pack((tmp_path / "plain.jsonl").read_bytes()))
    assert load_problems(file) == Loaded((OWN, SCRIPT, TESTS))


def test_values_stand_in_the_file_as_python_literals() -> None:
    assert OWN.to_json()["public"] == [{"args": "(1,)", "expected": "(1, {2})"}]
    assert SCRIPT.to_json()["hidden"] == [{"stdin": "a\n", "stdout": "b\n"}]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kind": "functions"}, "kind must be one of function, script, unittest, not 'functions'"),
        ({"level": 4}, "level must be 0, 1, 2 or 3, not 4"),
        ({"entry_point": "not a name"}, "needs an entry_point that is a name"),
        ({"hidden": []}, "kind 'function' needs hidden cases"),
        ({"hidden": [{"stdin": "", "stdout": ""}]}, "a case of another kind than 'function'"),
        ({"hidden": [{"args": "[1]", "expected": "1"}]}, "`args` is a tuple"),
        ({"hidden": [{"args": "(f(),)", "expected": "1"}]}, "is not a literal"),
        ({"hidden": [{"args": "(1,)"}]}, "a case has `args`, `expected`"),
        ({"hidden": [{"args": "(1,)", "expected": 1}]}, "a JSON object of strings"),
        ({"hidden": "x"}, "field 'hidden' is a list"),
        ({"prompt": ""}, "needs an id and a prompt"),
        ({"prompt": 3}, "field 'prompt' is text, not int"),
        ({"equality": "loose"}, "equality must be one of exact, python"),
        ({"limits": {"cpu": 3}}, "limits are numbers named wall_seconds, cpu_seconds,"),
        ({"limits": {"memory_bytes": 1e9}}, "`memory_bytes` is 1000000000.0; it must be a whole number"),
        ({"limits": {"cpu_seconds": 1e30}}, "`cpu_seconds` is 1e+30; it must be a number above 0"),
        ({"tolerance": "0.1"}, "tolerance must be a number of at least 0, not '0.1'"),
        ({"tolerance": -1}, "tolerance must be a number of at least 0, not -1"),
        ({"mutants": [1]}, "field 'mutants' is text, not int"),
        ({"id": ["x"]}, "field 'id' is text, not list"),
        ({"prompt": "\ud800"}, f"field 'prompt' holds {HALF} at 0"),
        ({"rating": 3}, "unknown field 'rating'; a problem has id, prompt"),
        ({"kind": "unittest"}, "needs `tests`"),
        ({"kind": "unittest", "entry_point": "json", "tests": "import json"}, "a module of Python's own"),
    ],
)
def test_a_faulty_problem_is_left_out_with_the_reason(
    change: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    result = loaded(tmp_path, OWN.to_json() | {"id": "good"}, OWN.to_json() | change)
    assert [problem.id for problem in result.problems] == ["good"]
    ((where, words),) = result.left_out
    assert where == "line 2"
    assert reason in words
    assert f"line 2: {words}" in result.summary()


def test_the_guides_tasks_are_problems(tmp_path: Path) -> None:
    guide = Path(__file__).parents[3] / "docs/guides/coding.md"
    (text,) = re.findall(r"```json\n(.*?)```", guide.read_text(), re.DOTALL)
    (tmp_path / "mine.jsonl").write_text(text)
    found = load_problems(tmp_path / "mine.jsonl")
    assert [(one.kind, one.split) for one in found.problems] == [("function", "train"), ("script", "test")]
    assert found.left_out == ()


def test_what_no_program_could_be_given_is_no_case(tmp_path: Path) -> None:
    deep = reduce(lambda inner, _: [inner], range(250), 1)
    for case, reason in [
        (Case((object(),)), "plain Python values only, not one of type object"),
        (Case(expected=deep), "nested more than 200 deep"),
    ]:
        with pytest.raises(ValueError, match=reason):
            replace(OWN, hidden=(case,))
    contest = next(task["row"] for task in TASKS if task["format"] == "code_contests")
    bad = [contest | {"private_tests": {"input": [each], "output": ["x"]}} for each in (1, "\ud83d")]
    reasons = [reason for _, reason in loaded(tmp_path, contest, *bad).left_out]
    assert reasons == [f"field 'stdin' {what}" for what in ("is text, not int", f"holds {HALF} at 0")]


def test_an_id_counts_once(tmp_path: Path) -> None:
    result = loaded(tmp_path, OWN.to_json(), OWN.to_json())
    assert result.left_out == (("line 2", "the id 'own/one' occurs before"),)


def test_files_that_hold_no_problems_say_so(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    for text, reason in [
        ("", "holds no problems"),
        ("[1]", "no JSON objects"),
        ("{", "line 1 is no JSON"),
        ('{"name": 1}', "no known format has the fields name"),
        ('{"id": "x", "prompt": "x"}', "holds no problem that can be used; line 1: kind 'function' needs"),
    ]:
        file.write_text(text)
        with pytest.raises(ValueError, match=re.escape(reason)):
            load_problems(file)
    for name, data in [
        ("x.jsonl.gz", gzip.compress(b"{}" * 99)[:-9]),
        ("x.jsonl.xz", b"none"),
        ("y.jsonl", b"\xff"),
    ]:
        (tmp_path / name).write_bytes(data)
        with pytest.raises(ValueError, match=rf"{name} cannot be read: "):
            load_problems(tmp_path / name)
    with pytest.raises(ValueError, match="did you mean `humaneval`"):
        load_problems(file, "human-eval")
    for path, what in ((tmp_path, "a folder"), (tmp_path / "nope", "no file")):
        with pytest.raises(ValueError, match=f"is {what}: give the file"):
            load_problems(path)


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task["name"])
def test_a_line_becomes_a_problem_that_its_solutions_alone_solve(
    task: dict[str, Any], tmp_path: Path, sandbox: Sandbox
) -> None:
    bad = [task["row"] | task["bad"] | {"task_id": "bad", "problem_id": 4}] if "bad" in task else []
    result = loaded(tmp_path, task["row"], *bad)
    (problem,) = result.problems
    assert result.format == task["format"]
    fields = json.loads(json.dumps(problem.to_json()))
    assert fields == fields | task.get("is", {})
    solutions = [code for code in (problem.reference, *task.get("right", [])) if code]
    assert solutions
    assert all(solved(problem, code, sandbox) for code in solutions)
    for code, passed in task["wrong"]:
        verdict = grade(problem, code, sandbox)
        assert (verdict.passed, verdict.solved) == (passed, False)
    assert all(task["left_out"] in reason for _, reason in result.left_out)
    assert len(result.left_out) == ("left_out" in task)


def test_every_format_has_a_task_and_is_distinct_from_the_others() -> None:
    assert {task["format"] for task in TASKS} == set(FORMATS) - {"own"}
    names = list(FORMATS)
    for index, name in enumerate(names):
        for later in names[index + 1 :]:
            assert not FORMATS[name].fields <= FORMATS[later].fields, (name, later)


@pytest.mark.parametrize("text", TEXTS["constants"])
def test_expressions_of_constants_are_read(text: str) -> None:
    assert constant(ast.parse(text, mode="eval").body) == eval(text)


@pytest.mark.parametrize(
    "text", [*(f"assert f(1) == ({text})" for text in TEXTS["others"]), *TEXTS["statements"]]
)
def test_other_expressions_and_assertions_are_not(text: str) -> None:
    with pytest.raises(UnsupportedTestError):
        simple_cases(ast.parse(text).body, "f")


def test_examples_of_a_docstring_that_cannot_be_read_are_passed_over() -> None:
    text = ">>> f(1)\n2\n>>> f(g)\n3\n>>> f(2)\nError\n>>> f(\n>>> f(3, k='x')\n[1]"
    assert doctest_cases(text, "f") == (Case((1,), expected=2), Case((3,), {"k": "x"}, expected=[1]))


SOUND = replace(TRIPLE, mutants=("def triple(n): return n",))


@pytest.mark.parametrize(
    ("change", "what", "broken"),
    [
        ({"reference": "def triple(n): return 3 * abs(n)"}, "the reference passes 1 of 2 hidden tests", True),
        ({"public": (Case((1,), expected=1),)}, "a public example, triple(1): expected 1, got 3", True),
        ({"hidden": (Case((9,), expected=3),)}, "an answer that ignores its input passes", True),
        ({"hidden": (Case((7,), expected=None),)}, "an answer that does nothing passes", True),
        ({"mutants": ("def triple(n): return n + n + n",)}, "mutant 1 passes the hidden tests", False),
        ({"reference": ""}, "there is no reference solution", False),
    ],
)
def test_validation_finds_what_is_wrong(
    change: dict[str, Any], what: str, broken: bool, sandbox: Sandbox
) -> None:
    sound, findings = validate([SOUND, replace(SOUND, **change)], sandbox)
    assert sound == []
    assert any(what in finding.what and finding.broken == broken for finding in findings)


def test_the_command_reports_and_writes_the_sound_ones(tmp_path: Path, sandbox: Sandbox) -> None:
    wrong = replace(SOUND, id="wrong", reference="def triple(n): return 3 * abs(n)")
    save_problems((SOUND, wrong), tmp_path / "in.jsonl")
    out = tmp_path / "out.jsonl"
    result = CliRunner().invoke(coding_app, ["validate", str(tmp_path / "in.jsonl"), "--out", str(out)])
    assert result.exit_code == 1
    assert "broken: wrong: the reference passes 1 of 2 hidden tests" in result.output
    assert "1 of 2 tasks are sound" in result.output
    assert load_problems(out).problems == (SOUND,)
    assert CliRunner().invoke(coding_app, ["validate", str(out)]).exit_code == 0
    nowhere = CliRunner().invoke(coding_app, ["validate", str(out), "--out", str(tmp_path / "no/x.jsonl")])
    assert "there is no folder" in nowhere.output
    assert "sound" not in nowhere.output
    missing = CliRunner().invoke(coding_app, ["validate", str(tmp_path / "none.jsonl")])
    assert missing.exit_code == 2
    assert "none.jsonl is no file: give" in missing.output
