import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from art_trainer.charts import line_chart, short, smoothed, ticks
from art_trainer.episodes import Ending, Episode, Turn
from art_trainer.evaluation import EpisodeResult, Evaluation
from art_trainer.report import choose_samples, headline, shared_instructions, write_report
from art_trainer.run_folder import RunFolder, read_lines

SYSTEM = "Find the mail.\n\nTools:\n- search\n- select\n\n"
EVIL = "</pre><script>alert(1)</script><img src=http://evil.example/x onerror=alert(2)>&amp;\x1b[31m \ud800"


def episode(k, success, reply="select", observation="Right."):
    turn = Turn(
        reply, observation, float(bool(success)), {"found": float(bool(success))}, {"name": "select"}, None
    )
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
    return episodes


@pytest.fixture
def run(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.write_settings(
        {"env": "art/Email-v0", "model": "art-tiny", "max_steps": 20, "seed": 7, "lora": None}
    )
    lines = [
        {"step": s, "reward": s / 20, "success": s / 20, "entropy": 1.0, "loss": 0.1} for s in range(1, 21)
    ]
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
        self.open, self.tags, self.links, self.words = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [
            value for name, value in attributes if name in ("src", "href") or name.startswith("on")
        ]
        assert not any(name == "style" for name, _ in attributes), (
            "the page's policy forbids style attributes"
        )
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def page_of(folder):
    text = write_report(folder.path).read_text(encoding="utf-8")
    page = Page(text)
    assert page.open == []
    return text, page


def test_the_result_stands_in_one_sentence(run):
    text, _ = page_of(run)
    assert "Success rose from 25% to 90% on the same 40 episodes of the test split: +65 points" in text
    assert "baseline bm25" in text
    assert "20 of 20 steps" in text
    assert "had not finished" not in text


def test_rounding_noise_is_no_curve():
    chart = line_chart("KL", "", range(3), [1e-14, 8e-15, -2e-16])
    assert (chart.first, chart.last) == ("0", "0")


def test_the_verdict_stands_above_everything_else(run):
    text, _ = page_of(run)
    answers = [
        text.index(words)
        for words in (
            "Did it learn?",
            "Yes: held-out success went from 25% to 90%",
            "Where does it fail?",
            "10% of the 40 evaluated attempts fail",
            "Does it cheat?",
        )
    ]
    assert answers == sorted(answers)
    assert answers[-1] < text.index("Before and after, beside policies")
    assert "No sign of it" in text
    assert "Signs, the surest first" in text
    assert "Starts won 30, lost 4" in text


def test_the_page_loads_nothing_and_allows_nothing(run):
    text, page = page_of(run)
    assert page.links == []
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(page.tags)
    assert "url(" not in text
    assert "@import" not in text
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    style = re.search(r"<style>(.*?)</style>", text, re.S)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"


def test_what_an_episode_holds_is_text_and_never_markup(run):
    for name in ("before", "after"):
        fill(run, name, [True] * 3, reply=EVIL, observation=EVIL)
    run.write_settings({"env": EVIL, "model": EVIL, EVIL: EVIL})
    text, page = page_of(run)
    assert not {"script", "img"} & set(page.tags)
    assert page.links == []
    assert "&lt;script&gt;alert(1)" in text
    assert "\x1b" not in text
    assert any("</pre><script>alert(1)</script>" in word for word in page.words)


def test_an_unfinished_run_says_so_and_shows_what_there_is(run):
    (run.evaluations / "after.json").unlink()
    (run.evaluations / "after.episodes.jsonl").unlink()
    text, _ = page_of(run)
    assert "had not finished" in text
    assert "Before training, success was 25% (14 to 40) on 40 episodes" in text
    assert "Which mail is number 0?" in text


def test_a_killed_runs_cut_line_is_tolerated_and_said(run):
    with run.metrics_file.open("a") as stream:
        stream.write('{"step": 21, "rew')
    text, _ = page_of(run)
    assert "when a run is killed, and left out: 1 line." in text
    assert "20 of 20 steps" in text


def test_a_cut_transcript_is_tolerated(run):
    file = run.evaluations / "after.episodes.jsonl"
    file.write_bytes(file.read_bytes()[:-50])
    assert len(run.transcripts("after")) == 39
    page_of(run)


def test_an_empty_folder_gives_a_page(tmp_path):
    text, _ = page_of(RunFolder(tmp_path))
    assert "Nothing was evaluated yet." in text


def test_no_folder_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no run folder at .*missing"):
        write_report(tmp_path / "missing")


def test_a_file_that_is_no_evaluation_is_named(run):
    (run.evaluations / "after.json").write_text('{"policy": 1}')
    with pytest.raises(ValueError, match=r"after\.json is not an evaluation"):
        write_report(run.path)


def test_a_step_without_a_value_or_with_nan_leaves_a_gap(run):
    with run.metrics_file.open("a") as stream:
        stream.write(
            '{"step": 21, "reward": NaN}\n{"step": 22}\n{"step": 23, "reward": 1.0, "success": null}\n'
        )
    page, _ = page_of(run)
    assert "polyline" in page
    assert "NaN" not in page
    assert not re.search(r"\bnan\b", page)


def test_an_environment_without_success_is_summed_up_by_its_reward():
    before = after = evaluation([episode(k, None) for k in range(9)])
    assert headline(before, after).startswith(
        "The mean reward went from -0.100 (-0.100 to -0.100) to -0.100 (-0.100 to -0.100) on the same 9"
    )


def test_a_difference_that_may_be_luck_is_not_called_a_rise():
    before = evaluation([episode(k, k < 2) for k in range(8)])
    after = evaluation([episode(k, k < 3) for k in range(8)])
    assert headline(before, after).startswith("Success went from 25% to 38%")
    assert headline(after, evaluation([episode(k, False) for k in range(8)])).startswith("Success ")


def test_evaluations_that_cannot_be_compared_are_not():
    before, after = evaluation([episode(0, True)]), evaluation([episode(1, True)])
    assert "did not meet the same starts" in headline(before, after)


def test_samples_show_every_outcome_not_the_prettiest():
    before = [episode(k, k in (3, 5)) for k in range(20)]
    after = [episode(k, k not in (5, 7)) for k in range(20)]
    samples = choose_samples(before, after)
    assert len(samples) == 6
    assert {(s.before.success, s.after.success) for s in samples} == {
        (False, True),
        (True, True),
        (True, False),
        (False, False),
    }
    assert all(s.before.task_id == s.after.task_id == s.task_id for s in samples)


def test_shared_instructions_are_cut_at_a_paragraph():
    episodes = [episode(0, True), episode(1, True)]
    assert shared_instructions(episodes) == SYSTEM
    assert shared_instructions(episodes[:1]) == ""
    assert shared_instructions([]) == ""


def test_ticks_are_round_and_enclose_the_values():
    assert ticks(0.03, 0.97, 4) == [0, 0.5, 1]
    assert ticks(0, 150, 4) == [0, 50, 100, 150]
    for low, high in [(-3, 17), (0.001, 0.0011), (1e6, 3e7), (5, 5), (0, 0)]:
        marks = ticks(low, high, 4)
        assert marks[0] <= low <= high <= marks[-1]
        assert 2 <= len(marks) <= 8


def test_a_chart_places_its_points_inside_the_axes():
    chart = line_chart("Reward", "mean", range(1, 101), [k % 7 for k in range(100)])
    assert len(chart.points) == 100
    assert all(chart.left <= x <= chart.right and chart.top <= y <= chart.bottom for x, y in chart.points)
    assert chart.points[0][0] == chart.left
    assert chart.points[-1][0] == chart.right
    assert [tick.label for tick in chart.y_ticks] == ["0", "2", "4", "6"]


def test_charts_of_nothing_one_value_and_very_many():
    assert line_chart("x", "", [], []) is None
    assert line_chart("x", "", [1], [float("nan")]) is None
    assert line_chart("x", "", [1], [3.0]).last == "3"
    assert len(line_chart("x", "", range(10_000), range(10_000)).points) <= 401


def test_smoothing_keeps_a_line_and_calms_noise():
    assert smoothed([2.0] * 50) == pytest.approx([2.0] * 50)
    line = [float(k) for k in range(200)]
    assert smoothed(line)[20:-20] == pytest.approx(line[20:-20])
    zigzag = [(-1.0) ** k for k in range(400)]
    assert max(abs(value) for value in smoothed(zigzag)[50:-50]) < 0.01
    assert smoothed([1.0, 5.0]) == pytest.approx([1.0, 5.0])


def test_short_numbers():
    assert [short(v) for v in (0, 0.5, 12345, 123.4, 0.00034, 0.0000012)] == [
        "0",
        "0.5",
        "12.3k",
        "123",
        "0.0003",
        "1e-6",
    ]


def test_reading_lines_counts_what_is_broken(tmp_path):
    file = tmp_path / "x.jsonl"
    assert read_lines(file).records == ()
    file.write_bytes(b'{"a": 1}\n[1]\n\xff\xfe\n{"a": 2}\n{"a"')
    lines = read_lines(file)
    assert lines.records == ({"a": 1}, {"a": 2})
    assert lines.broken == 3
