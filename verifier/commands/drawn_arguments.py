"""A Hypothesis strategy for whole calls of a declared kernel, for tests of one's own."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import reject
from hypothesis import strategies as st

from strategies.layouts import KINDS
from verifier.cases.drawn import recipes
from verifier.cases.plan import Plan
from verifier.cases.recipe import build
from verifier.execution.call_subject import lay_out
from verifier.ops import op
from verifier.records.subject import Subject


def call_arguments(
    subject: Subject, dtype: str | None = None, *, device: str = "cpu", max_elements: int = 4096
) -> st.SearchStrategy[Mapping[str, object]]:
    """Generate the arguments of calls of a declared kernel, by name; shrinks towards few ordinary numbers.

    Extents, values, strides, eps, and which optional tensors are given vary as they do in an audit, inside
    the declared domain. Each tensor lies in memory of its own.

    subject: what `@subject` has made. dtype: of the input, one that is declared; None: the first.
    device: where tensors lie, as torch names it. max_elements: of the input.

    Raises:
        ValueError: the subject does not declare the dtype.

    """
    held = subject.dtypes[0] if dtype is None else dtype
    if held not in subject.dtypes:
        raise ValueError(f"{subject.name} does not declare {held}; it declares {', '.join(subject.dtypes)}")
    whole = Plan(layouts=KINDS, max_elements=max_elements).for_inputs_of(held, subject)
    plan, the_op, domain = whole.within(subject.domain), op(subject.op), subject.domain

    @st.composite
    def arguments(draw: st.DrawFn) -> Mapping[str, object]:
        case = build(the_op, subject, held, draw(recipes(the_op, subject, held, plan)), gradients=False)
        if case is None or (domain is not None and domain.excludes(case) is not None):
            reject()
        assert case is not None
        return lay_out(subject, case, device=device).arguments

    return arguments()
