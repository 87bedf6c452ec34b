"""``art-trainer episodes``: transcripts, printed or read with keys."""

import re

import pytest

from art_trainer.tracking.run_dir import RunFolder
from art_trainer.types import Group
from tests.art_trainer.pseudo_terminal import PseudoTerminal
from tests.art_trainer.serving.dashboard.run_folders import DashRun, group, judged


@pytest.fixture
def run(tmp_path):
    made = DashRun(tmp_path / "mine")
    for step in (1, 2):
        made.step(step)
    made.step(5, [group(1, (0.5, 0.0, 1.0), words="[bold]\x1b[2J"), Group((judged(9),))])
    return made


@pytest.mark.parametrize(
    ("chosen", "places"),
    [("", "50 51 52 53"), ("--step 2 --episode 3", "23"), ("--worst", "51"), ("--step 1 --best", "10")],
)
def test_the_chosen_episodes_are_printed(run, invoke, chosen, places):
    shown = invoke("episodes", "mine", *chosen.split()).output
    found = re.findall("^step (.), episode (.) of", shown, re.MULTILINE)
    assert [step + place for step, place in found] == places.split()


def test_a_transcript_has_all_that_was_said_and_obeys_none_of_it(run, invoke):
    lines = invoke("episodes", "mine", "--episode", 1).output.splitlines()
    assert lines == [
        "step 5, episode 1 of 0 to 3, task task-1, terminated", "Who wrote about tea? [bold]␛[2J",
        '› search("tea")', "Found 2 mails. [bold]␛[2J", "reward +0.250 (found +0.25)", "› select(m1)", "",
        "reward -0.250", "Not solved: reward 0.000 in 2 turns (found +0.25)", "",
    ]  # fmt: skip
    assert "ruler: 0.75 Well done <script>" in invoke("episodes", "mine", "--episode", 3).output


def test_what_is_not_there_is_refused_with_what_is(run, refused, tmp_path):
    assert "no episodes of step 3, but of steps 1 to 5, not all" in refused("episodes", "mine", "--step", 3)
    assert "step 2 has no episode 4, but 0 to 3" in refused("episodes", "mine", "--step", 2, "--episode", 4)
    assert "give one of them" in refused("episodes", "mine", "--best", "--worst")
    RunFolder(tmp_path / "empty").begin({"max_steps": 1}, 0)
    assert "empty has no recorded episodes" in refused("episodes", "empty")


@pytest.mark.e2e
@pytest.mark.parametrize(("leave", "code"), [("q", 0), ("\x03", 130)])
def test_keys_lead_through_the_episodes(run, tmp_path, leave, code):
    run.step(6, [group(1, (0.0, 1.0), words="".join(f"\nrow {number}" for number in range(60)))])
    terminal = PseudoTerminal(tmp_path, "episodes", "mine", "--step", 2)
    terminal.wait_for("step 2, episode 0 of", "q quit")
    for keys, shown in (
        ("n", "2, episode 1"), ("\x1b[C\x1bOC", "2, episode 3"), ("n", "2, episode 3"), ("p", "2, episode 2"),
        ("P", "1, episode 0"), ("P", "1, episode 0"), ("NN", "5, episode 0"), ("b", "5, episode 2"),
        ("w", "5, episode 1"), ("\x1b[D", "5, episode 0"), ("NN?", "6, episode 0"), (" ", "row 42"),
        ("\x1b[B", "row 43"), ("u", "row 21"), ("\x1b[A", "row 20"), ("uuu", "row 20"),
    ):  # fmt: skip
        terminal.press(keys)
        terminal.wait_for(f"{shown} ", "q quit")
    terminal.press(leave)
    assert terminal.end() == code
