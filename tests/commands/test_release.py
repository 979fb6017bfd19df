"""A release audit measures what a dtype costs; its gates fail where an error is too large or has grown."""

import copy
import json
import math
from dataclasses import replace

import pytest
import torch
from short_sweeps import FEW_COLUMNS, KAPPAS, MAGNITUDES, shorten_sweeps

from verifier.audit.baseline import BaselineError, worse
from verifier.audit.request import BUDGETS, Requirements, SelectionError, parse_requirements
from verifier.commands import cost_of_dtype
from verifier.commands.cost_of_dtype import COLUMNS, GRID, Account, Cost, cost
from verifier.commands.explain import WITHOUT_ROUNDING, Share
from verifier.commands.release import stages
from verifier.commands.release.alternatives import COMPENSATED, alternatives
from verifier.commands.release.gates import unmet
from verifier.commands.release.measure import record
from verifier.commands.release.rounded_inputs import unrounded
from verifier.commands.release.stages import stage_of
from verifier.records.remark import Remark

pytestmark = pytest.mark.usefixtures("no_child")
KERNELS = """
HALF = {**DECLARED, "dtypes": ("float16",)}

@subject(**HALF)
def wide(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(**{**HALF, "accumulates": "input"})
def narrow(input, weight=None, bias=None, eps=1e-5):
    mean = input.mean(-1, keepdim=True)
    square = (input * input).mean(-1, keepdim=True)
    out = (input - mean) * torch.rsqrt((square - mean * mean).clamp(min=0) + eps)
    return out * weight + bias

@subject(op="layer_norm", language="torch", dtypes=("float16",), differentiable=False)
def only_its_op(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(**HALF, domain=Domain(max_kappa=10.0))
def promises_little(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(op="add_rms_norm", language="torch", dtypes=("float16",), returns=("output", "new_residual"))
def adds_wrongly(input, residual, weight, eps=1e-5):
    found = input.float() + residual.float()
    output = found * torch.rsqrt(found.square().mean(-1, keepdim=True) + eps) * weight.float()
    return output.half(), (found * 1.02).half()

@subject(**HALF)
def refuses(input, weight=None, bias=None, eps=1e-5):
    raise ValueError("not today")
"""


WHOLE_SWEEP, WHOLE_GRID = cost_of_dtype._sweep, cost_of_dtype._grid
_records, _audits = {}, {}


@pytest.fixture
def short_sweep(monkeypatch):
    shorten_sweeps(monkeypatch)


@pytest.fixture
def records(subjects_of, short_sweep):
    """Return a function from names to records, each of which is measured once."""
    found = subjects_of(KERNELS)

    def measured(name):
        if name not in _records:
            _records[name] = record(found[name], cost(found[name], "float16", "eager", grid=True))
        return _records[name]

    return measured


def test_a_sweep_has_all_kappas_magnitudes_and_columns_that_the_format_holds():
    sweep = list(WHOLE_SWEEP("float16"))
    assert [kappa for kappa, *_ in sweep[:5]] == [0.0, 1.0, 10.0, 100.0, 1000.0]
    magnitudes = [magnitude for kappa, magnitude, columns in sweep if (kappa, columns) == (0.0, COLUMNS)]
    assert (min(magnitudes), max(magnitudes)) == (2.0**-6, 2.0**12)
    assert set(KAPPAS) < {kappa for kappa, *_ in sweep}
    assert set(MAGNITUDES) < set(magnitudes)
    grid = list(WHOLE_GRID("float16"))
    assert {(k, n) for k, _, n in grid} == {(k, n) for k, *_ in sweep for n in GRID if n != COLUMNS}
    assert len(list(WHOLE_SWEEP("float32"))) > len(sweep)


def output(found):
    (figures,) = [one for one in found.figures if one.output == "output"]
    return figures


def test_figures_of_a_right_kernel_are_those_of_correct_rounding(records):
    found = records("wide")
    figures = output(found)
    assert 0.45 < figures.rounded <= figures.worst < 0.51
    assert 0 < figures.mean < figures.tail <= figures.worst < figures.bound
    assert figures.bits_lost == max(0.0, math.log2(figures.worst / figures.rounded)) < 0.03
    assert figures.trust[0].kappa >= 100
    assert figures.trust[0].columns == COLUMNS
    assert {p.columns for p in found.points} == {FEW_COLUMNS, COLUMNS}
    assert found.missing == ()
    assert len(found.source) == 64


@pytest.mark.parametrize("place", [0, 1])
def test_what_is_not_known_of_one_seed_is_not_known(records, subjects_of, place):
    found = records("wide")
    (plain,) = [p for p in found.points if (p.kappa, p.magnitude, p.columns) == (0.0, 1.0, COLUMNS)]
    errors = plain.outputs["output"]
    odd = replace(plain, outputs={"output": replace(errors, worst=math.inf, signed=math.nan, bound=math.nan)})
    points = (odd, plain) if place == 0 else (plain, odd)
    account = Account(subject="wide", dtype="float16", backend="eager", points=points)
    figures = output(record(subjects_of(KERNELS)["wide"], Cost(account=account)))
    assert figures.bound is None
    assert math.isnan(figures.signed)
    assert figures.worst == math.inf
    assert output(found).bound == errors.bound


def test_sums_in_half_cost_more_and_are_trusted_less(records):
    wide, narrow = output(records("wide")), output(records("narrow"))
    assert narrow.worst > 2 * wide.worst
    assert narrow.bits_lost > 1
    for at_narrow, at_wide in zip(narrow.trust, wide.trust, strict=True):
        assert (at_narrow.kappa or 0) <= (at_wide.kappa or 0)
    assert (narrow.trust[0].kappa or 0) < wide.trust[0].kappa
    assert records("narrow").overflow == 4096


def test_wider_sums_are_proved_to_help_where_sums_are_in_half(records):
    (change,) = [
        w
        for w in records("narrow").what_if
        if (w.change, w.output, w.kappa) == ("float32 sums", "output", 0.0)
    ]
    assert change.changed < (change.declared or math.inf)


def test_a_compensated_mean_is_proved_to_help_at_a_large_mean(records):
    changes = [
        (w.declared, w.changed)
        for w in records("wide").what_if
        if (w.change, w.output, w.kappa) == (COMPENSATED, "output", 100.0)
    ]
    ((declared, changed),) = changes
    assert changed < 0.9 * declared


@pytest.mark.parametrize(("op", "formula"), [("layer_norm", "compensated"), ("group_norm", None)])
def test_a_compensated_mean_has_its_own_form_where_the_op_has_one(subjects_of, op, formula):
    (subject,) = subjects_of(f"""
        @subject(op="{op}", language="torch", variance="welford", accumulates="float32", dtypes=("float32",))
        def kernel(input, num_groups=1, weight=None, bias=None, eps=1e-5):
            return input
    """).values()
    (found,) = [one.subject.claim for one in alternatives(subject) if one.name == COMPENSATED]
    assert (found.variance, found.formula) == ("two_pass_corrected_mean", formula)
    assert found.variance_options == {"corrects_mean": True}


def test_the_bound_lies_above_every_point_of_a_right_kernel(records):
    points = [p.outputs["output"] for p in records("wide").points]
    assert [e for e in points if not e.worst <= e.bound and not math.isnan(e.bound)] == []
    assert sum(not math.isnan(e.bound) for e in points) > len(points) / 2


def test_a_kernel_with_no_declaration_but_its_op_is_measured(records):
    found = records("only_its_op")
    assert output(found).bound is None
    assert 0.45 < output(found).worst < 0.51
    assert found.what_if == ()


def test_nothing_is_measured_of_a_kernel_that_refuses(records):
    found = records("refuses")
    assert found.refused == "the subject ran on none of the inputs"
    assert found.figures == ()
    assert "nothing was measured" in unmet([found], Requirements(ulp=100.0))[0].text


def test_every_output_of_an_op_is_measured(records):
    found = records("adds_wrongly")
    (figures,) = [one for one in found.figures if one.output == "new_residual"]
    assert figures.worst > 20
    words = "adds_wrongly  float16  new_residual: ulp=4 is required; its error is"
    assert any(one.text.startswith(words) for one in unmet([found], Requirements(ulp=4.0)))


def test_points_without_a_measured_output_meet_nothing(records):
    found = records("wide")
    bare = replace(found, points=tuple(replace(p, outputs={}) for p in found.points))
    assert unmet([bare], Requirements(ulp=100.0)) == [
        Remark("wide", "wide  float16: ulp=100 is required, and no output was measured")
    ]


def test_errors_are_required_up_to_a_kappa(records):
    wide, narrow = records("wide"), records("narrow")
    assert unmet([wide], Requirements(ulp=0.6, kappa=10.0)) == []
    assert unmet([wide, narrow], Requirements()) == []
    (told,) = unmet([wide, narrow], Requirements(ulp=0.6))
    assert told.subject == "narrow"
    assert told.text.startswith("narrow  float16  output: ulp=0.6 is required; its error is")
    exact = output(wide).worst
    assert unmet([wide], Requirements(ulp=exact)) == []
    assert unmet([wide], Requirements(ulp=math.nextafter(exact, 0))) != []


def test_a_kappa_between_two_that_were_measured_is_required_of_the_higher_one(records):
    narrow = records("narrow")
    plain = [p for p in narrow.points if p.kappa <= 1 and (p.magnitude, p.columns) == (1.0, COLUMNS)]
    limit = max(p.outputs["output"].worst for p in plain)
    power = next(k for k in range(12) if unmet([narrow], Requirements(ulp=limit, kappa=10.0**k)))
    assert power > 0
    assert unmet([narrow], Requirements(ulp=limit, kappa=10.0 ** (power - 1))) == []
    assert unmet([narrow], Requirements(ulp=limit, kappa=1.01 * 10.0 ** (power - 1))) != []


def test_rounding_the_input_costs_more_at_a_large_mean(records):
    small, large = [one for one in records("wide").input_rounding if one.output == "output"]
    assert small.kappa < 1
    assert large.kappa > 50
    assert 0 < small.mean < small.worst < 3
    assert large.worst > 10 * small.worst


def test_an_input_before_rounding_rounds_to_the_one_that_is_tried(subjects_of):
    subject = subjects_of(KERNELS)["wide"]
    case = cost_of_dtype.swept_case(subject, "float16", 100.0, 1.0, 0)
    wide = unrounded(case)
    assert wide.dtype == "float32"
    assert torch.equal(wide.tensors["input"].half(), case.tensors["input"])
    assert not torch.equal(wide.tensors["input"], case.tensors["input"].float())
    assert torch.equal(wide.tensors["weight"], case.tensors["weight"].float())


def test_what_lies_outside_the_domain_is_not_shown(records):
    found = records("promises_little")
    assert unmet([found], Requirements(ulp=1.0, kappa=1.0)) == []
    (told,) = unmet([found], Requirements(ulp=1.0, kappa=1000.0))
    assert "there is no result at kappa 10" in told.text


@pytest.mark.parametrize(
    ("texts", "wanted"),
    [
        (["reach=0.95"], Requirements(reach=0.95)),
        (["ulp=1.0,kappa=1e4,reach=0.5"], Requirements(ulp=1.0, kappa=1e4, reach=0.5)),
        (["ulp=1,certificate"], Requirements(ulp=1.0, certificate=True)),
        (["certificate"], Requirements(certificate=True)),
        (["ulp=1", "ulp=2, kappa=3"], Requirements(ulp=2.0, kappa=3.0)),
        ([], Requirements()),
    ],
)
def test_what_is_required_is_read(texts, wanted):
    assert parse_requirements(texts) == wanted


@pytest.mark.parametrize(
    "text", ["ulp", "certificate=1", "ulp=-1", "ulp=inf", "ulp=nan", "kappa=x,ulp=1", "kappa=1", ""]
)
def test_what_cannot_be_required_is_said(text):
    with pytest.raises(SelectionError, match="--require"):
        parse_requirements([text])


# -- a baseline ----------------------------------------------------------------------------------------

QUICK = ("--check", "forward_error", "--workers", "1")


@pytest.fixture
def audited(command, kernel_file, tmp_path, monkeypatch, short_sweep):
    """Return a function that audits a subject for a release, briefly: (status, output, its JSON).

    An audit without options of its own is made once, by whichever test comes first: all read one file.
    """
    monkeypatch.setitem(BUDGETS, "quick", 2)
    file = kernel_file(KERNELS, folder=tmp_path.parent / "release")

    def run(name, *options):
        if not options and name in _audits:
            return copy.deepcopy(_audits[name])
        status, out, error = command(
            "audit", file, *QUICK, "--subject", name, "--release", "--json", tmp_path / "r.json", *options
        )
        written = tmp_path / "r.json"
        found = status, out + error, json.loads(written.read_text()) if written.exists() else None
        if not options:
            _audits[name] = copy.deepcopy(found)
        return found

    return run


def test_an_audit_is_no_worse_than_itself_and_worse_than_a_better_one(audited, tmp_path):
    status, _, old = audited("wide")
    assert status == 0
    assert old["release"]["dtypes"][0]["figures"][0]["output"] == "output"
    old["reach"] = []  # what ran is told once a process, and here all is one
    baseline = tmp_path / "old.json"
    baseline.write_text(json.dumps(old))
    status, out, new = audited("wide", "--baseline", baseline)
    assert (status, new["release"]) == (0, old["release"])
    assert "nothing is worse than the baseline" in out
    figures = old["release"]["dtypes"][0]["figures"][0]
    figures["worst"] = math.nextafter(figures["worst"], 0)
    baseline.write_text(json.dumps(old))
    status, out, new = audited("wide", "--baseline", baseline)
    assert (status, new["status"]) == (1, 1)
    assert "wide  float16  eager  output: worst was 0.5, is 0.5" in out
    assert {one["subject"] for one in new["unmet"]} == {"wide"}


def test_a_gate_that_is_not_met_gives_status_1(audited):
    status, out, found = audited("wide", "--require", "ulp=0.1")
    assert (status, found["status"]) == (1, 1)
    assert "not met: wide  float16  output: ulp=0.1 is required" in out
    assert audited("wide", "--require", "ulp=0.6,kappa=10")[0] == 0


def changed(document, *path, to):
    found = copy.deepcopy(document)
    at = found
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = to
    return found


FIGURES = ("release", "dtypes", 0, "figures", 0)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("lines", 0, "verdict"), "FAIL", "PASS became FAIL"),
        (("lines", 0, "verdict"), "UNDECIDED", "PASS became UNDECIDED"),
        (("lines",), [], "no longer audited"),
        (("lines", 0, "worst_row_ulp"), "inf", "worst error was"),
        (("release",), None, "no longer measured"),
        (("release", "dtypes", 0, "overflow"), 2.0, "overflows from magnitude was none, is 2"),
        ((*FIGURES, "signed"), -9.0, "signed was"),
        (("certificates",), [], "wide  float16  2x512 forward: CERTIFIED before, and not now"),
        (("certificates", 0, "verdict"), "UNDECIDED", "CERTIFIED before, and not now"),
        ((*FIGURES, "bound"), None, "is none"),
        ((*FIGURES, "trust", 1, "kappa"), 1.0, "kappa within 4.0 ulp was"),
        ((*FIGURES, "trust", 0, "magnitude"), None, "magnitude within 1.0 ulp was"),
        (("reach", 0, "wrapper_lines"), {"ran": 0, "of": 3}, "of its wrapper lines ran"),
    ],
)
def test_each_way_of_being_worse_is_named(audited, path, value, words):
    _, _, old = audited("wide")
    about = {"subject": "wide", "dtype": "float16", "rows": 2, "columns": 512, "gradients": False}
    old["certificates"] = [{**about, "verdict": "CERTIFIED"}]
    assert worse(old, old) == []
    new = changed(old, *path, to=value)
    assert any(words in one.text for one in worse(old, new)), worse(old, new)
    if path[0] != "release":
        assert worse(new, old) == [] or path[-1] == "lines"


def test_a_certificate_that_covers_less_is_worse(audited):
    _, _, old = audited("wide")
    one = {"subject": "wide", "dtype": "float16", "rows": 2, "columns": 512, "gradients": True}
    old["certificates"] = [{**one, "verdict": "CERTIFIED", "outputs": ["output", "grad_bias"]}]
    less = changed(old, "certificates", 0, "outputs", to=["output"])
    told = "wide  float16  2x512 with gradients: grad_bias CERTIFIED before, and not now"
    assert worse(old, less) == [Remark("wide", told)]
    assert worse(less, old) == []
    none = changed(old, "certificates", 0, "verdict", to="UNDECIDED")
    (whole,) = worse(old, none)
    assert whole.text == "wide  float16  2x512 with gradients: CERTIFIED before, and not now"


def test_fewer_cases_that_pass_are_worse(audited):
    _, _, old = audited("wide")
    (line,) = old["lines"]
    assert line["counts"]["PASS"] == sum(line["counts"].values()) > 1
    fewer = changed(old, "lines", 0, "counts", to={"PASS": 1, "UNDECIDED": line["counts"]["PASS"] - 1})
    (told,) = worse(old, fewer)
    assert "cases passed inside its domain, now 1 of" in told.text
    narrower = changed(old, "lines", 0, "counts", to={"PASS": 1, "SKIPPED": 1})
    assert len(worse(old, changed(narrower, "lines", 0, "outside", to={"PASS": 1}))) == 1
    assert worse(fewer, old) == []
    assert worse(changed(old, "lines", 0, "counts", to={"PASS": 1}), old) == []


def test_subjects_of_one_name_are_compared_one_by_one(audited):
    _, _, one = audited("wide")
    one["certificates"] = []
    two = {**copy.deepcopy(one), "lines": one["lines"] * 2, "reach": one["reach"] * 2}
    two["release"]["dtypes"] *= 2
    two = json.loads(json.dumps(two))
    assert worse(two, two) == []
    assert len(worse(two, one)) >= 2  # the second is no longer audited, and no longer measured
    for path in (("lines", 0, "verdict"), ("lines", 1, "verdict")):
        assert any("PASS became FAIL" in told.text for told in worse(two, changed(two, *path, to="FAIL")))
    for place in (0, 1):
        new = changed(two, "release", "dtypes", place, "figures", 0, "worst", to=9.0)
        assert any("worst was" in told.text for told in worse(two, new))


def test_a_new_finding_is_named(audited):
    _, _, old = audited("wide")
    finding = {
        "subject": "wide",
        "check": "forward_error",
        "dtype": "float16",
        "backend": "eager",
        "verdict": "FAIL",
        "message": "output: 3 of 4 elements",
        "expected": False,
    }
    new = changed(old, "findings", to=[finding])
    (told,) = worse(old, new)
    assert told.text == "wide  forward_error  float16  eager: a new finding: output: 3 of 4 elements"
    other = changed(old, "findings", to=[{**finding, "message": "output: 1 of 2 elements"}])
    assert worse(other, new) == []
    assert worse(old, changed(old, "findings", to=[{**finding, "expected": True}])) == []


@pytest.mark.parametrize(("key", "value"), [("seed", 1), ("budget", "deep"), ("lines", None)])
def test_what_cannot_be_compared_is_refused(audited, tmp_path, key, value):
    _, _, old = audited("wide")
    baseline = tmp_path / "old.json"
    baseline.write_text(json.dumps({**old, key: value}))
    status, error, _ = audited("wide", "--baseline", baseline)
    assert status == 2
    assert "baseline" in error or "is not a report" in error
    with pytest.raises(BaselineError, match=r"damaged|has"):
        worse({**old, key: value}, old)


def test_errors_are_required_of_releases_alone(command, kernel_file):
    status, _, error = command("audit", kernel_file(KERNELS), *QUICK, "--require", "ulp=1")
    assert status == 2
    assert "errors are measured with --release" in error


# -- steps ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "of", "stage"),
    [
        (["tl.store(y + column, out, mask=inside)"], "output", stages.OUTPUT),
        (["out[i] = __float2half(v);"], "output", stages.OUTPUT),
        (["tl.store(rstd_out + row, rstd)"], "grad_input", stages.SAVED),
        (["rstd = 1 / tl.sqrt(var + eps)"], "output", stages.RSTD),
        (["return a / b", "rstd = divide(1.0, root(variance + eps))"], "output", stages.RSTD),
        (["mean = tl.sum(x, axis=0) / N"], "output", stages.STATISTICS),
        (["mean = (tl.sum(x, axis=0) / N).to(x.dtype)"], "output", stages.STATISTICS),
        (["centred = tl.where(inside, x - mean, 0.0).to(x.dtype)"], "output", stages.STATISTICS),
        (["m2 += delta * (x - mean);"], "output", stages.STATISTICS),
        (["total += tl.sum(x)"], "grad_weight", stages.COLUMNS),
        (["out = (value - mean) * rstd"], "output", stages.AFFINE),
        (["y = hat * w + b"], "output", stages.AFFINE),
        (["out += tl.load(b + n, mask=m, other=0.0).to(WIDE)"], "output", stages.AFFINE),
        (["y = (tl.load(b + n).to(WIDE) + out).to(DTYPE)"], "output", stages.OUTPUT),
        (["tl.store(y + n, tl.load(b + n).to(WIDE) + out)"], "output", stages.OUTPUT),
        ([""], "output", stages.UNKNOWN),
    ],
)
def test_a_line_says_which_step_it_does(tmp_path, lines, of, stage):
    file = tmp_path / "k.py"
    file.write_text("\n".join(lines) + "\n")
    frames = tuple((str(file), number + 1) for number in range(len(lines)))
    assert stage_of(Share(frames=frames, word="", rms=1.0, worst=1.0, error=1.0), of) == stage


def test_what_stands_on_no_line_is_no_step():
    share = Share(frames=(), word=WITHOUT_ROUNDING, rms=1.0, worst=1.0, error=1.0)
    assert stage_of(share, "output") == stages.FORMULA
    assert COLUMNS in GRID
