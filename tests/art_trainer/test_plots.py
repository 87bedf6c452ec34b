import re
from xml.etree import ElementTree

import pytest

from art_trainer.charts import HEIGHT, WIDTH
from art_trainer.plots import Panel, page

SVG = "{http://www.w3.org/2000/svg}"


def drawn(panel):
    return ElementTree.fromstring(page([panel]))


def panel_of(x_range=(0.0, 1.0), y_range=(0.0, 1.0), **options):
    return Panel("A <title> & more", "x", "y", x_range, y_range, **options)


def test_values_stand_where_the_axes_say():
    panel = panel_of((0, 10), (0, 1))
    panel.points([0, 10, 5], [0, 1, 0.5], "red")
    dots = [(float(c.get("cx")), float(c.get("cy"))) for c in drawn(panel).iter(f"{SVG}circle")]
    (left, bottom), (right, top), middle = dots
    assert 0 < left < right < WIDTH
    assert 0 < top < bottom < HEIGHT
    assert middle == pytest.approx(((left + right) / 2, (top + bottom) / 2), abs=0.1)


def test_dots_in_one_place_are_drawn_once_and_denser():
    panel = panel_of()
    panel.points([0.5, 0.5, 0.2], [0.5, 0.5, 0.2], "red", opacity=0.5)
    assert sorted(c.get("fill-opacity") for c in drawn(panel).iter(f"{SVG}circle")) == ["0.5", "0.75"]


def test_an_axis_holds_values_beyond_round_numbers():
    panel = panel_of((-0.55, 1.08), (0, 1))
    panel.line([-0.55, 1.08], [0, 1], "red", dashed=True)
    line = next(drawn(panel).iter(f"{SVG}polyline"))
    xs = [float(pair.split(",")[0]) for pair in line.get("points").split()]
    assert 0 < xs[0] < xs[1] < WIDTH
    assert line.get("stroke-dasharray")


def test_words_are_escaped_and_stay_inside():
    panel = panel_of()
    panel.label(0.95, 0.5, "a long name <b>", "blue")
    panel.label(0.0, 0.5, "left", "blue")
    texts = {t.text: t for t in drawn(panel).iter(f"{SVG}text")}
    assert texts["a long name <b>"].get("text-anchor") == "end"
    assert texts["left"].get("text-anchor") == "start"
    assert "A <title> & more" in texts


def test_an_interval_reaches_from_low_to_high():
    panel = panel_of()
    panel.interval(0.5, 0.25, 0.75, "red")
    panel.points([0.5, 0.5], [0.25, 0.75], "red")
    root = drawn(panel)
    low, high = [float(c.get("cy")) for c in root.iter(f"{SVG}circle")]
    bar = next(p.get("d") for p in root.iter(f"{SVG}path") if p.get("stroke") == "red")
    assert [float(y) for y in re.match(r"M[\d.]+ ([\d.]+)V([\d.]+)", bar).groups()] == [low, high]


def test_legend_and_an_axis_without_numbers():
    panel = panel_of(x_numbers=False)
    panel.legend([("one", "red"), ("two", "blue")])
    texts = [t.text for t in drawn(panel).iter(f"{SVG}text")]
    assert texts[-2:] == ["one", "two"]
    assert len(texts) == len([t.text for t in drawn(panel_of()).iter(f"{SVG}text")]) + 2 - 6


def test_panels_stand_side_by_side():
    root = ElementTree.fromstring(page([panel_of()] * 3, columns=2))
    assert root.get("viewBox") == f"0 0 {2 * WIDTH:g} {2 * HEIGHT:g}"
    places = [g.get("transform") for g in root.iter(f"{SVG}g")]
    assert places == ["translate(0 0)", f"translate({WIDTH:g} 0)", f"translate(0 {HEIGHT:g})"]
