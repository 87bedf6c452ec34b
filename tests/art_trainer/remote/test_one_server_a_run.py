"""One folder, one run, one server: a second one finds out before it has changed or used what is not its."""

import json
import re
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from art_trainer.commands.gathering import TrainRequest
from art_trainer.commands.serving import ServeRequest, run_serve
from art_trainer.config import GRPOConfig
from art_trainer.remote.backend import RemoteBackend
from art_trainer.remote.description import describe_run
from art_trainer.remote.journal import Journal, JournalError, discard, require_unused
from art_trainer.remote.journal_lines import Entry
from art_trainer.remote.journal_run import claim
from art_trainer.remote.messages import RunDescription
from tests.art_trainer.guess import guess_policy
from tests.art_trainer.remote.played import TIMING, episode, task
from tests.art_trainer.remote.server_helpers import RUN


def contents(folder: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


@pytest.mark.parametrize("step", [None, 1], ids=["go on", "go back"])
def test_a_run_that_a_server_trains_is_left_as_it_is(tmp_path: Path, step: int | None) -> None:
    """To go back deletes the journal: never that of a server that is still writing it."""
    (tmp_path / "run.yaml").write_text("learning_rate: 0.001\n")
    journal = Journal(tmp_path / "journal")
    journal.append([Entry(task(), 0, 0, episode(task()), TIMING)])
    before = contents(tmp_path)
    training = TrainRequest({"learning_rate": 1.0}, {}, None, resume=tmp_path, resume_step=step)
    with pytest.raises(JournalError, match="in use: another server trains this run"):
        run_serve(ServeRequest(training, api=False, dashboard=False), Console(quiet=True))
    with pytest.raises(JournalError, match="in use"):
        discard(tmp_path / "journal")
    assert contents(tmp_path) == before
    assert [entry.member for entry in journal.replay()] == [0]
    journal.close()


def test_a_journal_that_nobody_has_open_can_be_discarded_also_where_it_is_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    require_unused(folder)
    discard(folder)
    assert not folder.exists(), "to look makes nothing"
    Journal(folder).close()
    (folder / "batch-000003.jsonl").write_bytes(b"no line\n")
    (folder / "notes.txt").write_text("a person's")
    require_unused(folder)
    discard(folder)
    assert sorted(file.name for file in folder.iterdir()) == [".lock", "notes.txt"]
    Journal(folder).close()


def test_what_cannot_be_discarded_is_told(tmp_path: Path) -> None:
    (tmp_path / "batch-000001.jsonl").mkdir()
    with pytest.raises(JournalError, match=r"batch-000001\.jsonl cannot be deleted"):
        discard(tmp_path)


def described(**changes: Any) -> RunDescription:
    sampling = RUN.sampling.model_copy(update=changes.pop("sampling", {}))
    return RUN.model_copy(update={**changes, "sampling": sampling})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"env": "toy/Other-v0"}, "there env is 'toy/Echo-v0', in this run 'toy/Other-v0'"),
        ({"env_args": {"level": 2}}, "there env_args is {}, in this run {'level': 2}"),
        ({"sampling": {"temperature": 0.5}}, "there sampling.temperature is 1.0, in this run 0.5"),
    ],
)
def test_results_of_another_run_are_not_learned_from(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    """Their groups have the same names, where the runs have the same seed."""
    with closing(Journal(tmp_path)) as journal:
        claim(journal, described(env="never/Played-v0"))
        claim(journal, described())
        journal.append([Entry(task(), 0, 0, episode(task()), TIMING)])
    with closing(Journal(tmp_path)) as journal:
        claim(journal, described())
        with pytest.raises(JournalError, match=re.escape(words)):
            claim(journal, described(**changes))
        assert [entry.member for entry in journal.replay()] == [0]
        journal.forget(1)
        claim(journal, described(**changes))


def test_what_a_journal_notes_of_its_run_may_be_of_another_version_but_not_torn(tmp_path: Path) -> None:
    with closing(Journal(tmp_path)) as journal:
        journal.append([Entry(task(), 0, 0, episode(task()), TIMING)])
        claim(journal, described())
        file = tmp_path / "run.json"
        noted = json.loads(file.read_text())
        del noted["dtype"]
        file.write_text(json.dumps({**noted, "a_setting_of_later": 3}))
        claim(journal, described(dtype="bfloat16"))
        with pytest.raises(JournalError, match="there dtype is 'bfloat16', in this run 'float32'"):
            claim(journal, described())
        file.write_text('{"env": "toy')
        with pytest.raises(JournalError, match=r"run\.json cannot be read"):
            claim(journal, described())


def test_a_server_does_not_begin_with_another_runs_results(tmp_path: Path) -> None:
    policy = guess_policy(0, hidden=16)
    config = GRPOConfig(output_dir=str(tmp_path))
    with closing(Journal(tmp_path / "journal")) as journal:
        claim(journal, describe_run(policy, "guess", {}, config))
        journal.append([Entry(task(), 0, 0, episode(task()), TIMING)])
    RemoteBackend(policy, "guess", {}, config, tmp_path).close()
    with pytest.raises(JournalError, match="there env is 'guess', in this run 'other'"):
        RemoteBackend(policy, "other", {}, config, tmp_path)
    Journal(tmp_path / "journal").close()
