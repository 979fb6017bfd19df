"""RMS norm over heads: rows that a packed projection holds apart are read where they are."""

import pytest
import torch
from checks_support import KERNELS, SKELETONS, subject_of_texts

pytest.importorskip("triton", reason="the subjects are Triton kernels; Triton is not installed")

from verifier.audit.budget import Budget
from verifier.audit.examination import Examination
from verifier.execution import Runner
from verifier.records.verdict import Verdict
from verifier.subjects.load_file import load

HEADS = KERNELS / "rms_norm_heads_triton.py"
FILES = (HEADS, *SKELETONS)
FAULTS = {
    "tokens side by side": ("token * token_step", "token * heads * head_step"),
    "heads side by side": ("head * head_step", "head * 1"),
    "samples side by side": ("sample * sample_step", "sample * tokens * token_step"),
    "the steps of the input": ("heads, dy_sample, dy_token, dy_head", "heads, x_sample, x_token, x_head"),
}


def with_fault(right, wrong):
    texts = {file.name: file.read_text(encoding="utf-8") for file in FILES}
    assert texts[HEADS.name].count(right) == 1
    return subject_of_texts({**texts, HEADS.name: texts[HEADS.name].replace(right, wrong)}, HEADS.name)


@pytest.mark.parametrize("name", list(FAULTS))
def test_rows_that_are_read_elsewhere_are_found(name):
    subject = with_fault(*FAULTS[name])
    with Runner("machine") as runner:
        found = Examination(
            subject=subject,
            check_name="layouts",
            dtype="float16",
            runner=runner,
            budget=Budget(cases=12, findings=1),
            shrinks=False,
        ).run()
    assert {finding.verdict for finding in found.findings} & {Verdict.FAIL, Verdict.CRASH}


def test_no_part_of_a_packed_projection_is_copied():
    samples, tokens, heads, columns = 2, 5, 3, 8
    as_heads = load(HEADS).module.as_heads
    packed = torch.randn(samples, tokens, 3, heads, columns)
    queries = packed[:, :, 0]
    found = as_heads(queries, 1, columns)
    assert found.data_ptr() == packed.data_ptr()
    assert found.stride() == (tokens * 3 * heads * columns, 3 * heads * columns, columns, 1)
    exchanged = as_heads(packed[:, :, 1].transpose(1, 2), 1, columns)
    assert exchanged.data_ptr() == packed[:, :, 1].data_ptr()
    assert exchanged.shape == (samples, heads, tokens, columns)
    assert as_heads(torch.randn(columns, tokens).T, 1, columns).stride(3) == 1
