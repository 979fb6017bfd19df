"""Make docs/libraries.md from audits of installed libraries, each finding checked by other means first.

    norm-verifier audit --library liger --json audits/liger.json
    python benchmarks/libraries.py audits/*.json --commit 3e02e464 --out docs/libraries.md

Every report may be of a part of a library. A finding is printed if a function of this file, which uses
neither the oracle nor the bounds, confirms it on its minimal case, of each norm that has it; otherwise
nothing is written.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import mpmath
import torch

from verifier.audit.report.json_parts import Document, mapping, number, parts
from verifier.ops.specification.axes import LINEAR_WEIGHT
from verifier.records import witness
from verifier.records.case import Case
from verifier.records.verdict import BAD, Verdict

ROOT = Path(__file__).resolve().parents[1]
DTYPES = ("float32", "float16", "bfloat16")
JUDGED = ("forward_error", "gradient", "running_bound")
"""The checks that compare with a proved bound of rounding errors."""


class UncheckedError(Exception):
    """A finding that no function here confirms."""


# -- by other means -----------------------------------------------------------------------------


def _layer_norm(numbers: Sequence[float], eps: float, lanes: int) -> list[mpmath.mpf]:
    """Return (x - mean) / sqrt(var + eps) where so many lanes beyond the row count in the variance."""
    row = [mpmath.mpf(x) for x in numbers]
    mean = sum(row) / len(row)
    squares = sum((x - mean) ** 2 for x in row) + lanes * mean**2
    return [(x - mean) / mpmath.sqrt(squares / len(row) + eps) for x in row]


def _lanes_beyond_the_row(case: Case, document: Document) -> str:
    (place, seen) = _element(document)
    x, w, b = (case.given[name].double() for name in ("input", "weight", "bias"))
    rows = x.reshape(-1, x.shape[-1])
    row, column = divmod(place, rows.shape[1])
    eps = float(torch.tensor(case.eps, dtype=torch.float32))
    block = 1 << (rows.shape[1] - 1).bit_length()
    right, wrong = (
        _layer_norm(rows[row].tolist(), eps, lanes)[column] * w[column].item() + b[column].item()
        for lanes in (0, block - rows.shape[1])
    )
    _demand(abs(seen - wrong) * 10 < abs(seen - right), f"{seen} is near {right}, not near {wrong}")
    return (
        f"mpmath gives {float(right):.6g}, and {float(wrong):.6g} if {block - rows.shape[1]} lanes of zeros "
        f"count in the variance; seen is {seen:.6g}"
    )


def _sums_through_bfloat16(case: Case, document: Document) -> str:
    place, seen = _element(document)
    rows = case.given["grad_output"]
    _demand(rows.numel() == rows.shape[-1] or rows.shape[0] == 1, "several parts are added")
    exact = rows.double().reshape(rows.shape[0], rows.shape[1], -1).sum((0, 2))[place].item()
    rounded = torch.tensor(exact).to(torch.bfloat16).item()
    _demand(rounded == seen != exact, f"{seen} is not {exact} rounded to bfloat16, {rounded}")
    return f"in torch the sum in float64 is {exact}, and rounded to bfloat16 {rounded}, which is seen"


def _sums_through_the_input(case: Case, document: Document) -> str:
    _, seen = _element(document)
    x, g = (case.given[name].reshape(-1, case.columns).tolist() for name in ("input", "grad_output"))
    weight, alpha = case.given["weight"].reshape(-1).tolist(), mpmath.mpf(case.given["alpha"].item())
    exact = mpmath.mpf(0)
    for row, incoming in zip(x, g, strict=True):
        for one, d, w in zip(row, incoming, weight, strict=True):
            exact += (1 - mpmath.tanh(alpha * one) ** 2) * mpmath.mpf(d) * w * one
    held = getattr(torch, case.dtype)
    fits = torch.tensor(seen, dtype=torch.float64).to(held).item() == seen
    off = abs(seen / exact - 1)
    _demand(fits and 1e-5 < off < torch.finfo(held).eps, f"{seen} is not {exact} rounded to {case.dtype}")
    return f"mpmath gives {float(exact):.9g}, and {seen:.9g}, which is seen in float32, is of {case.dtype}"


def _one_pass_variance(case: Case) -> float:
    """Return the least mean(x**2) - mean(x)**2 of a row, of sums by halves or neighbours in its dtype.

    NaN counts as the least. Products may be fused into sums, which torch does in float64 here.
    """
    x = case.given["input"]
    rows = x.reshape(x.shape[0] * int(case.scalars["num_groups"]), -1)
    wide = rows.double() - rows.double().mean(-1, keepdim=True)
    exact = wide / (wide.square().mean(-1, keepdim=True) + case.eps).sqrt()
    _demand(bool(exact.isfinite().all()), "the norm in float64 is not finite")
    found = []
    for add in (_by_halves, _by_neighbours):
        mean = add(rows).float() / rows.shape[1]
        for squares in (add(rows * rows), rows.double().square().sum(-1).to(rows.dtype)):
            mean_square = squares.float() / rows.shape[1]
            found += [mean_square - mean * mean, mean_square.double() - mean.double() ** 2]
    every = torch.cat([one.double() for one in found])
    return float("nan") if bool(every.isnan().any()) else every.min().item()


def _by_halves(rows: torch.Tensor) -> torch.Tensor:
    block = 1 << (rows.shape[1] - 1).bit_length()
    rows = torch.nn.functional.pad(rows, (0, block - rows.shape[1]))
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        rows = rows[:, :half] + rows[:, half:]
    return rows[:, 0]


def _by_neighbours(rows: torch.Tensor) -> torch.Tensor:
    block = 1 << (rows.shape[1] - 1).bit_length()
    rows = torch.nn.functional.pad(rows, (0, block - rows.shape[1]))
    while rows.shape[1] > 1:
        rows = rows[:, 0::2] + rows[:, 1::2]
    return rows[:, 0]


def _sums_overflow(case: Case, _document: Document) -> str:
    variance = _one_pass_variance(case)
    _demand(not math.isfinite(variance), f"no sum overflows: the variance is {variance}")
    return f"added in torch in {case.dtype} the variance is {variance}, and the norm in float64 is finite"


def _negative_variance(case: Case, _document: Document) -> str:
    variance = _one_pass_variance(case)
    _demand(variance + case.eps < 0, f"the variance is {variance}")
    return f"added in torch in {case.dtype} the variance is {variance:.3g}, and the norm in float64 is finite"


def _eps_lost(case: Case, _document: Document) -> str:
    x, eps = case.given["input"], torch.tensor(case.eps)
    half = (x.square().sum(-1, keepdim=True) / x.shape[-1] + eps.to(x.dtype)).rsqrt() * x
    exact = torch.nn.functional.rms_norm(x.double(), x.shape[-1:], eps=case.eps)
    _demand(bool(half.isnan().any()) and bool(exact.isfinite().all()), "eps is not lost")
    return f"torch's eps in float16 is {eps.to(x.dtype).item()}, 0 / 0 NaN, and its norm in float64 finite"


def _square_of_rstd_overflows(case: Case, _document: Document) -> str:
    x = case.given["input"].double().requires_grad_()
    torch.nn.functional.rms_norm(x, x.shape[-1:], eps=case.eps).sum().backward()
    rstd = (x.detach().square().mean(-1) + case.eps).rsqrt().half()
    factor = (1 / x.shape[-1]) * rstd * rstd
    assert x.grad is not None
    _demand(bool(factor.isinf().any()) and bool(x.grad.isfinite().all()), "no square overflows")
    return "torch's rstd * rstd / N in float16 is infinite, and its gradient in float64 finite"


def _powers_overflow(case: Case, _document: Document) -> str:
    x = case.given["input"]
    powers = [x.double() ** k for k in (3, 2, 1)]
    norms = [p / (p.square().mean(-1, keepdim=True) + case.eps).sqrt() for p in powers]
    finite = all(bool(n.isfinite().all()) for n in norms)
    cubes = x * x * x
    _demand(bool((cubes * cubes).isinf().any()) and finite, "no power overflows")
    return f"torch's (x * x * x) ** 2 in {case.dtype} is infinite, and the three norms in float64 are finite"


def _no_rows(case: Case, document: Document) -> str:
    _demand(case.rows == 0, "the case has rows")
    _demand("ZeroDivisionError" in str(document["message"]), "it says something else")
    empty = torch.empty(0, case.columns, dtype=torch.float64, requires_grad=True)
    torch.nn.functional.layer_norm(empty, (case.columns,)).sum().backward()
    _demand(empty.grad is not None and tuple(empty.grad.shape) == (0, case.columns), "torch refuses it")
    return "torch's layer norm differentiates an empty batch; here its 0 rows are divided among 0 programs"


def _no_columns(case: Case, document: Document) -> str:
    _demand(case.columns == 0 and "CompilationError" in str(document["message"]), "it says something else")
    x = case.given["input"].double()
    same = torch.nn.functional.group_norm(x, int(case.scalars["num_groups"])).shape == x.shape
    _demand(same, "torch refuses it")
    return "torch's group norm gives an empty result; here Triton refuses a block of 0 lanes"


SOURCES = {
    "fla": ("fla", ("modules/norm/layernorm.py", "modules/norm/fused_norm_gate.py")),
    "flash_attention": ("flash_attn", ("ops/triton/layer_norm.py",)),
}
"""By how names of subjects begin: the package, and its modules that load weights."""


def _undefined_lanes(case: Case, document: Document) -> str:
    subject = str(mapping(document["subject"])["name"])
    package, modules = next(found for begin, found in SOURCES.items() if subject.startswith(f"{begin}_"))
    spec = importlib.util.find_spec(package)
    _demand(spec is not None and bool(spec.submodule_search_locations), f"{package} is not installed")
    assert spec is not None
    folder = Path(next(iter(spec.submodule_search_locations or ())))
    text = "".join((folder / module).read_text(encoding="utf-8") for module in modules)
    loads = re.findall(r"tl\.load\([wW] \+ [^()]*, mask=mask\)", text)
    _demand(len(loads) > 0, "every load of weight has other=")
    slopes = case.given["grad_output"].double()
    if LINEAR_WEIGHT in case.given:  # the norm's own slopes are those of its product
        slopes = slopes @ case.given[LINEAR_WEIGHT].double()
    slopes = torch.nn.functional.pad(slopes.reshape(-1, case.columns)[:1], (0, 1))
    rows = torch.nn.functional.pad(case.given["input"].double().reshape(-1, case.columns)[:1], (0, 1))
    weight = torch.nn.functional.pad(torch.ones(case.columns, dtype=torch.float64), (0, 1), value=math.inf)
    _demand(bool((rows * (slopes * weight)).sum().isnan()), "a lane of infinity changes nothing")
    return f"the source has {loads[0]}; in torch one such lane of infinity makes the sum over its row NaN"


def _undefined_rows(case: Case, _document: Document) -> str:
    spec = importlib.util.find_spec("liger_kernel")
    _demand(spec is not None and bool(spec.submodule_search_locations), "liger_kernel is not installed")
    assert spec is not None
    text = (Path(next(iter(spec.submodule_search_locations or ()))) / "ops/rms_norm.py").read_text("utf-8")
    loads = re.findall(r"tl\.load\(RSTD_ptr \+ row_idx [^()]*, row_mask\)", text)
    _demand(len(loads) > 0, "every load of rstd has other=")
    _demand(case.rows % 16 != 0, "every block has 16 rows")
    rows = torch.nn.functional.pad(case.given["input"].double().reshape(case.rows, -1)[-1:], (0, 0, 0, 1))
    slopes = torch.nn.functional.pad(
        case.given["grad_output"].double().reshape(case.rows, -1)[-1:], (0, 0, 0, 1)
    )
    rstd = torch.tensor([[1.0], [math.inf]], dtype=torch.float64)
    _demand(bool((slopes * (rows * rstd)).sum(0).isnan().all()), "a lane of infinity changes nothing")
    return f"the source has {loads[0]}; in torch one such lane of infinity makes the sum over rows NaN"


def _offset_in_32_bits(case: Case, document: Document) -> str:
    said = str(document["message"])
    found = [
        re.search(pattern, said) for pattern in (r": (\d+) bytes at byte offset (-\d+)", r"block \((\d+),")
    ]
    access, block = found
    _demand(access is not None and block is not None, "it says something else")
    assert access is not None
    assert block is not None
    size, offset, row = int(access[1]), int(access[2]), int(block[1])
    padding = [layout.row_padding for layout in case.layouts.values()]
    for stride in (case.columns + extra for extra in {0, *padding}):
        wrapped = torch.tensor(row, dtype=torch.int32) * torch.tensor(stride, dtype=torch.int32)
        if row * stride >= 2**31 and 0 <= offset - wrapped.item() * size < case.columns * size:
            return (
                f"torch's product of {row} and {stride} in int32 is {wrapped.item()}, {-offset} bytes before "
                f"the start, where the kernel reads; the exact product is {row * stride}"
            )
    raise UncheckedError(f"{row} times no stride is {offset} bytes in 32 bits")


CHECKS: dict[str, Callable[[Case, Document], str]] = {
    "lanes-beyond-the-row": _lanes_beyond_the_row,
    "sums-through-bfloat16": _sums_through_bfloat16,
    "sums-through-the-input": _sums_through_the_input,
    "sums-overflow": _sums_overflow,
    "powers-overflow": _powers_overflow,
    "eps-lost": _eps_lost,
    "no-columns": _no_columns,
    "undefined-lanes": _undefined_lanes,
    "undefined-rows": _undefined_rows,
    "negative-variance": _negative_variance,
    "square-of-rstd-overflows": _square_of_rstd_overflows,
    "no-rows": _no_rows,
    "offsets-in-32-bits": _offset_in_32_bits,
    "rows-in-32-bits": _offset_in_32_bits,
}
"""By the id of a known defect: what confirms it on its witness, and says how."""


def confirmed(path: Path) -> str:
    """Return how a witness, `FILE#NAME`, is confirmed.

    Raises:
        UncheckedError: nothing here knows it, or it is not so.

    """
    name = path.name.partition("#")[2].partition(".")[0]
    if name not in CHECKS:
        raise UncheckedError(f"{path}: nothing here confirms it")
    case, document = witness.load(path)
    return CHECKS[name](case, document)


def _demand(so: bool, otherwise: str) -> None:
    if not so:
        raise UncheckedError(otherwise)


def _element(document: Document) -> tuple[int, float]:
    """Return the last index of the element that a witness shows, and its value."""
    shown, _, value = str(document["seen"]).partition(" is ")
    return int(shown[shown.index("[") + 1 : -1].split(",")[-1]), float(value.split(",")[0])


# -- the page -----------------------------------------------------------------------------------


def page(reports: Sequence[Document], commit: str = "") -> Iterator[str]:
    """Yield the page as blocks of text."""
    yield "# Norms of installed libraries"
    yield (
        "Generated by `benchmarks/libraries.py` from `norm-verifier audit --library NAME`, budget quick, "
        f"seed 0, on the PTX machine{f', at commit {commit}' if commit else ''}. The kernels are those of "
        "the packages, unmodified; [audit a library](how-to/library.md) says how they are declared."
    )
    yield (
        "*verdict*: PASS, or the others that checks came to; `(known)`: from defects that are declared, with "
        "a witness, and told below; `UNDECIDED`: checks that ended in neither a failure nor a proof, with "
        "`(known)` since a declared defect concerns all of their cases. *worst error of bound*: the absolute "
        "error that comes closest to its proved bound, of outputs and gradients, and that bound; of norms "
        "that no op describes it is the running bound of the compiled code. *checks*: so many had something "
        "to run. *reach*: functions that ran and loops that turned more than once, of those of the kernels; "
        "what is lacking is named below the table."
    )
    found = {_named(one): one for report in reports for one in parts(report, "libraries")}
    for name in sorted(found, key=lambda name: (name.split()[0], -len(reports_of(reports, name)), name)):
        yield from _library(reports_of(reports, name), found[name])


def reports_of(reports: Sequence[Document], name: str) -> list[Document]:
    """Return the reports on a library in one version, `DISTRIBUTION VERSION`."""
    return [r for r in reports if any(_named(one) == name for one in parts(r, "libraries"))]


def _named(library: Document) -> str:
    return f"{library['distribution']} {library['version']}"


def _library(reports: Sequence[Document], library: Document) -> Iterator[str]:
    versions = mapping(reports[-1]["versions"])
    used = ", ".join(f"{one} {versions[one]}" for one in ("triton", "torch", "norm-verifier"))
    checks = sorted({str(line["check"]) for report in reports for line in parts(report, "lines")})
    alone = f" Only {checks[0]} was run." if len(checks) == 1 else ""
    yield f"## {_named(library)}\n\nImported as `{library['package']}`; with {used}.{alone}"
    heads = ("norm", "op", "dtype", "verdict", "worst error of bound", "error / bound", "checks", "reach")
    rows = [row for report in reports for row in _rows(report)]
    order = {one: place for place, one in enumerate(sorted({row[0] for row in rows}))}
    rows.sort(key=lambda row: (order[row[0]], DTYPES.index(row[2])))
    if rows:
        lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
        yield "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])
    if left := dict(line for report in reports for line in _not_run(report)):
        told = "\n".join(f"- {what}: {why}" for what, why in left.items())
        yield f"### Not run in {_named(library)}\n\n{told}"
    yield from _findings([f for report in reports for f in parts(report, "findings")], library)
    others = [
        f"- `{module}`: {', '.join(map(str, names)) if isinstance(names, list) else ''}"
        for module, names in mapping(library["unreached"]).items()
    ]
    if others:
        yield f"### Not reached in {_named(library)}\n\nNo declaration reaches:\n\n" + "\n".join(others)


def _rows(report: Document) -> Iterator[tuple[str, ...]]:
    ops = {one["subject"]: str(one["op"]) for one in parts(report, "subjects")}
    reach = {one["subject"]: one for one in parts(report, "reach")}
    met = dict.fromkeys((str(one["subject"]), str(one["dtype"])) for one in parts(report, "lines"))
    for subject, dtype in met:
        lines = [one for one in parts(report, "lines") if (one["subject"], one["dtype"]) == (subject, dtype)]
        ran = [one for one in lines if one["verdict"] != "SKIPPED"]
        if not ran:
            continue
        judged = [one for one in ran if one["check"] in JUDGED and mapping(one["outputs"])]
        found = mapping(reach.get(subject, {}))
        yield (
            subject,
            ops.get(subject, "").replace("unknown_linear", "its own").replace("unknown", "its own"),
            dtype,
            _verdicts(ran),
            *_closest([mapping(o) for one in judged for o in mapping(one["outputs"]).values()]),
            f"{len(ran)}/{len(lines)}",
            f"{_ran(found, 'functions')} functions, {_ran(found, 'loops')} loops",
        )


def _verdicts(ran: Sequence[Document]) -> str:
    """Return the verdicts that are no PASS, unexpected ones first, and of which checks if not bad."""
    told: dict[str, list[str]] = {}
    for one in sorted(ran, key=lambda one: (str(one["verdict"]) not in BAD, not one["unexpected"])):
        if one["verdict"] != Verdict.PASS:
            name = f"{one['verdict']}{' (known)' if one['known'] and not one['unexpected'] else ''}"
            told.setdefault(name, []).append(str(one["check"]))
    shown = [
        name if name.split()[0] in BAD else f"{name}: {', '.join(checks)}" for name, checks in told.items()
    ]
    return "; ".join(shown) or "PASS"


def _not_run(report: Document) -> Iterator[tuple[str, str]]:
    """Yield each subject of which nothing ran, and each function and loop that did not, and why."""
    ran = {one["subject"] for one in parts(report, "lines") if one["verdict"] != Verdict.SKIPPED}
    for one in parts(report, "lines"):
        if one["subject"] not in ran:
            yield str(one["subject"]), str(one["skipped"])
    for one in parts(report, "reach"):
        prices = [(number(shape["seconds"]), str(shape["shape"])) for shape in parts(one, "left_out")]
        dear = [f"{shape}, about {price:.0f} s" for price, shape in sorted(prices)[-2:] if price >= 1]
        for place in parts(one, "lacking"):
            if place["kind"] in ("function", "loop"):
                room = (
                    f"; no room for {', '.join(dear)}"
                    if "at some shapes" in str(place["why"]) and dear
                    else ""
                )
                where = f"`{place['function']}` ({place['file']}:{place['line']})"
                yield f"{one['subject']}, {place['kind']} {where}", f"{place['why']}{room}"


def _closest(outputs: Sequence[Document]) -> tuple[str, str]:
    """Return error and bound of the result that comes closest to its bound, and their quotient."""
    if not outputs:
        return "-", "-"
    worst = max(outputs, key=lambda o: number(o["utilisation"]))
    pair = " of ".join(f"{number(worst[name]):.3g}" for name in ("error", "bound"))
    return pair, f"{number(worst['utilisation']):.4f}"


def _ran(found: Document, name: str) -> str:
    pair = mapping(found.get(name, {"ran": 0, "of": 0}))
    return f"{pair['ran']} of {pair['of']}"


def _findings(findings: Sequence[Document], library: Document) -> Iterator[str]:
    installed = _named(library)
    by_cause: dict[tuple[str, str], list[Document]] = {}
    for one in sorted(findings, key=lambda one: DTYPES.index(str(one["dtype"]))):
        by_cause.setdefault((str(one["check"]), str(one["reason"] or one["message"])), []).append(one)
    told = [f"### Findings in {installed}\n"] if by_cause else []
    for (check, reason), group in by_cause.items():
        of_subject = {str(one["subject"]): one for one in reversed(group)}
        how = {name: confirmed(Path(str(one["case"]))) for name, one in of_subject.items()}
        first = group[0]
        path = Path(str(first["case"]))
        short = path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(*path.parts[-4:])
        given = [f"{n} {value}" for n, value in mapping(first["arguments"]).items()]
        given += [f"{n} {text}" for n, text in mapping(first["tensors"]).items() if text]
        dtypes = ", ".join(one for one in DTYPES if one in {found["dtype"] for found in group})
        names, shown = ", ".join(sorted(of_subject)), first["subject"]
        seen = re.sub(rf"(?<=source )/\S*/(?={library['package']}/)", "", str(first["message"]))
        others = f"; of each of the {len(how)} norms one case is confirmed so" if len(how) > 1 else ""
        told.append(
            f"**{names}**, {check}, {dtypes}: {reason}\n"
            f"- seen{f' in {shown}' if len(how) > 1 else ''}: {seen}\n"
            f"- minimal case: {'; '.join(given)}\n- by other means: {how[str(shown)]}{others}\n"
            f"- replay, with {installed} first on the path: `norm-verifier replay '{short}'`\n"
        )
    if told:
        yield "\n".join(told).rstrip()


def main(arguments: Sequence[str]) -> int:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reports", nargs="+", type=Path)
    parser.add_argument("--commit", default="", help="of the verifier that made the reports")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "libraries.md")
    options = parser.parse_args(arguments)
    reports = [json.loads(path.read_text(encoding="utf-8")) for path in options.reports]
    try:
        text = "\n\n".join(page(reports, options.commit)) + "\n"
    except UncheckedError as error:
        print(f"nothing is written: {error}", file=sys.stderr)
        return 1
    options.out.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
