"""A run that cannot learn, from its command to everything that reads it."""

import pytest

from art_trainer.cli.main import main
from art_trainer.tracking.reading.run_reader import RunReader
from art_trainer.tracking.run_dir import RunFolder, list_checkpoints


def test_it_ends_with_code_3_and_everything_that_reads_it_says_the_same(
    model, tmp_path, monkeypatch, capsys, invoke
):
    arguments = ["--env", "tests.art_trainer.toy_envs:toy/Echo-v0", "--model", model, "--max-steps", "12"]
    arguments += ["--groups-per-step", "2", "--num-generations", "2", "--eval-episodes", "2"]
    arguments += ["--set", "max_completion_length=4", "--threads", "1", "--output-dir", "dead"]
    with pytest.raises(SystemExit) as ended:
        main(["train", *arguments])
    printed = capsys.readouterr()
    assert ended.value.code == 3
    assert printed.err.count("\n") == 1
    assert "no step from 1 to 10 had a gradient: 100% of replies are no tool call" in printed.err
    assert "set keep_going (--keep-going)" in printed.err
    assert printed.out.count("warning: step 3: no step from 1 to 3 had a gradient") == 1
    assert "the first three were “" in printed.out

    folder = RunFolder(tmp_path / "dead")
    assert [path.name for path in list_checkpoints(folder.checkpoints)] == ["step-000010"]
    claim = "this run cannot learn. No step from 1 to 10 had a gradient: 100% of replies are no tool call"
    analysis = invoke("analyze", "dead").output
    page = folder.report_file.read_text()
    for text in (" ".join(analysis.split()), page):
        assert text.index(claim) < text.index("Did it learn?") < text.index("nothing was trained")
        assert "No sign of it" not in text
    assert page.index(claim) < page.index("there is no evaluation to compare it with")
    badge = RunReader(folder.path).summary()["stall"]
    assert badge["title"] == "cannot learn: no valid reply"
    assert "no step from 1 to 10 had a gradient" in badge["message"]

    # Insisting goes on from there.
    assert invoke("train", "--resume", "dead", "--keep-going").exit_code == 0
    assert folder.metrics().records[-1]["step"] == 12
