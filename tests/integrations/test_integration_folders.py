"""Each folder of integrations/ pins its packages and names tests that exist."""

import pytest

from integrations.run import HERE, choose, read_library


def test_every_folder_can_be_run():
    folders = sorted(path.parent.name for path in HERE.glob("*/requirements.txt"))
    assert [library.folder for library in choose([])] == folders
    with pytest.raises(ValueError, match="did you mean `sb3`"):
        choose(["sb4"])


@pytest.mark.parametrize("text", ["torch\n", "torch==2\n\nnumpy\n", "# tests: tests/gone.py\ntorch==2\n"])
def test_open_versions_and_missing_tests_are_refused(tmp_path, text):
    (tmp_path / "requirements.txt").write_text(text)
    with pytest.raises(ValueError, match=r"leaves the version open|no test"):
        read_library(tmp_path)
