"""The page of certificates: a quick look at every environment finds nothing bad but what it tells."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from art_gym.registration import _ENVS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "certificates.md").read_text().splitlines()
NUMBERS = {"art/2048Array-v0"}
TIMED = {"semantic.resource_envelope", "statistical.training_signal"}
"""Found in a short look on a busy machine, or missed there."""


def test_every_text_environment_is_on_the_page():
    own = {name for name in _ENVS if name.partition("/")[0] in ("art", "toy")}
    shown = {line[4:].strip("`").split()[0] for line in PAGE if line.startswith("## `")}
    assert own - NUMBERS == shown


@pytest.mark.e2e
def test_a_quick_look_finds_what_the_page_tells(tmp_path):
    found = tmp_path / "found.json"
    command = [sys.executable, "benchmarks/certificates.py", "--quick", "--json", str(found)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    for certificate in json.loads(found.read_text())["certificates"]:
        (row,) = [line for line in PAGE if line.startswith(f"| `{certificate['name']}` |")]
        bad = {finding["id"] for finding in certificate["findings"] if finding["passed"] is False}
        assert all(name in row for name in bad - TIMED), (row, bad)
