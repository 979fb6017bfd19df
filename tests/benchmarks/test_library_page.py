"""Every known defect of a library is confirmed by other means, and the page has no other findings."""

import importlib
import re
from dataclasses import replace
from importlib.util import find_spec

import pytest
from import_graph import ROOT

from verifier.records import witness
from verifier.subjects.libraries import library_files
from verifier.subjects.load_file import load

FOLDER = next(iter(library_files().values())).parent / "witnesses"
WITNESSES = [
    file.with_name(f"{file.name}#{name}")
    for file in sorted(FOLDER.glob("*.json"))
    for name in witness.read(file)
]
READ_IN_SOURCES = (
    "undefined-lanes",
    "late-copies",
    "odd-columns-in-half",
    "part-of-a-vector",
    "residual-alone",
    "powers-of-rounding-errors",
)
QUACK = """
class RMSNormFunction:
    @staticmethod
    def forward(ctx, x, weight, bias=None, residual=None, eps=1e-6):
        need_grad = any(ctx.needs_input_grad[:3])
        out = rmsnorm_fwd(x, weight, store_rstd=need_grad)


class RMSNorm:
    def __call__(self):
        assert width == self.dtype.width
        vecsize = math.gcd(self.N, 128 // largest_dtype_width)
"""


@pytest.fixture
def libraries(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("libraries")


@pytest.fixture
def other_means(libraries):
    return importlib.import_module("other_means")


@pytest.mark.parametrize("path", WITNESSES, ids=lambda path: path.name)
def test_a_witness_is_confirmed_by_other_means(other_means, path):
    if path.name.partition("#")[2].partition(".")[0] in READ_IN_SOURCES:
        packages = {begin: found for begin, (found, _) in other_means.SOURCES.items()}
        packages |= {"unsloth": "unsloth", "quack": "quack"}
        package = next(found for begin, found in packages.items() if path.name.startswith(f"{begin}_"))
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    assert re.search("torch|mpmath|PTX|the source has", other_means.confirmed(path))


VECTORS_OF_QUACK = {
    "__init__.py": "",
    "softmax.py": "vecsize=128 // largest_dtype_width",
    "reduction_base.py": "assert self.N % vecsize == 0",
}


def test_what_a_source_shows_is_confirmed_by_that_source_alone(other_means, monkeypatch, tmp_path):
    (tmp_path / "quack").mkdir()
    (tmp_path / "quack" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    odd, alone = (
        next(p for p in WITNESSES if f"quack_add_rms_norm.json#{name}" in p.name)
        for name in ("odd-columns-in-half", "residual-alone")
    )

    def told_of(source, path):
        (tmp_path / "quack" / "rmsnorm.py").write_text(source)
        return other_means.confirmed(path)

    assert told_of(QUACK, odd).endswith(
        "16 bits at once of 1 columns, and cp.async of PTX copies 4, 8 or 16 bytes"
    )
    assert "[:3]), of x, weight, bias, and keeps rstd for these alone" in told_of(QUACK, alone)
    powers = next(p for p in WITNESSES if "#powers-of-rounding-errors.finite.float32" in p.name)
    reduce = tmp_path / "quack" / "reduce.py"
    reduce.write_text("exp_x = cute.math.exp2(x * log2_e - (max_x * log2_e), fastmath=True)\n")
    assert "in float32 is 128 less than the exact product" in other_means.confirmed(powers)
    reduce.write_text("exp_x = cute.math.exp2((x - max_x) * log2_e, fastmath=True)\n")
    with pytest.raises(other_means.UncheckedError, match="not take its powers so"):
        other_means.confirmed(powers)
    with pytest.raises(other_means.UncheckedError, match="does not choose its vectors so"):
        told_of(QUACK.replace("math.gcd", "max"), odd)
    with pytest.raises(other_means.UncheckedError, match="the forward keeps rstd otherwise"):
        told_of(QUACK.replace("[:3]", "[:4]"), alone)
    with pytest.raises(other_means.UncheckedError, match="the residual is among x, weight, residual"):
        told_of(QUACK.replace("weight, bias=None, residual=None", "weight, residual=None, bias=None"), alone)
    case, document = witness.load(odd)
    even = replace(case, columns=2)
    with pytest.raises(other_means.UncheckedError, match="vectors of 32 bits can be copied"):
        other_means.CHECKS["odd-columns-in-half"](even, document)


def test_vectors_that_rows_do_not_fill_are_read_in_both_sources(other_means, monkeypatch, tmp_path):
    (tmp_path / "quack").mkdir()
    for name, text in VECTORS_OF_QUACK.items():
        (tmp_path / "quack" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    path = next(p for p in WITNESSES if "#part-of-a-vector.forward_error.float16" in p.name)
    assert other_means.confirmed(path).endswith("1 columns fill no vectors of 8 elements")
    case, document = witness.load(path)
    with pytest.raises(other_means.UncheckedError, match="16 columns fill vectors of 8"):
        other_means.CHECKS["part-of-a-vector"](replace(case, columns=16), document)
    (tmp_path / "quack" / "softmax.py").write_text("vecsize=math.gcd(N, 8)")
    with pytest.raises(other_means.UncheckedError, match="does not choose its vectors so"):
        other_means.confirmed(path)


def test_no_witness_names_a_folder_of_the_machine_that_made_it():
    for file in {path.with_name(path.name.partition("#")[0]) for path in WITNESSES}:
        assert not re.search(r"source /", file.read_text(encoding="utf-8")), file


def test_an_offset_that_is_no_product_in_32_bits_is_not_confirmed(other_means):
    path = next(p for p in WITNESSES if "#rows-in-32-bits" in p.name)
    case, document = witness.load(path)
    said = document["message"]
    for message in (said.replace("offset -", "offset -1"), said.replace("block (1", "block (2"), "no offset"):
        with pytest.raises(other_means.UncheckedError, match=r"times no stride|it says something else"):
            other_means.CHECKS["rows-in-32-bits"](case, {**document, "message": message})


def test_what_nothing_confirms_is_not_printed(libraries, other_means, tmp_path, capsys):
    path = WITNESSES[0]
    with pytest.raises(other_means.UncheckedError, match="nothing here confirms it"):
        other_means.confirmed(path.with_name(path.name.replace("#", "#other-")))
    group = next(p for p in WITNESSES if "#sums-through-bfloat16" in p.name)
    case, document = witness.load(group)
    with pytest.raises(other_means.UncheckedError, match="rounded to bfloat16"):
        other_means.CHECKS["sums-through-bfloat16"](
            case, {**document, "seen": "grad_bias[1] is 1.5, exactly 1.25"}
        )
    overflowing = next(p for p in WITNESSES if "#sums-overflow" in p.name)
    small, document = witness.load(overflowing)
    small.tensors["input"].fill_(1.0)
    with pytest.raises(other_means.UncheckedError, match="no sum overflows: the variance is"):
        other_means.CHECKS["sums-overflow"](small, document)
    report = tmp_path / "report.json"
    report.write_text('{"libraries": [], "lines": [], "findings": []}')
    kept = ["--kept", str(tmp_path / "kept")]
    assert libraries.main([str(report), *kept, "--out", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text().startswith("# Norms of installed libraries")


@pytest.mark.parametrize(
    ("verdicts", "shown"),
    [
        (("PASS", "SKIPPED"), "PASS"),
        (("PASS", "UNDECIDED"), "UNDECIDED: modes"),
        (("FAIL", "UNDECIDED"), "FAIL: finite; UNDECIDED: modes"),
        (("UNDECIDED", "CRASH"), "CRASH: modes; UNDECIDED: finite"),
        (("CRASH", "FAIL"), "CRASH: finite; FAIL: modes"),
        (("PASS", "NO_THEOREM"), "NO_THEOREM: modes"),
    ],
)
def test_a_check_that_is_undecided_is_named_beside_the_verdict(libraries, verdicts, shown):
    lines = [
        {
            "subject": "a", "dtype": "float32", "check": check, "verdict": verdict, "outputs": {},
            "unexpected": int(verdict in {"FAIL", "CRASH"}), "known": 0,
        }
        for check, verdict in zip(("finite", "modes"), verdicts, strict=True)
    ]  # fmt: skip
    report = {"subjects": [{"subject": "a", "op": "rms_norm"}], "reach": [], "lines": lines}
    assert [row[3] for row in libraries._rows(report)] == [shown]


def test_a_norm_of_which_nothing_ran_has_no_verdict_and_a_reason(libraries):
    line = {
        "subject": "a", "dtype": "float32", "check": "finite", "verdict": "SKIPPED", "outputs": {},
        "unexpected": 0, "known": 0, "skipped": "cuda: torch sees no CUDA device here",
    }  # fmt: skip
    report = {"subjects": [{"subject": "a", "op": "rms_norm"}], "reach": [], "lines": [line]}
    assert not list(libraries._rows(report))
    assert set(libraries._not_run(report)) == {("a", "", "cuda: torch sees no CUDA device here")}


def test_what_of_the_kernels_did_not_run_is_named_with_the_reason(libraries):
    place = {"file": "a.py", "function": "kernel", "line": 3, "kind": "loop"}
    lacking = [
        {**place, "why": "its head lets it turn at most once at every shape", "cause": "at most once"},
        {**place, "line": 9, "why": "not seen to turn more than once", "cause": "no second turn"},
        {**place, "kind": "line", "why": "not run", "cause": "line"},
    ]
    reach = [{"subject": name, "lacking": lacking} for name in ("a", "b")]
    told = list(libraries._by_reason(list(libraries._not_run({"lines": [], "reach": reach}))))
    assert told == [f"- a, b, loop `kernel` (a.py:{one['line']}): {one['why']}" for one in lacking[:2]]


def test_a_norm_in_a_dtype_of_which_there_is_no_report_is_named(libraries):
    path = library_files()["liger"]
    of_all = {name for name, _, _ in libraries._without_report(path, set())}
    met = {*(of_all - {"liger_softmax"}), ("liger_softmax", "float16")}
    left = [("liger_softmax", "in float32, bfloat16", "not audited")]
    assert list(libraries._without_report(path, met)) == left


def test_a_library_that_no_report_is_of_is_named(libraries):
    text = (ROOT / "docs" / "libraries.md").read_text(encoding="utf-8")
    audited = set(re.findall(r"^## (\S+) \d", text, re.MULTILINE))
    every = {load(path).library.distribution for path in library_files().values()}
    assert libraries.of_no_report(every) == ""
    assert f"\n\n{libraries.of_no_report(audited)}\n\n" in text
    assert all(f"`{name}` (" in libraries.of_no_report(set()) for name in library_files())
    count = len(load(library_files()["fla"]).subjects)
    lone = libraries.of_no_report(every - {"fla-core"})
    assert lone == (
        f"Declared, but audited nowhere for this page: `fla` ({count} norms of fla-core in "
        "`kernels/libraries/fla.py`)."
    )
    assert "apex.py`, which run on a device alone)" in libraries.of_no_report(every - {"apex"})


def test_a_defect_of_several_norms_is_told_once_and_confirmed_for_each(libraries, monkeypatch):
    met = []
    monkeypatch.setattr(libraries, "confirmed", lambda path: met.append(path.name) or "torch says so")
    findings = [
        {
            "subject": name, "check": "memory", "dtype": dtype, "reason": "Lanes are undefined.",
            "message": "it depends on one (source /srv/site/some/kernels.py:7)",
            "case": f"kernels/libraries/witnesses/{name}.json#lanes.memory.{dtype}",
            "arguments": {"eps": "1e-05"}, "tensors": {},
        }
        for name in ("a", "b") for dtype in ("float16", "float32")
    ]  # fmt: skip
    library = {"distribution": "some-kernels", "version": "1.0", "package": "some"}
    (told,) = libraries._findings(findings, library)
    assert "**a, b**, memory, float32, float16: Lanes are undefined.\n" in told
    assert "- seen in a: it depends on one (source some/kernels.py:7)\n" in told
    assert "- by other means: torch says so; of each of the 2 norms one case is confirmed so\n" in told
    assert sorted(met) == ["a.json#lanes.memory.float32", "b.json#lanes.memory.float32"]
    assert told.count("norm-verifier replay") == 1


def test_what_the_page_tells_to_replay_is_there():
    text = (ROOT / "docs" / "libraries.md").read_text(encoding="utf-8")
    replayed = re.findall(r"norm-verifier replay '([^']+)'", text)
    assert replayed
    assert len(replayed) == text.count("- minimal case: ") == text.count("- by other means: ")
    for one in replayed:
        file, _, name = one.partition("#")
        assert name in witness.read(ROOT / file)


def test_checks_that_were_not_asked_in_some_dtypes_are_told(libraries):
    def asked(dtype, *names):
        lines = [{"subject": "norm", "dtype": dtype, "check": name} for name in names]
        return {"lines": lines}

    every = tuple(libraries.checks())
    reports = [asked("float16", *every), asked("bfloat16", "finite"), asked("float32", "finite")]
    told = list(libraries._asked_in_part(reports))
    assert told == [("norm", "in float32, bfloat16", "asked finite alone")]
    assert not list(libraries._asked_in_part([*reports, asked("float32", *every), asked("bfloat16", *every)]))
