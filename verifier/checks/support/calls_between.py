"""Whether a backward pass gives the same where another call comes between it and its forward pass."""

from __future__ import annotations

from dataclasses import replace

from verifier.checks.support.bits import differing
from verifier.execution.backend import Backend
from verifier.execution.call_subject import backward, failure, forward, lay_out
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject
from verifier.subjects.process_settings import settings_kept

_WORDS = "where another call comes between forward and backward pass"


def changed_between(subject: Subject, case: Case, first: Observation, *, backend: Backend) -> str:
    """Say which gradient is another where the subject was called on other values before the backward pass.

    What a forward pass leaves for its backward pass, in memory that is kept from call to call, say, is then
    that of the other call. first: what the passes gave with nothing between them. Runs in the child.
    """
    turned = {
        name: tensor if tensor is None or not tensor.is_floating_point() else tensor.flip(-1) * 0.5
        for name, tensor in case.tensors.items()
    }
    backend.begin()
    try:
        with settings_kept():
            mine, other = (
                lay_out(subject, one, device=backend.device(), gradients=True)
                for one in (case, replace(case, tensors=turned))
            )
            outputs = forward(subject, mine)
            forward(subject, other)
            found = backward(outputs, mine)
            backend.finish()
    except Exception as error:
        return f"with a call between forward and backward pass: {failure(error, backend).message}"
    told = (differing(name, first.outputs, found, _WORDS) for name in found)
    return next((why for why in told if why is not None), "")
