"""The text of one finding: it must make sense to someone who has never opened this project."""

from __future__ import annotations

import math
from collections.abc import Iterator

from strategies.layouts import Layout
from verifier.case import Case
from verifier.verdicts import Finding, Verdict, Worst

MEANING = "kernel or declaration wrong: no rounding of the declared algorithm errs so much"


def failure_text(finding: Finding) -> str:
    """Return the report of a finding as lines of plain text."""
    return "\n".join(_lines(finding))


def _lines(finding: Finding) -> Iterator[str]:
    case, outcome = finding.case, finding.outcome
    head = f"{finding.verdict}  {finding.subject}  {finding.check}  {finding.dtype}  on {finding.backend}"
    yield head + (f"  (known defect: {finding.reason})" if finding.expected else "")
    yield f"  {outcome.message or 'the check failed'}"
    if outcome.worst is not None:
        yield from _numbers(outcome.worst)
    yield f"  case         {case.op}, hazard {case.hazard}, {case.rows} x {case.columns}, {_kappa(case)}"
    scalars = ", ".join(f"{name}={value!r}" for name, value in case.scalars.items())
    yield f"  arguments    {scalars}"
    for name, tensor in case.tensors.items():
        yield f"  {name:<12} {_tensor(case, name) if tensor is not None else 'None'}"
    yield f"  declaration  {finding.declaration}"
    if finding.verdict is Verdict.FAIL and outcome.worst is not None and not math.isnan(outcome.worst.bound):
        yield f"  meaning      {outcome.facts.get('meaning', MEANING)}"
    if finding.detail:
        tail = finding.detail.strip().splitlines()[-6:]
        yield "  detail       " + "\n               ".join(tail)
    if finding.file:
        yield f"  replay       norm-verifier replay {finding.file}"


def _numbers(worst: Worst) -> Iterator[str]:
    times = "" if math.isnan(worst.utilisation) else f" = {_short(worst.utilisation)} x the proved bound"
    place = ", ".join(str(i) for i in worst.index)
    yield f"  worst error  {_short(worst.error)} ({_short(worst.ulp)} ulp){times}, at {worst.output}[{place}]"
    yield f"  actual       {worst.actual!r}"
    yield f"  expected     {worst.expected!r}"
    if not math.isnan(worst.bound):
        yield f"  bound        {_short(worst.bound)} on |actual - expected|"


def _tensor(case: Case, name: str) -> str:
    tensor = case.given[name]
    layout = case.layouts.get(name, Layout())
    shape = tuple(tensor.shape)
    dtype = str(tensor.dtype).removeprefix("torch.")
    text = f"{dtype} {shape}, strides {layout.strides(shape)}, storage offset {layout.offset}"
    values = tensor.flatten().tolist()
    shown = ", ".join(f"{v:.9g}" for v in values[:6])
    return f"{text}: [{shown}{', ...' if len(values) > 6 else ''}]"


def _kappa(case: Case) -> str:
    return f"kappa (|mean|/std) {_short(case.kappa)}, |input| up to {_short(case.largest)}"


def _short(number: float) -> str:
    return f"{number:.3g}"
