import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from art_trainer.analysis.report import choose_samples, headline, shared_instructions, write_report
from art_trainer.rollout.evaluate import EpisodeResult, Evaluation
from art_trainer.tracking.run_dir import RunFolder, read_lines
from art_trainer.types import Ending, Episode, Turn
from tests.art_trainer.analysis.drifting_runs import Play, write_run

SYSTEM = "Find the mail.\n\nTools:\n- search\n- select\n\n"
EVIL = "</pre><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>&amp;\x1b[31m \ud800"


def episode(k, success, reply="select", observation="Right."):
    found = float(bool(success))
    turn = Turn(reply, observation, found, {"found": found}, {"name": "select"}, None)
    error = {"kind": "unknown_tool", "message": "no"}
    wrong = Turn("serach", "did you mean search?", -0.1, {"invalid_action": -0.1}, None, error)
    first = f"{SYSTEM}Which mail is number {k}?"
    return Episode("art/Email-v0", f"test-{k}", k, first, (wrong, turn), (), Ending.TERMINATED, success)


def evaluation(episodes, name="x"):
    results = tuple(EpisodeResult.of(one) for one in episodes)
    return Evaluation(name, "art/Email-v0", "test", 0, results, 1.0)


def fill(folder, name, successes, **options):
    episodes = [episode(k, success, **options) for k, success in enumerate(successes)]
    folder.write_evaluation(name, evaluation(episodes, name), episodes)


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.write_settings({"env": "art/Email-v0", "model": "art-tiny", "max_steps": 20, "lora": None})
    lines = [{"step": s, "reward": s / 20, "success": s / 20, "loss": 0.1} for s in range(1, 21)]
    folder.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    fill(folder, "before", [False] * 30 + [True] * 10)
    fill(folder, "after", [True] * 36 + [False] * 4)
    fill(folder, "baseline-bm25", [True] * 16 + [False] * 24)
    return folder


class Page(HTMLParser):
    """What a browser would find: tags in balance, attributes, text."""

    VOID = frozenset({"meta", "rect", "line", "circle", "polyline", "br"})

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.attributes, self.words = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.handle_startendtag(tag, attributes)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += [name for name, _ in attributes]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def page_of(folder):
    text = write_report(folder.path).read_text(encoding="utf-8")
    Page(text)
    return text


def test_result_and_verdict_stand_above_everything_else(run):
    text = page_of(run)
    words = (
        "Success rose from 25% to 90% on the same 40 episodes of the test split: +65 points",
        "Yes: held-out success went from 25% to 90%",
        "10% of the 40 evaluated attempts fail",
        "No sign of it",
        "baseline bm25",
        "Episodes won 30, lost 4",
    )
    assert sorted(words, key=text.index) == list(words)
    assert "20 of 20 steps" in text
    assert "had not finished" not in text


def test_the_page_loads_nothing_and_what_a_run_holds_is_text(run):
    def script(progress, rng):
        terms = {EVIL: float(rng.random())}
        return Play(False, [EVIL] * 2, terms, invalid=1, error=(EVIL, EVIL), judged=0.5)

    write_run(run.path, script, steps=8)
    for name in ("before", "after"):
        fill(run, name, [True] * 3, reply=EVIL, observation=EVIL)
    run.write_settings({"env": EVIL, "model": EVIL, EVIL: EVIL})
    text = page_of(run)
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "form", "a"} & set(page.tags)
    loading = ("src", "href", "style", "on")
    assert not [name for name in page.attributes if name.startswith(loading)]
    assert any("</pre><script>alert(1)</script>" in word for word in page.words)
    assert "\x1b" not in text
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    assert not {"url(", "@import"} & set(re.findall(r"url\(|@import", style))
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    wanted = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    assert policy == wanted


def test_an_unfinished_run_says_so_and_shows_what_there_is(run):
    (run.evaluations / "after.json").unlink()
    (run.evaluations / "after.episodes.jsonl").unlink()
    text = page_of(run)
    assert "had not finished" in text
    assert "Before training, success was 25% (14 to 40) on 40 episodes" in text
    assert "Which mail is number 0?" in text


def test_what_a_killed_run_left_and_missing_values_are_no_obstacle(run):
    with run.metrics_file.open("a") as stream:
        stream.write('{"step": 21, "reward": NaN}\n{"step": 22, "reward": 1.0, "success": null}\n')
        stream.write('{"step": "x", "num_tokens": "y"}\n{"step": 23, "rew')
    huge = f'{{"seconds": 7, "cpu_seconds": 1{"0" * 400}}}'
    run.costs_file.write_text('{"seconds": "x", "cpu_seconds": NaN}\n' + huge + '\n{"sec')
    file = run.evaluations / "after.episodes.jsonl"
    file.write_bytes(file.read_bytes()[:-50])
    text = page_of(run)
    assert len(run.transcripts("after")) == 39
    assert "Unreadable lines of metrics.jsonl: 1." in text
    assert "Cost: 7 s, 0 CPU-seconds" in text
    assert "22 of 20 steps" in text
    assert not re.search(r"\bnan\b", text, re.I)


def test_an_empty_folder_gives_a_page_and_a_missing_one_an_error(tmp_path):
    RunFolder(tmp_path).settings_file.touch()
    page = page_of(RunFolder(tmp_path))
    assert "Nothing was evaluated yet." in page
    assert "Unknown yet" in page
    with pytest.raises(FileNotFoundError, match=r"no run folder at .*missing"):
        write_report(tmp_path / "missing")


def test_a_file_that_is_no_evaluation_is_named(run):
    (run.evaluations / "after.json").write_text('{"policy": 1}')
    with pytest.raises(ValueError, match=r"after\.json is not an evaluation"):
        write_report(run.path)


def outcomes(*successes):
    return evaluation([episode(k, success) for k, success in enumerate(successes)])


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (outcomes(*[None] * 9), outcomes(*[None] * 9), "The mean reward went from -0.100 (-0.100 to -0.100)"),
        (outcomes(*[True] * 2, *[False] * 6), outcomes(*[True] * 3, *[False] * 5), "Success went from 25%"),
        (outcomes(*[True] * 9), outcomes(*[False] * 9), "Success fell from 100% to 0% on the same 9"),
        (outcomes(True), evaluation([episode(1, True)]), "X and x did not meet the same starts"),
    ],
)
def test_the_headline_says_what_is_more_than_chance(before, after, words):
    assert headline(before, after).startswith(words)


def test_samples_show_every_outcome_not_the_prettiest():
    before = [episode(k, k in (3, 5)) for k in range(20)]
    after = [episode(k, k not in (5, 7)) for k in range(20)]
    samples = choose_samples(before, after)
    assert len(samples) == 6
    shown = {tuple(one.success for _, one in sample.sides) for sample in samples}
    assert shown == {(False, True), (True, True), (True, False), (False, False)}
    assert all(one.task_id == sample.task_id for sample in samples for _, one in sample.sides)


def test_shared_instructions_are_cut_at_a_paragraph():
    episodes = [episode(0, True), episode(1, True)]
    assert shared_instructions(episodes) == SYSTEM
    assert shared_instructions(episodes[:1]) == shared_instructions([]) == ""


def test_reading_lines_counts_what_is_broken(tmp_path):
    file = tmp_path / "x.jsonl"
    assert read_lines(file).records == ()
    file.write_bytes(b'{"a": 1}\n[1]\n\xff\xfe\n{"a": 2}\n{"a"')
    lines = read_lines(file)
    assert lines.records == ({"a": 1}, {"a": 2})
    assert lines.broken == 3
