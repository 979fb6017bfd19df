"""Reports as JSON data, made of records without an audit."""

from dataclasses import replace

import torch
from made_findings import finding, line, worst

from verifier.audit.record import Report
from verifier.audit.report.json_document import document
from verifier.audit.report.subject_document import subject_documents
from verifier.checks.support.row_errors import RowErrors
from verifier.commands.cost_of_dtype import GRID, SweptInput
from verifier.commands.release.document import release_document
from verifier.commands.release.record import (
    DtypeRecord,
    Environment,
    Figures,
    InputRounding,
    LostAt,
    RanCode,
    Release,
    Trust,
    WhatIf,
)
from verifier.commands.release.stages import LineShare, StageShare
from verifier.records.case import Case
from verifier.records.compiled_code import KernelContents
from verifier.records.remark import Remark
from verifier.records.verdict import Verdict

HOSTILE = (
    "<img src=x onerror=\"document.title='pwned'\">'\"`|*_&</script><script>pwned=1</script>\n::error::x"
)
"""A name, a text or a path that would be markup in HTML and Markdown, and a command in a workflow's log."""
KERNELS = """
@subject(**DECLARED)
def first(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(**DECLARED)
def second(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)

@subject(op="layer_norm", language="torch", dtypes=("float32",), differentiable=False)
def only_its_op(input, weight=None, bias=None, eps=1e-5):
    return right(input, weight, bias, eps)
"""
"""The body of a kernel file: what a report is made of."""
KAPPAS = (0.0, 1.0, 10.0, 100.0, 1000.0)


def errors(size, bound):
    return RowErrors(worst=size, tail=size * 0.9, mean=size / 4, signed=-size / 9, rounded=0.5, bound=bound)


def points(outputs=("output", "grad_input")):
    """Yield a sweep over kappa and columns: errors that grow with kappa, under bounds four times as large."""
    for columns in GRID:
        for kappa in KAPPAS:
            size = 0.5 + kappa * columns / 5e4
            bound = 4 * size if kappa < 1000 else float("nan")
            yield SweptInput(
                kappa=kappa,
                magnitude=1.0,
                columns=columns,
                outputs={name: errors(size, bound) for name in outputs},
                finite=True,
                alternatives={
                    way: dict.fromkeys(outputs, factor * size)
                    for way, factor in (
                        ("two_pass", 4.0),
                        ("welford", 6.0),
                        ("textbook", 40.0),
                        ("float32 sums", 3.0),
                    )
                },
            )
    yield SweptInput(
        kappa=0.0,
        magnitude=4096.0,
        columns=512,
        outputs={name: errors(float("inf"), float("nan")) for name in outputs},
        finite=False,
        alternatives={},
    )


def figures(name, lines=()):
    stages = tuple(StageShare(stage=one.stage, share=one.share, place=one.place) for one in lines)
    return Figures(
        output=name,
        worst=0.51,
        tail=0.5,
        mean=0.25,
        signed=-0.001,
        rounded=0.5,
        bits_lost=0.03,
        bound=1.2,
        trust=tuple(
            Trust(limit=limit, kappa=limit * 10, columns=512.0, magnitude=None) for limit in (1.0, 4.0, 16.0)
        ),
        lost=(LostAt(kappa=0.07, stages=stages, lines=tuple(lines)),) if lines else (),
    )


def measured(subject, dtype, *, variance="two_pass", path="kernel.py", text="tl.store(y, out)"):
    shares = (
        LineShare(place=f"{path}:12  {text}", stage="output rounding", share=0.9),
        LineShare(place=f"{path}:9  mean = tl.sum(x)", stage="statistics", share=0.1),
    )
    contents = KernelContents(
        kernel="_forward",
        digest="0" * 16,
        architecture=90,
        instructions=310,
        opcodes=(("add.f32", 31), ("bar.sync", 2)),
        fused=4,
        contractible=2,
        flushing=0,
        barriers=2,
    )
    return DtypeRecord(
        subject=subject,
        path=str(path),
        source="a" * 64,
        op="layer_norm",
        variance=variance,
        dtype=dtype,
        backend="machine",
        refused="",
        figures=(figures("output", shares), figures("grad_input")),
        what_if=(WhatIf(change="float32 sums", output="output", kappa=0.0, declared=1.2, changed=None),),
        overflow=4096.0,
        unexplained="",
        missing=((1000.0, 1.0, 32),),
        code=RanCode(
            kernels=("_forward",),
            digests=("0" * 16,),
            approximate=("rsqrt",),
            flushes=False,
            fuses=True,
            half_sums=(),
            atomics=(),
            host=(),
            contents=(contents,),
        ),
        points=tuple(points()),
        input_rounding=(InputRounding(kappa=0.07, output="output", worst=1.26, mean=0.1),),
    )


def certificates(subject, path):
    """Return two documents as an audit has them: one of a certificate, one of a refusal."""
    proof = {
        "contraction": "off",
        "kernels": {"_forward": "b" * 64},
        "sums": [{"terms": 512, "depth": 9, "declared": 20}],
    }
    about = {"subject": subject, "path": str(path), "rows": 2, "columns": 512, "gradients": False}
    about |= {"judged": 3, "contradicted": ""}
    given = {
        "statement": "For all inputs of these shapes ...",
        "source": "a" * 64,
        "version": 1,
        "proofs": [proof],
        "theorems": ["T6"],
        "watched": ["races"],
        "assumptions": ["PTX ISA"],
        "not_covered": ["ptxas"],
    }
    refused = {"stage": "the code is the declared computation", "why": "rsqrt"}
    return [
        {**about, "dtype": "float16", "verdict": "CERTIFIED", **given},
        {**about, "dtype": "float32", "verdict": "UNDECIDED", "refused": refused},
    ]


def failing(kernel, subject, number=0, message="output: 1 of 2 elements", **changes):
    """Return a finding with a case that has tensors, and a file that replays it."""
    tensors = {"input": torch.tensor([0.0, 1.0]).half(), "weight": None}
    case = Case(op="layer_norm", dtype="float16", tensors=tensors, scalars={"eps": 1e-5}, rows=1, columns=2)
    given = {"file": f"findings/{number}.json", "worst": worst(), "case": case, **changes}
    return finding(subject=subject, path=str(kernel), message=message, **given)


def made(subjects, findings=(), *, release=True, unmet=(), status_of_others=Verdict.PASS):
    """Return the report of an audit of subjects in float16 and float32; findings, unmet: of the first."""
    lines = []
    for number, one in enumerate(subjects):
        for dtype in ("float16", "float32"):
            found = list(findings) if number == 0 and dtype == "float16" else []
            own = line("forward_error", subject=one.name, dtype=dtype, variance="two_pass", findings=found)
            own.counts[status_of_others] += 25
            own.outputs["output"] = worst(0.5)
            lines.append(own)
    told = {
        **document(Report(lines=lines, unmet=[Remark(subjects[0].name, text) for text in unmet])),
        "subjects": subject_documents(subjects),
        "costs": [],
    }
    told["reach"] = [reach(one.name) for one in subjects]
    if release:
        records = [
            measured(one.name, dtype, path=one.path) for one in subjects for dtype in ("float16", "float32")
        ]
        where = Environment(
            system="Linux",
            processor="x86_64",
            versions={"python": "3.11", "norm-verifier": "0", "torch": "2"},
        )
        told["release"] = release_document(Release(dtypes=tuple(records), environment=where))
        told["certificates"] = [paper for one in subjects for paper in certificates(one.name, one.path)]
    return told


def reach(subject):
    part = {"ran": 5, "of": 7}
    place = {"file": "kernel.py", "line": 40, "function": "_join"}
    return {
        "subject": subject,
        "recorded": ["code", "lines"],
        "unread": "",
        "unfollowed": [],
        "functions": part,
        "loops": part,
        "wrapper_lines": part,
        "refusals": {"ran": 0, "of": 1},
        "configurations": [],
        "blocks": part,
        "guards": [],
        "forms": [],
        "turns": [],
        "lacking": [{"kind": "function", **place, "why": "no case reached it", "cause": "no case"}],
        "left_out": [],
        "unswept": [],
        "untried": {"multiprocessors": [], "modes": []},
        "given": {},
    }


def hostile(kernels, folder, words=HOSTILE):
    """Return a report in which every text that a subject has a say in is hostile: words."""
    odd = folder / "<b>odd & 'quoted'"
    odd.mkdir(exist_ok=True)
    path = odd / "k|`x`.py"
    path.write_bytes(kernels[0].path.read_bytes())
    one = replace(kernels[0], name=words, path=path)
    frame = f'  File "{path}", line 3, in f\n    {words}'
    detail = f"Traceback (most recent call last):\n{frame}\nValueError: {words}"
    findings = [
        failing(path, words, message=f"{words} raised", detail=detail, file=f"f/{words}.json"),
        failing(path, words, message="output: other", expected=True, reason=words),
    ]
    document = made([one], findings, unmet=[f"{words} is required"])
    document["unusable"] = document["errors"] = [words]
    document["lines"][0]["skipped"] = document["findings"][0]["declaration"] = words
    document["findings"][0]["arguments"] = {words: words}
    document["lines"][0]["undecided"] = {words: 1}
    document["reach"][0]["lacking"][0].update(file=words, why=words)
    document["certificates"][1]["refused"] = {"stage": words, "why": words}
    record = document["release"]["dtypes"][0]
    record["unexplained"] = record["backend"] = words
    record["code"]["contents"][0]["kernel"] = record["code"]["half_sums"] = words
    record["figures"][0]["lost"][0]["lines"][0]["place"] = words
    return document
