"""Pages of a report in Chromium: nothing that a subject has written acts, and all can be read everywhere."""

import json
from collections import Counter
from contextlib import ExitStack

import pytest
from chromium import NoChromiumError, chromium
from made_reports import KERNELS, failing, hostile, made

from verifier.commands.report.files import write_report

PHONE, DESK, PAPER = (320, 700), (1200, 900), (718, 1000)
"""Widths and heights in CSS pixels; PAPER: between the margins of A4."""
LOAD_SECONDS = 20
"""A page of 1,000 findings takes one or two; so long would say that it does not open."""
CONTRASTS = """() => {
  const channel = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  const parts = text => text.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const back = one => {
    for (let at = one; at; at = at.parentElement) {
      const colour = parts(getComputedStyle(at).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
  };
  const found = [];
  for (const one of document.body.querySelectorAll(":not(svg *):not(script)")) {
    const own = [...one.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    if (!own || !one.checkVisibility() || one.closest("svg")) continue;
    const [low, high] = [light(parts(getComputedStyle(one).color)), light(back(one))].sort((a, b) => a - b);
    found.push([(high + 0.05) / (low + 0.05), one.textContent.trim().slice(0, 40)]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser():
    with ExitStack() as stack:
        try:
            started = stack.enter_context(chromium())
        except NoChromiumError as missing:
            pytest.skip(str(missing))
        yield started


@pytest.fixture
def opened(browser):
    """Return a function that opens a file: its page, with what it said and asked for in `heard`."""
    contexts = []

    def open_(file, size=DESK, **options):
        context = browser.new_context(viewport=dict(zip(("width", "height"), size, strict=True)), **options)
        contexts.append(context)
        page = context.new_page()
        page.heard = []
        page.on("console", lambda message: page.heard.append(message.text))
        page.on("pageerror", lambda error: page.heard.append(str(error)))
        page.on("dialog", lambda dialog: page.heard.append(dialog.message))
        page.on("request", lambda request: page.heard.append(request.url))
        page.goto(file.as_uri())
        assert page.heard.pop(0) == file.as_uri()
        return page

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture
def kernels(subjects_of):
    found = subjects_of(KERNELS)
    return [found["first"], found["second"]]


_texts = {}


@pytest.fixture
def report(kernels, tmp_path):
    """The page of a report with all that a page can have, in harmless words; it is made once."""
    first = tmp_path / "report" / "index.html"
    if not _texts:
        findings = [failing(kernels[0].path, "first", n, f"{'abc'[n]} is wrong") for n in range(3)]
        document = made(kernels[:1], findings, unmet=["first: ulp=1 is required"])
        _texts["page"] = written(document, first.parent).read_text()
    first.parent.mkdir(exist_ok=True)
    first.write_text(_texts["page"])
    return first


def written(document, folder):
    unwritten, first = write_report(document, folder)
    assert unwritten == []
    return first


def unfold(page):
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true })")


def too_wide(page):
    """Return by how many pixels the page is wider than what shows it, all of it unfolded."""
    unfold(page)
    return page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")


def tags(page):
    return Counter(page.evaluate("[...document.querySelectorAll('*')].map(one => one.localName)"))


def test_what_a_subject_has_written_makes_no_element_and_runs_nothing(opened, kernels, tmp_path):
    document, harmless = hostile(kernels, tmp_path), hostile(kernels, tmp_path, "plain")
    page = opened(written(document, tmp_path / "hostile"))
    plain = opened(written(harmless, tmp_path / "harmless"))
    unfold(page)
    assert tags(page) == tags(plain)
    assert page.evaluate("typeof window.pwned") == "undefined"
    assert "pwned" in page.title()
    assert page.title() != "pwned"
    assert page.inner_text("body").count("<img src=x onerror=") > 15
    assert "<img src=x onerror=" not in plain.inner_text("body")
    assert page.heard == plain.heard == []


def test_an_index_with_hostile_names_leads_to_their_pages_and_nowhere_else(opened, kernels, tmp_path):
    document, other = hostile(kernels, tmp_path), made(kernels[1:])
    for key in ("subjects", "lines"):
        document[key] = [*document[key], *other[key]]
    page = opened(written(document, tmp_path / "report"), PHONE)
    assert too_wide(page) <= 0
    assert page.heard == []
    page.click("tbody a >> nth=0")
    assert "<img src=x onerror=" in page.inner_text("h1")
    assert page.evaluate("typeof window.pwned") == "undefined"
    page.click("nav a")
    assert page.url == (tmp_path / "report" / "index.html").as_uri()
    assert all(said.startswith(tmp_path.as_uri()) for said in page.heard)


def test_a_page_that_would_run_something_is_seen(opened, kernels, tmp_path):
    first = written(hostile(kernels, tmp_path), tmp_path / "report")
    text = first.read_text()
    assert "Content-Security-Policy" in text
    text = text.replace("Content-Security-Policy", "X-None")
    text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&#34;", '"')
    first.write_text(text)
    page = opened(first)
    assert page.heard != []
    assert page.evaluate("typeof window.pwned") == "number"


@pytest.mark.parametrize("size", [PHONE, DESK])
def test_nothing_is_wider_than_the_window(opened, report, size):
    assert too_wide(opened(report, size)) <= 0


def test_a_long_name_without_a_space_is_broken(opened, kernels, tmp_path):
    document = json.loads(json.dumps(made(kernels[:1], release=False)).replace("first", "f" * 300))
    assert too_wide(opened(written(document, tmp_path / "report"), PHONE)) <= 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("media", ["screen", "print"])
def test_words_stand_out_from_what_is_behind_them(opened, report, scheme, media):
    """WCAG 2.2, 1.4.3 asks for a contrast of 4.5."""
    page = opened(report, color_scheme=scheme)
    page.emulate_media(media=media)
    unfold(page)
    found = page.evaluate(CONTRASTS)
    assert len(found) > 100
    assert [one for one in found if one[0] < 4.5] == []
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert dark == (scheme == "dark" and media == "screen")


def test_on_paper_all_is_unfolded_and_nothing_is_cut_off(opened, report):
    page = opened(report, PAPER)
    closed = page.locator("details:not(.long):not([open])")
    before = closed.count()
    assert before > 0
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert closed.count() == 0
    page.emulate_media(media="print")
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER[0]
    cut = "[...document.querySelectorAll('.scroll')].map(one => getComputedStyle(one).overflowX)"
    assert set(page.evaluate(cut)) == {"visible"}
    assert not page.locator("button.copy").first.is_visible()
    assert page.locator(".sign").is_visible()
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert closed.count() == before


def test_the_line_that_replays_is_copied(opened, report):
    page = opened(report, permissions=["clipboard-read", "clipboard-write"])
    button = page.locator("button.copy").first
    button.click()
    page.wait_for_function("document.querySelector('button.copy').textContent === 'copied'")
    assert page.evaluate("navigator.clipboard.readText()") == "norm-verifier replay findings/0.json"
    assert page.heard == []


def test_a_report_of_a_thousand_findings_opens(opened, kernels, tmp_path):
    letters = "abcdefghij"
    words = [f"{a}{b}{c} is wrong" for a in letters for b in letters for c in letters]
    findings = [failing(kernels[0].path, "first", n, text) for n, text in enumerate(words)]
    first = written(made(kernels[:1], findings, release=False), tmp_path / "report")
    assert first.stat().st_size < 4_000_000
    page = opened(first, PHONE)
    (timing,) = json.loads(page.evaluate("JSON.stringify(performance.getEntriesByType('navigation'))"))
    assert 0 < timing["loadEventEnd"] < 1000 * LOAD_SECONDS
    assert page.locator("details.finding").count() == 1000
    hidden = "[...document.querySelectorAll('.finding')].map(one => getComputedStyle(one).contentVisibility)"
    assert set(page.evaluate(hidden)) == {"auto"}
    page.emulate_media(media="print")
    assert set(page.evaluate(hidden)) == {"visible"}
    page.emulate_media(media="screen")
    page.locator("details.finding summary").last.click()
    assert (
        page.locator("details.finding").last.locator(".replay pre").inner_text().endswith("findings/999.json")
    )
    assert page.heard == []
