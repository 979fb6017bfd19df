"""The files of a report say what was found, escape what a subject has written, and follow their schema."""

import copy
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest
from jsonschema import Draft202012Validator
from made_reports import HOSTILE, KERNELS, failing, hostile, made
from markdown_it import MarkdownIt

from verifier.commands import cost_of_dtype
from verifier.commands.report import html
from verifier.commands.report.files import report_files, write_report
from verifier.commands.report.markdown import markdown
from verifier.commands.report.view import headline, subject_views
from verifier.records.verdict import Verdict

SCHEMA = json.loads((Path(html.__file__).parent / "audit.schema.json").read_text())
STYLE = (html.TEMPLATES / "style.css").read_text()
VOID = {"meta", "br", "hr", "img", "input", "link"}


@pytest.fixture
def kernels(subjects_of):
    found = subjects_of(KERNELS)
    return [found["first"], found["second"]]


def strict(schema):
    """Return a schema that also rejects keys that it does not name."""
    if isinstance(schema, list):
        return [strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    if found.get("type") == "object" and "properties" in found and "oneOf" not in found:
        found.setdefault("additionalProperties", False)
    return found


def problems(document):
    plain = json.loads(json.dumps(document, allow_nan=False))
    return [
        f"{list(e.absolute_path)}: {e.message}"
        for e in Draft202012Validator(strict(SCHEMA)).iter_errors(plain)
    ]


class Page(HTMLParser):
    """Reads a page: its elements with their attributes, its text, and what is not closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self.open, self.text, self.wrong = [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)

    def handle_data(self, data):
        if "style" not in self.open and "script" not in self.open:
            self.text.append(data)

    @property
    def said(self):
        return " ".join(" ".join(self.text).split())

    def named(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]

    def intruders(self):
        """Elements and attributes that no template has."""
        found = [
            tag for tag, _ in self.elements if tag in {"img", "iframe", "object", "embed", "link", "base"}
        ]
        found += [a for _, attributes in self.elements for a in attributes if a.startswith("on")]
        found += ["script"] * (len(self.named("script")) - 1)
        for _, attributes in self.elements:
            where = [attributes.get(name) or "" for name in ("src", "href", "xlink:href", "action")]
            found += [
                w for w in where if w and not w.startswith("#") and not re.fullmatch(r"[\w./%-]+\.html", w)
            ]
        return found


def pages(document):
    return {n: Page(text) for n, text in report_files(document, Path.cwd()) if n.endswith(".html")}


# -- the schema ----------------------------------------------------------------------------------------


def test_the_schema_is_one_and_what_is_made_follows_it(kernels):
    Draft202012Validator.check_schema(SCHEMA)
    findings = [
        failing(kernels[0].path, "first"),
        failing(kernels[0].path, "first", expected=True, reason="known"),
    ]
    assert problems(made(kernels, findings)) == []
    assert problems(made(kernels, release=False)) == []


@pytest.mark.parametrize(
    "path",
    [
        ("seed",),
        ("lines", 0, "verdict"),
        ("findings", 0, "replay"),
        ("release", "dtypes", 0, "figures", 0, "worst"),
    ],
)
@pytest.mark.parametrize("change", ["gone", "renamed", "of another type"])
def test_the_schema_sees_what_is_missing_or_new_or_of_another_type(kernels, path, change):
    document = copy.deepcopy(made(kernels, [failing(kernels[0].path, "first")]))
    at = document
    for step in path[:-1]:
        at = at[step]
    value = at.pop(path[-1])
    if change != "gone":
        at[f"{path[-1]}{'s' * (change == 'renamed')}"] = value if change == "renamed" else ["odd"]
    assert problems(document)


def test_an_audit_follows_the_schema_and_writes_every_file(command, kernel_file, tmp_path, monkeypatch):
    """The one audit of this module: of a kernel with no declaration but its op, in a GitHub workflow."""
    monkeypatch.setattr(cost_of_dtype, "GRID", (32,))
    monkeypatch.setattr(cost_of_dtype, "_kappas", lambda _: (0.0, 10.0))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("before\n")
    file, folder = kernel_file(KERNELS), tmp_path / "out" / "report"
    quick = ("--check", "forward_error", "--workers", "1", "--subject", "only_its_op")
    status, out, error = command(
        "audit", file, *quick, "--release", "--report", folder, "--require", "ulp=0.1"
    )
    assert status == 1
    assert error == ""
    assert f"report: {folder / 'index.html'}" in out
    assert "::error title=norm-verifier%3A required::only_its_op  float32  output: ulp=0.1 is required" in out
    names = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    assert names == {
        "index.html",
        "report.md",
        "report.json",
        "report.schema.json",
        "junit.xml",
        "findings.sarif",
    }
    document = json.loads((folder / "report.json").read_text())
    assert problems(document) == []
    page = Page((folder / "index.html").read_text())
    assert page.wrong == page.open == page.intruders() == []
    assert page.said.index("NOT MET") < page.said.index("Can it ship?")
    assert "The declaration has no bound here" in page.said
    assert (tmp_path / "summary.md").read_text().startswith("before\n# ")
    assert "ulp=0\\.1 is required" in (tmp_path / "summary.md").read_text()


# -- pages ---------------------------------------------------------------------------------------------


def test_one_subject_has_one_page_with_everything_on_it(kernels):
    finding = failing(kernels[0].path, "first", message="output: 3 of 4 elements at kernel.py:7")
    (name, page), *others = pages(made(kernels[:1], [finding], unmet=["first: reach=1 is required"])).items()
    assert (name, others) == ("index.html", [])
    assert page.wrong == page.open == page.intruders() == []
    order = [
        "FAIL: first",
        "reach=1 is required",
        "Can it ship?",
        "Errors",
        "Findings",
        "Reach",
        "Certificates",
    ]
    places = [page.said.index(word) for word in order]
    assert places == sorted(places)
    for words in (
        "output: 3 of 4 elements at kernel.py:7",
        "norm-verifier replay findings/0.json",
        "float16 (2,), strides (1,), storage offset 0: [0, 1]",
        "512 terms 9 deep (20 declared)",
        "3 cases of this shape were run besides",
        "not certified Refused, which says nothing against the kernel",
        "310 instructions for sm_90",
        "add.f32",
        "output rounding 90.0 %",
        "kernel.py:9 mean = tl.sum(x)",
        "From magnitude 4096 some result is infinite or NaN",
        "no case reached it",
        "float32 sums",
        "1.26 ulp",
    ):
        assert words in page.said, words
    assert "#" not in {a["href"][:1] for a in page.named("a")} - {"#"}
    ids = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    targets = [a["href"][1:] for a in page.named("a")]
    assert set(targets) <= set(ids)
    (policy,) = [m["content"] for m in page.named("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")


def test_nothing_is_claimed_of_what_was_not_measured(kernels):
    (page,) = pages(made(kernels[:1], release=False)).values()
    assert page.intruders() == []
    assert "was not measured: --release does" in page.said
    assert "None was asked for ( --certify does): a PASS speaks of the cases that ran" in page.said
    assert page.named("svg") == []


def test_several_subjects_have_an_index(kernels):
    found = pages(made(kernels, [failing(kernels[0].path, "first")], release=False))
    assert set(found) == {"index.html", "subjects/first.html", "subjects/second.html"}
    index = found["index.html"]
    assert index.said.startswith("FAIL: 2 kernels")
    assert "1 FAIL, 1 PASS" in index.said
    assert {a["href"] for a in index.named("a")} == {"subjects/first.html", "subjects/second.html"}
    assert {"href": "../index.html"} in found["subjects/first.html"].named("a")
    assert found["subjects/second.html"].said.startswith("PASS: second")


@pytest.mark.parametrize(
    ("verdict", "changes", "word", "kind"),
    [
        (Verdict.PASS, {}, "PASS", "good"),
        (Verdict.UNDECIDED, {}, "UNDECIDED", "open"),
        (Verdict.ERROR, {}, "ERROR", "open"),
        (Verdict.PASS, {"unmet": ["first: no"]}, "NOT MET", "bad"),
    ],
)
def test_the_verdict_on_top_is_that_of_the_terminal(kernels, verdict, changes, word, kind):
    document = made(kernels[:1], status_of_others=verdict, **changes)
    (view,) = subject_views(document)
    assert (view.headline.word, view.headline.kind) == (word, kind)
    assert (headline(document).word, headline(document).kind) == (word, kind)


def test_what_is_undecided_beside_a_pass_is_no_pass_on_top(kernels):
    document = made(kernels[:1])
    document["lines"][1]["verdict"] = "UNDECIDED"
    assert headline(document).word == "UNDECIDED"
    assert subject_views(document)[0].of_dtype("float16").word == "PASS"


def test_known_defects_are_no_pass_and_no_failure(kernels):
    document = made(kernels[:1], [failing(kernels[0].path, "first", expected=True, reason="as published")])
    found = headline(document)
    assert (found.word, found.kind) == ("FAIL (known)", "open")
    assert document["status"] == 0


def test_a_certified_case_that_fails_is_an_error_on_top(kernels):
    document = made(kernels[:1], [failing(kernels[0].path, "first")])
    document["certificates"][0].update(contradicted="forward_error: FAIL", verdict="UNDECIDED")
    (view,) = subject_views(document)
    assert (view.headline.word, view.headline.kind) == ("ERROR", "open")
    assert headline({**document, "status": 4}).word == "ERROR"
    assert view.certified("float16") == "refused"


def test_an_interrupted_audit_is_called_so(kernels):
    assert headline({**made(kernels), "interrupted": True}).word == "INTERRUPTED"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.12345, "0.123"),
        (999.6, "1e3"),
        (8192, "8192"),
        (-4096.4, "-4096"),
        (65504.0, "65504"),
        (1e6, "1e6"),
        (3.4e38, "3.4e38"),
        (-1.5e-7, "-1.5e-7"),
        (1e-10, "1e-10"),
        ("inf", "∞"),
        ("nan", "none"),
        (None, "none"),
    ],
)
def test_a_number_has_three_digits_and_no_exponent_where_it_is_readable(value, text):
    assert html.digits(value, "none") == text


def test_steps_that_make_nothing_of_an_error_are_left_out():
    def named(*shares):
        stages = [{"stage": str(n), "share": share, "place": ""} for n, share in enumerate(shares)]
        return [one["stage"] for one in html.main_steps({"stages": stages})]

    assert named(1.2, -0.2, 4e-4, -4e-4) == ["0", "1"]
    assert named(0.4, 0.3, 0.2, 0.1) == ["0", "1", "2"]
    assert named(1e-5) == ["0"]


def test_what_changes_no_bound_is_told_once():
    def what(change, declared, changed):
        return {"change": change, "output": "output", "kappa": 0.0, "declared": declared, "changed": changed}

    same, better = what("a", 1.2, 1.2001), what("b", 1.2, 1.1)
    found = html.changes({"what_if": [same, what("b", 2, 2), better, what("a", None, None)]})
    assert (found.some, found.none) == ([better], ["a"])
    assert html.changes({"what_if": [what("c", None, 3.0)]}).none == []


def test_errors_are_those_of_ordinary_data_where_they_were_measured(kernels):
    document = made(kernels[:1])
    document["lines"][0]["nonzero_row_ulp"], document["lines"][0]["worst_row_ulp"] = 0.75, 7.5
    (view,) = subject_views(document)
    assert (view.error("float16"), view.worst_error("float16")) == (0.51, 0.75)
    del document["release"]
    (view,) = subject_views(document)
    assert view.error("float16") == 0.75


# -- what a subject has written ------------------------------------------------------------------------


def test_pages_escape_whatever_a_subject_has_written(kernels, tmp_path, monkeypatch):
    document = hostile(kernels, tmp_path)
    (page,) = pages(document).values()
    assert page.wrong == page.open == page.intruders() == []
    assert page.said.count("<img src=x onerror=") > 15
    escaping = html._environment()
    escaping.autoescape = False
    monkeypatch.setattr(html, "_environment", lambda: escaping)
    (page,) = pages(document).values()
    assert page.intruders()


def test_an_index_escapes_names_and_stays_in_its_folder(kernels, tmp_path):
    document = hostile(kernels, tmp_path)
    other = made(kernels[1:])
    climbing = "../../../etc/passwd"
    for key in ("subjects", "lines"):
        document[key] = [*document[key], *({**one, "subject": climbing} for one in other[key])]
    unwritten, first = write_report(document, tmp_path / "report")
    assert unwritten == []
    written = [p for p in (tmp_path / "report").rglob("*") if p.is_file()]
    assert len([p for p in written if p.parent.name == "subjects"]) == 2
    page = Page(first.read_text())
    assert page.wrong == page.open == page.intruders() == []
    assert all((first.parent / unquote(a["href"])).is_file() for a in page.named("a"))
    assert not (tmp_path.parent / "etc").exists()


def test_markdown_shows_texts_and_no_markup_of_theirs(kernels, tmp_path):
    reader = MarkdownIt("commonmark").enable("table")
    text = markdown(hostile(kernels, tmp_path))

    def kinds(source):
        tokens = reader.parse(source)
        return {t.type for one in tokens for t in (one, *(one.children or []))}

    assert not kinds(text) & {"html_block", "html_inline", "link_open", "image", "em_open", "strong_open"}
    said = "".join(t.content for one in reader.parse(text) for t in one.children or [])
    assert said.count("<img src=x onerror=") > 3
    assert kinds(HOSTILE) & {"html_block", "html_inline"}


def test_markdown_says_what_the_page_says(kernels):
    text = markdown(made(kernels[:1], [failing(kernels[0].path, "first")]))
    for words in (
        "❌ FAIL: first",
        "norm-verifier replay findings/0.json",
        "output rounding 90.0 %",
        "What float16 costs",
        "within 4 ulp up to kappa 40, 512 columns, magnitude none",
        "moves output by up to 1.26 ulp",
        "float32 sums, output at kappa 0: the proved bound is none for 1.2 ulp",
        "float16, 2 x 512 forward: certified for all inputs",
        "float32, 2 x 512 forward: refused, not shown: the code is the declared computation",
    ):
        assert words in text
    many = markdown(made(kernels, [failing(kernels[0].path, "first")]))
    assert "| second | layer\\_norm | ✅ PASS |" in many
    assert "## second" not in many


# -- files ---------------------------------------------------------------------------------------------


def test_what_cannot_be_written_is_said(kernels, tmp_path):
    (tmp_path / "file").write_text("")
    unwritten, _ = write_report(made(kernels), tmp_path / "file")
    assert unwritten == [f"{tmp_path / 'file'}: File exists"]


def test_two_reports_are_compared(command, kernels, tmp_path):
    old, new = tmp_path / "a.json", tmp_path / "b.json"
    old.write_text(json.dumps(made(kernels)))
    new.write_text(json.dumps(made(kernels, [failing(kernels[0].path, "first")])))
    status, out, _ = command("compare", old, old)
    assert (status, out) == (0, f"{old} is nowhere worse than {old}\n")
    status, out, _ = command("compare", old, new, "--json", tmp_path / "c.json")
    assert status == 1
    assert "first  forward_error  float16  machine: PASS became FAIL" in out
    assert json.loads((tmp_path / "c.json").read_text())["worse"]
    status, out, _ = command("compare", new, old)
    assert status == 0
    assert "better in 2 places" in out
    status, _, error = command("compare", old, kernels[0].path)
    assert status == 2
    assert "one is a report and the other a kernel" in error
