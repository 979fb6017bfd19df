"""Figures of a report show what was measured, need no colour, and stand alone."""

import copy
import re
import xml.etree.ElementTree as ET

import pytest
from made_reports import KERNELS, made

from verifier.commands.report import html
from verifier.commands.report.figures import error_against_kappa, errors_by_kappa_and_columns

STYLE = (html.TEMPLATES / "style.css").read_text()


@pytest.fixture
def kernels(subjects_of):
    return [subjects_of(KERNELS)["first"]]


def heights(figure, gid):
    """Return the vertical places of the marks of one artist, from the top."""
    (group,) = [
        g
        for g in ET.fromstring(figure).iter("{http://www.w3.org/2000/svg}g")
        if g.get("id", "").endswith(gid)
    ]
    return [float(use.get("y")) for use in group.iter("{http://www.w3.org/2000/svg}use")]


def test_the_bound_is_drawn_above_the_points_seen_and_ends_where_its_theorem_does(kernels):
    record = made(kernels)["release"]["dtypes"][0]
    figure = error_against_kappa(record, "output", "m")
    bound, seen = heights(figure, "bound-declared"), heights(figure, "seen")
    assert (len(bound), len(seen)) == (4, 5)
    assert all(above < below for above, below in zip(bound, seen, strict=False))
    assert heights(figure, "bound-textbook")[0] < bound[0]
    assert "bound of welford" in figure
    lowered = copy.deepcopy(record)
    for point in lowered["points"]:
        point["outputs"]["output"]["bound"] = float(point["outputs"]["output"]["worst"]) / 2
    figure = error_against_kappa(lowered, "output", "m")
    assert not any(
        a < b for a, b in zip(heights(figure, "bound-declared"), heights(figure, "seen"), strict=True)
    )


def test_figures_need_no_colour_and_stand_alone(kernels):
    record = made(kernels)["release"]["dtypes"][0]
    figure = error_against_kappa(record, "output", "m")
    looks = re.findall(r'id="m-bound-(\w+)".*?<path[^>]*style="([^"]*)"', figure, re.DOTALL)
    dashes = [re.sub(r"stroke: [^;]*;?", "", style) for _, style in looks]
    assert len(dashes) == len(set(dashes)) == 3
    map_ = errors_by_kappa_and_columns(record, "output", "h")
    assert ">164<" in map_  # the number stands in its cell: 0.5 + 1000 * 8192 / 5e4
    assert "NaN" not in figure + map_
    for text in (figure, map_):
        assert "http" not in re.sub(r'xmlns(:\w+)?="[^"]*"', "", text)
        assert "#010203" not in text
    assert error_against_kappa(record, "output", "m") == figure


def test_there_is_no_figure_without_points(kernels):
    record = {**made(kernels)["release"]["dtypes"][0], "points": []}
    assert (
        error_against_kappa(record, "output", "m") == errors_by_kappa_and_columns(record, "output", "h") == ""
    )


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    """Return the contrast of two colours. Source: WCAG 2.2, definition of contrast ratio."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_lines_stand_out_in_both_schemes(scheme):
    """WCAG 2.2 asks for 4.5 of text (1.4.3) and for 3 of graphics (1.4.11)."""
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", blocks[scheme == "dark"]))
    for text, back in [
        ("ink", "paper"),
        ("soft", "paper"),
        ("ink", "panel"),
        ("link", "paper"),
        ("good", "good-back"),
        ("bad", "bad-back"),
        ("open", "open-back"),
        ("ink", "bad-back"),
    ]:
        assert contrast(colours[text], colours[back]) >= 4.5, (text, back)
    for number in range(8):
        assert contrast(colours[f"series-{number}"], colours["paper"]) >= 3, number
