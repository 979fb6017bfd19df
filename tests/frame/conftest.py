"""Kernel files and runners for the tests of the frame."""

import textwrap

import pytest
from in_process import InProcess

from verifier import audit, describe, precision, replay
from verifier.loading import load_subjects

HEAD = """
import torch
from verifier import Domain, KnownDefect, subject, tree

DECLARED = dict(op="layer_norm", language="torch", variance="two_pass", accumulates="float32",
                dtypes=("float32",), differentiable=False)

def right(input, weight, bias, eps):
    x = input.to(torch.float64) if input.dtype == torch.float64 else input.float()
    mean = x.mean(-1, keepdim=True)
    rstd = 1 / torch.sqrt((x - mean).square().mean(-1, keepdim=True) + eps)
    out = (x - mean) * rstd
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias).to(input.dtype)

"""


@pytest.fixture
def runner():
    return InProcess("eager")


@pytest.fixture
def no_child(monkeypatch):
    """Let audits, replays and descriptions run subjects in this process."""
    monkeypatch.setattr(audit, "_runners", {})
    for module in (audit, replay, describe, precision):
        monkeypatch.setattr(module, "Runner", InProcess)


@pytest.fixture
def kernel_file(tmp_path):
    """Return a function that writes a kernel file of the given body after common beginnings."""

    def write(body, name="kernel.py", folder=None, head=HEAD):
        path = (folder or tmp_path) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(head + textwrap.dedent(body), encoding="utf-8")
        return path

    return write


@pytest.fixture
def subjects_of(kernel_file):
    """Return a function from the body of a kernel file to its subjects by name."""

    def load(body, **options):
        return {s.name: s for s in load_subjects(kernel_file(body, **options))}

    return load
