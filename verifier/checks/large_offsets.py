"""Rows and columns beyond 2^31 elements from the first are found where they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from strategies.layouts import Layout
from strategies.placement import BITS, Placed
from verifier.cases.plan import Plan
from verifier.cases.steering import columns_apart, runs_apart
from verifier.checks.support.output_verdict import judge
from verifier.checks.support.session import Session, result_names
from verifier.checks.support.untouched_pages import untouched_pages
from verifier.execution.backend import Backend, Power
from verifier.execution.backends import can
from verifier.execution.call_subject import execute
from verifier.machine.device.tensor_places import memory_of, put
from verifier.ops import Op
from verifier.ops.unknown import NO_BOUND
from verifier.records.case import Case
from verifier.records.observation import Observation
from verifier.records.subject import Subject
from verifier.records.verdict import Measured, Outcome, Verdict

NAME = "large_offsets"
GUARANTEE = "offsets beyond 2^31 elements are right, even where the domain has no padded rows"
ORDER = 160
HEAVY = True
"""Maps many gigabytes, though it touches few: such cases run one at a time."""
NEEDS_A_NORM = f"{NO_BOUND}, in every layout"
DEMANDS = (
    "three rows at a stride of 2^30 elements, and 33 columns at one of 2^26, give results within their bounds"
)
WHY = (
    "most kernels compute row * stride, or column * stride, as a product of 32 bits: at 2^31 it wraps, and "
    "the kernel silently reads and writes another tensor"
)
CATCHES = ("offsets_in_32_bits_triton", "column_offsets_in_32_bits_triton")

REACH = 2**31
"""Elements from which 32-bit offsets no longer reach."""
MOST_REACH = 2**32
"""Elements beyond which a case is left out: it would map more, and show no more."""
MOST_BYTES = 2**38
"""Address space for one tensor: far below the 2^47 bytes of a process."""


SHAPES = ((3, 33), (3, 128), (3, 1000))
"""Three rows, the fewest whose last begins at 2 * 2^30."""
MOST_REACHING = 3
"""Shapes that reach other kernels of the subject, most first, whose rows are put as far apart."""


def plan(subject: Subject, op: Op) -> Plan:
    """Ask for three short rows, far apart, or their columns, and for few shapes that launch other kernels."""
    backward = subject.differentiable or not op.differentiable
    far: list[tuple[tuple[str, Layout], ...]] = []
    for layout in (*_far_runs(op), far_columns(op)):
        far.append((("input", layout),))
        if backward:
            far += [(("grad_output", layout),), (("input", layout), ("grad_output", layout))]
    return Plan(
        gradients=backward,
        hazards=("ordinary",),
        joint=False,
        shapes=SHAPES,
        eps=(1e-5,),
        placements=tuple(far),
        reaching=True,
        most_reaching=MOST_REACHING,
        apart=REACH,
    )


def _far_runs(op: Op) -> list[Layout]:
    """Return layouts that take the last run of the innermost axis to 2^31: 2^30 between three."""
    found: dict[Layout, None] = {}
    for rows, columns in SHAPES:
        shapes = op.shapes(rows, columns, 0)
        shape = shapes.tensors["input"] if shapes is not None else (rows, columns)
        found[runs_apart(shape, REACH)] = None
    return list(found)


def far_columns(op: Op) -> Layout:
    """Return rows that lie side by side: the last of the fewest columns begins at 2^31."""
    shapes = op.shapes(*SHAPES[0], 0)
    return columns_apart(shapes.tensors["input"] if shapes is not None else SHAPES[0], REACH)


def skips(subject: Subject, _op: Op, _dtype: str, backend: str) -> str | None:
    """Apply unless the domain excludes rows that lie apart."""
    domain = subject.domain
    promised = NAME in subject.guarantees
    if (
        not promised
        and domain is not None
        and domain.layouts is not None
        and "padded_rows" not in domain.layouts
    ):
        return "the declared domain has no padded rows, hence none that lie far apart"
    if not can(backend, Power.FAR_ROWS):
        return "Triton's interpreter dies of such strides (seen with 3.9); use another backend"
    return None


def check(session: Session) -> list[Outcome]:
    """Judge outputs and gradients of rows that lie far apart."""
    reaches = [_reach(session.case, name) for name in session.case.layouts]
    if not REACH <= max(reaches, default=0) <= MOST_REACH:
        return []
    backward = bool(session.op.differentiable) and session.subject.differentiable
    seen = session.execute(experiment="verifier.checks.large_offsets:experiment", gradients=backward)
    if seen.lacking:
        text = f"not enough memory here: {seen.lacking}"
        return [Outcome(verdict=Verdict.SKIPPED, message=text, measured=Measured(seen=text))]
    names = result_names(session.subject, session.op)
    damage = [Outcome(verdict=Verdict.FAIL, output=d.about, message=d.text) for d in seen.damage]
    return [*damage, *session.shape_outcomes(seen, names), *judge(session.truth, seen, names)]


def _reach(case: Case, name: str) -> int:
    """Return the offset of the last element of a tensor."""
    tensor = case.tensors.get(name)
    if tensor is None or tensor.numel() == 0:
        return 0
    strides = case.layouts[name].strides(tensor.shape)
    return sum((extent - 1) * stride for extent, stride in zip(tensor.shape, strides, strict=True))


@dataclass(frozen=True, kw_only=True)
class FarPlaced:
    """A tensor in memory that is committed only where it is touched."""

    tensor: torch.Tensor
    values: torch.Tensor

    def damage(self) -> Iterator[str]:
        """Watch nothing between the rows: looking would commit it all."""
        yield from ()

    def value_damage(self) -> Iterator[str]:
        """Say whether the values were written."""
        kind = BITS[str(self.values.dtype).removeprefix("torch.")]
        # .contiguous() is as small as the values; views by kind need equal strides.
        now = self.tensor.detach().contiguous().view(kind)
        if not torch.equal(now, self.values.contiguous().view(kind)):
            yield "its values changed"


class LackingError(Exception):
    """There is no room for a tensor."""


def experiment(subject: Subject, case: Case, *, backend: Backend, gradients: bool) -> Observation:
    """Execute with rows far apart; runs in the child."""
    try:
        return execute(subject, case, backend=backend, gradients=gradients, placer=_place)
    except LackingError as error:
        return Observation(status="ok", lacking=str(error))


def _place(
    _name: str, layout: Layout, values: torch.Tensor, *, guard_elements: int, poison: str
) -> Placed | FarPlaced:
    """Put far rows into memory that is committed on touch, everything else where it usually is."""
    strides = layout.strides(values.shape)
    reach = sum((extent - 1) * stride for extent, stride in zip(values.shape, strides, strict=True))
    if reach < REACH or values.numel() == 0:
        return layout.place(values, guard_elements=guard_elements, poison=poison)
    size = layout.offset + reach + 1
    storage = _on_cpu(size, values) if memory_of(values).type == "cpu" else _on_device(size, values)
    tensor = storage.as_strided(values.shape, strides, layout.offset)
    tensor.copy_(values)
    return FarPlaced(tensor=tensor, values=values.clone())


def _on_cpu(size: int, values: torch.Tensor) -> torch.Tensor:
    """Return pages of zeros that exist once they are written."""
    octets = size * values.dtype.itemsize
    if octets > MOST_BYTES:
        raise LackingError(f"{octets / 2**30:.0f} GiB of address space for one tensor")
    try:
        pages = untouched_pages(octets)
    except (OSError, ValueError, OverflowError) as error:
        raise LackingError(f"{octets / 2**30:.0f} GiB cannot be mapped ({error})") from error
    return put(torch.frombuffer(pages, dtype=values.dtype), values.device)


def _on_device(size: int, values: torch.Tensor) -> torch.Tensor:
    """Return device memory, which is committed as a whole."""
    try:
        return torch.zeros(size, dtype=values.dtype, device=values.device)
    except torch.OutOfMemoryError as error:
        gigabytes = size * values.dtype.itemsize / 2**30
        raise LackingError(f"{gigabytes:.0f} GiB on the device ({error})") from error
