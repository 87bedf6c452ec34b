from xml.etree import ElementTree

import pytest

from art_trainer.analysis.svg_charts import HEIGHT, WIDTH, line_chart, smoothed, ticks
from benchmarks.charts import Panel, page

SVG = "{http://www.w3.org/2000/svg}"


def test_values_stand_where_the_axes_say():
    panel = Panel("", "x", "y", (0, 10), (0, 1))
    panel.points([0, 10, 5, 5], [0, 1, 0.5, 0.5], "red", opacity=0.5)
    dots = list(ElementTree.fromstring(page(panel)).iter(f"{SVG}circle"))
    (left, bottom), (right, top), middle = [(float(c.get("cx")), float(c.get("cy"))) for c in dots]
    assert 0 < left < right < WIDTH
    assert 0 < top < bottom < HEIGHT
    assert middle == pytest.approx(((left + right) / 2, (top + bottom) / 2), abs=0.1)
    assert dots[2].get("fill-opacity") == "0.75"  # two in one place


def test_a_figure_is_xml_with_escaped_labels_inside_it():
    panel = Panel("A <title> & more", "x", "y", (-0.55, 1.08), (0, 1))
    panel.line([-0.55, 1.08], [0, 1], "red", dashed=True)
    panel.interval(0.5, 0.25, 0.75, "red")
    panel.label(0.95, 0.5, "a long name <b>", "blue")
    panel.legend([("one", "red"), ("two", "blue")])
    root = ElementTree.fromstring(page(panel))
    assert root.get("viewBox") == f"0 0 {WIDTH:g} {HEIGHT:g}"
    texts = {t.text: t for t in root.iter(f"{SVG}text")}
    assert texts["a long name <b>"].get("text-anchor") == "end"
    assert {"A <title> & more", "one", "two"} <= texts.keys()
    line = next(root.iter(f"{SVG}polyline"))
    xs = [float(pair.split(",")[0]) for pair in line.get("points").split()]
    assert 0 < xs[0] < xs[1] < WIDTH


def test_ticks_are_round_and_enclose_the_values():
    assert ticks(0.03, 0.97, 4) == [0, 0.5, 1]
    assert ticks(0, 150, 4) == [0, 50, 100, 150]
    for low, high in [(-3, 17), (1e6, 3e7), (5, 5), (0, 0), (0.05, 0.05 + 1e-16), (1.2e-12, 1.3e-12)]:
        marks = ticks(low, high, 4)
        assert marks[0] <= low <= high <= marks[-1]
        assert 2 <= len(marks) <= 8


def test_a_chart_of_some_values_one_and_none():
    chart = line_chart("Reward", "mean", range(1, 101), [k % 7 for k in range(100)])
    assert (chart.svg.count("<circle"), chart.svg.count("<polyline")) == (100, 1)
    assert (chart.first, chart.last) == ("0", "1")
    noise = line_chart("KL", "", range(3), [1e-14, 8e-15, -2e-16])
    assert (noise.first, noise.last) == ("0", "0")
    assert line_chart("x", "", [1], [float("nan")]) is None
    assert line_chart("x", "", [1], [3.0]).last == "3"
    assert line_chart("x", "", range(10_000), range(10_000)).svg.count("<circle") <= 401


def test_smoothing_keeps_a_line_and_calms_noise():
    assert smoothed([2.0] * 50) == pytest.approx([2.0] * 50)
    line = [float(k) for k in range(200)]
    assert smoothed(line)[20:-20] == pytest.approx(line[20:-20])
    zigzag = [(-1.0) ** k for k in range(400)]
    assert max(abs(value) for value in smoothed(zigzag)[50:-50]) < 0.01
