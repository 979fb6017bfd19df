"""Findings and lines as records, made without an audit."""

from verifier.records.case import Case
from verifier.records.verdict import Finding, Line, Outcome, Verdict, Worst


def line(check, **changes):
    given = {"subject": "kernel", "dtype": "float16", "backend": "machine", "variance": "none", **changes}
    return Line(check=check, **given)


def finding(check="forward_error", dtype="float16", message="output: 1 of 2 elements", **changes):
    given = {"subject": "kernel", "path": "/project/kernel.py", "verdict": Verdict.FAIL, **changes}
    worst = given.pop("worst", None)
    case = Case(op="layer_norm", dtype=dtype, tensors={}, scalars={"eps": 1e-5}, rows=1, columns=2)
    return Finding(
        check=check,
        op="layer_norm",
        dtype=dtype,
        backend="machine",
        outcome=Outcome(verdict=given["verdict"], message=message, worst=worst),
        case=given.pop("case", case),
        declaration="declared",
        **given,
    )


def worst(error=1.0):
    numbers = dict.fromkeys(("actual", "expected", "bound", "ulp", "row_ulp", "utilisation"), 1.0)
    return Worst(output="output", index=(0,), error=error, **numbers)
