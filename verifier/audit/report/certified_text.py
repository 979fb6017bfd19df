"""What an audit says of certificates: for which shapes, dtypes and calls, and why others were refused."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

from verifier.audit.report.columns import cut
from verifier.records.certificate import AskedCertificate, Certificate, Refusal
from verifier.records.remark import Remark

CERTIFIED = "CERTIFIED"
"""Beside PASS, never in its place: what it is said of is proved for all inputs of the shapes named."""
CALLS = {False: "forward", True: "with gradients"}


def certified_lines(found: Sequence[AskedCertificate], *, depths: bool = False) -> Iterator[str]:
    """Yield lines about one subject and dtype: what is certified, then what was refused, once a reason.

    depths: also how deep the sums of the compiled code are.
    """
    for ones in _together([one for one in found if one.certified], lambda one: one.gradients):
        judged = sum(one.judged for one in ones)
        held = f"; {judged} cases of these shapes within their bounds" if judged else ""
        where = f"for all inputs{_limit(ones)} at {_shapes(ones)} {CALLS[ones[0].gradients]}"
        yield f"{CERTIFIED}  {_named(ones[0])}  {where}{held}"
        yield from (line for one in ones for line in _depth_lines(one) if depths)
    for ones in _together([one for one in found if isinstance(one.found, Refusal)], _reason):
        yield f"not certified  {_named(ones[0])}{_where(ones)}: {_why(ones[0])}"


def _limit(ones: Sequence[AskedCertificate]) -> str:
    """Say up to which magnitude, where a certificate is not one of all inputs."""
    within = [one.found.within for one in ones if isinstance(one.found, Certificate)]
    known = [exponent for exponent in within if exponent is not None]
    return f" up to 2^{min(known)} in magnitude" if known else ""


def _depth_lines(one: AskedCertificate) -> Iterator[str]:
    """Yield how many additions a term of each sum meets, compiled and declared."""
    if isinstance(one.found, Certificate):
        sums = dict.fromkeys(made.text for proof in one.found.proofs for made in proof.sums)
        yield f"    {_shape(one)}: sums of {', '.join(sums)}" if sums else f"    {_shape(one)}: no sums"


def uncertified(found: Iterable[AskedCertificate]) -> Iterator[Remark]:
    """Yield what was asked for and is not certified, in words."""
    for one in found:
        if not one.certified:
            why = _why(one) if isinstance(one.found, Refusal) else one.contradicted
            yield Remark(one.subject, f"{_named(one)}{_where([one])}: a certificate is required: {why}")


def contradictions(found: Iterable[AskedCertificate]) -> Iterator[str]:
    """Yield failures of the verifier: what is certified and fails all the same, and what broke off."""
    for one in found:
        if one.own_failure:
            yield f"\nthe verifier itself failed: {_named(one)}{_where([one])}: {one.own_failure}"
        if one.contradicted:
            yield (
                f"\nthe verifier itself failed: {_named(one)}{_where([one])} is certified, and yet\n"
                f"    {one.contradicted}\n    One of the two is wrong, and that is a mistake of ours."
            )


def certified_summary(found: Sequence[AskedCertificate]) -> str:
    """Return how many of what was asked for are certified, by kind of call; nothing where none was."""
    if not found:
        return ""
    parts = []
    for gradients, words in CALLS.items():
        ones = [one for one in found if one.gradients is gradients]
        if ones:
            parts.append(f"{sum(one.certified for one in ones)} of {len(ones)} {words}")
    shapes = dict.fromkeys(_shape(one) for one in found if one.certified)
    at = f" ({', '.join(shapes)})" if shapes else ""
    return f"certified for all inputs of a shape: {', '.join(parts)}{at}"


def _together(
    found: Sequence[AskedCertificate], by: Callable[[AskedCertificate], Hashable]
) -> Iterator[list[AskedCertificate]]:
    kinds = Counter(map(by, found))
    for kind in kinds:
        yield [one for one in found if by(one) == kind]


def _reason(one: AskedCertificate) -> Hashable:
    return one.gradients, getattr(one.found, "stage", "")


def _why(one: AskedCertificate) -> str:
    found = one.found
    return f"it was not shown that {found.stage} ({cut(found.why)})" if isinstance(found, Refusal) else ""


def _named(one: AskedCertificate) -> str:
    return f"{one.subject}  {one.dtype}"


def _where(ones: Sequence[AskedCertificate]) -> str:
    return f"  at {_shapes(ones)} {CALLS[ones[0].gradients]}" if ones[0].rows else ""


def _shapes(ones: Sequence[AskedCertificate]) -> str:
    return ", ".join(map(_shape, ones))


def _shape(one: AskedCertificate) -> str:
    return f"{one.rows}x{one.columns}"
