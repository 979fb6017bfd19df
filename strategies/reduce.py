"""Deterministic reduction of failing tensors to a case that a person can read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np
import torch

from strategies.draws import Integers
from strategies.formats import Reals, float_format
from strategies.layouts import Layout, simpler_layouts

TensorsByName: TypeAlias = dict[str, torch.Tensor]
Predicate: TypeAlias = Callable[[TensorsByName], bool]
Links: TypeAlias = Mapping[str, Sequence[tuple[str, int]]]
Simplification: TypeAlias = Callable[[Reals], Reals]

# A phase may spend at most this part of the calls that are left, so that no axis starves the others.
_SHARE = 3
# Chunks of a size that are left out in vain, one after the other, before smaller ones are tried.
_IN_VAIN = 4
# Up to this extent every index is tried alone: what a person reads is minimal.
_SMALL = 8
# Significand bits to keep, fewest first; what a format has already is no simplification.
_KEPT_BITS = (2, 3, 4, 6, 8, 11, 16, 24, 32, 40)


def reduce(
    tensors: Mapping[str, torch.Tensor],
    still_fails: Predicate,
    *,
    axes: Links,
    budget: int = 1000,
    min_extent: int = 1,
) -> TensorsByName:
    """Reduce tensors while they still fail: fewer rows and columns, then plainer numbers.

    tensors: by name; their dtypes stay, the results are contiguous (strides belong to Layout).
    still_fails: whether tensors show the same failure; what it raises is passed on.
    axes: the tensor axes that shrink together, as in {"columns": [("input", 1), ("weight", 0)]}.
    budget: the most calls of still_fails; the same arguments make the same calls.
    min_extent: the least extent of a linked axis.

    Numbers become, where that still fails: 0, 1 or -1, a power of two, a small integer, or fewer bits.
    Raises: ValueError if the tensors do not fail to begin with, or if the axes do not fit them.
    """
    start = {name: tensor.detach().clone().contiguous() for name, tensor in tensors.items()}
    _require_links(start, axes)
    if budget < 1:
        raise ValueError(f"budget is {budget}, and the failure itself takes one call")
    search = _Search(tensors=start, still_fails=still_fails, left=budget)
    if not search.attempt(start):
        raise ValueError("the tensors do not fail to begin with, so that there is nothing to reduce")
    links = [link for link in axes.values() if link]
    again = False
    while search.left > 0:
        before = search.tensors
        for link in links:  # all axes before any chunk is tried: each call then costs less
            _keep_prefix(search, link, min_extent, again=again)
        for link in links:
            _leave_out_chunks(search, link, min_extent, again=again)
        for name in start:
            _simplify(search, name)
        if search.tensors is before:
            break
        again = True
    return search.tensors


def reduce_layout(layout: Layout, still_fails: Callable[[Layout], bool]) -> Layout:
    """Return a simpler layout that still fails; contiguous if that does.

    Raises: ValueError if the layout does not fail to begin with.
    """
    if not still_fails(layout):
        raise ValueError(f"{layout!r} does not fail to begin with, so that there is nothing to reduce")
    simpler = next((one for one in simpler_layouts(layout) if still_fails(one)), None)
    return layout if simpler is None else reduce_layout(simpler, still_fails)


@dataclass(kw_only=True)
class _Search:
    """The best tensors so far, and the calls that are left."""

    tensors: TensorsByName
    still_fails: Predicate
    left: int
    floor: int = 0

    def attempt(self, candidate: TensorsByName) -> bool:
        """Take the candidate if it fails; refuse it unseen when this phase has spent its calls."""
        if self.spent:
            return False
        self.left -= 1
        # the predicate gets its own memory: a kernel that writes to its inputs must not change ours
        failed = self.still_fails({name: tensor.clone() for name, tensor in candidate.items()})
        if failed:
            self.tensors = candidate
        return failed

    @property
    def spent(self) -> bool:
        """Whether this phase may make no more calls."""
        return self.left <= self.floor

    def begin_phase(self) -> None:
        """Grant a phase its share of the calls that are left."""
        self.floor = self.left - max(self.left // _SHARE, min(self.left, 32))


def _require_links(tensors: TensorsByName, axes: Links) -> None:
    for label, link in axes.items():
        for name, axis in link:
            if name not in tensors:
                raise ValueError(f"axes[{label!r}] names {name!r}, which is not among the tensors")
            if not -tensors[name].dim() <= axis < tensors[name].dim():
                raise ValueError(f"axes[{label!r}] names axis {axis} of {name!r}, which has no such axis")
        extents = {tensors[name].shape[axis] for name, axis in link}
        if len(extents) > 1:
            raise ValueError(f"axes[{label!r}] ties axes of different extents: {sorted(extents)}")


# Rows and columns


def _extent(search: _Search, link: Sequence[tuple[str, int]]) -> int:
    name, axis = link[0]
    return search.tensors[name].shape[axis]


def _keep_prefix(search: _Search, link: Sequence[tuple[str, int]], least: int, *, again: bool) -> None:
    """Find a short prefix that fails: 1, 2, 4, ... indices, then bisect down from there.

    again: one was found before, and is sought only if one index fewer is enough by now.
    """
    search.begin_phase()
    extent = _extent(search, link)
    if again and (extent <= least or not search.attempt(_taking(search.tensors, link, range(extent - 1)))):
        return
    extent = _extent(search, link)
    passing, failing = least - 1, extent
    length = max(least, 1)
    while length < extent and not search.attempt(_taking(search.tensors, link, range(length))):
        passing = length
        length *= 2
    failing = min(length, extent)
    while failing - passing > 1 and not search.spent:
        middle = (passing + failing) // 2
        if search.attempt(_taking(search.tensors, link, range(middle))):
            failing = middle
        else:
            passing = middle


def _leave_out_chunks(search: _Search, link: Sequence[tuple[str, int]], least: int, *, again: bool) -> None:
    """Remove chunks of indices of the linked axes, of halving size (ddmin).

    Where nearly every index matters, as for a failure that needs so many rows, a few chunks of each size
    tell: all of them would be as many calls as there are indices, each with nearly the whole case.
    again: it was done before, and is done only if a single index can be left out by now.
    """
    search.begin_phase()
    if again and not _remove_chunks(search, link, 1, least):
        return
    chunk = max(_extent(search, link) // 2, 1)
    while not search.spent:
        removed = _remove_chunks(search, link, chunk, least)
        if chunk == 1 and not removed:
            return
        chunk = max(chunk // 2, 1)


def _remove_chunks(search: _Search, link: Sequence[tuple[str, int]], chunk: int, least: int) -> bool:
    """Try to remove each chunk, from the last to the first, and say whether one was.

    Of many chunks a few that are spread over the axis are tried first; if none of them goes, none does.
    """
    extent = _extent(search, link)
    count = -(-extent // chunk)
    if extent > _SMALL and count > _IN_VAIN:
        stops = [extent - number * (count - 1) // _IN_VAIN * chunk for number in range(_IN_VAIN)]
        if not any(_remove(search, link, stop, chunk, least) for stop in stops):
            return False
        removed, stop = True, _extent(search, link)
    else:
        removed, stop = False, extent
    while stop > 0 and not search.spent:
        removed |= _remove(search, link, stop, chunk, least)
        stop = max(stop - chunk, 0)
    return removed


def _remove(search: _Search, link: Sequence[tuple[str, int]], stop: int, chunk: int, least: int) -> bool:
    """Try to remove the chunk that ends before this index."""
    kept = [*range(max(stop - chunk, 0)), *range(stop, _extent(search, link))]
    return len(kept) >= least and search.attempt(_taking(search.tensors, link, kept))


def _taking(tensors: TensorsByName, link: Sequence[tuple[str, int]], kept: Sequence[int]) -> TensorsByName:
    """Keep only these indices of the linked axes."""
    result = dict(tensors)
    for name, axis in link:
        index = torch.tensor(list(kept), dtype=torch.int64, device=result[name].device)
        result[name] = result[name].index_select(axis, index).contiguous()
    return result


# Numbers


def _complexity(numbers: Reals) -> Integers:
    """Rank numbers from plain to strange: 0, 1, -1, powers of two, then by significand bits and exponent."""
    finite = np.where(np.isfinite(numbers), numbers, 0.0)
    significands, exponents = np.frexp(np.abs(finite))
    whole = np.ldexp(significands, 53).astype(np.int64)
    # the lowest set bit, as a power of two, tells how many significand bits are in use
    used = 54 - np.frexp((whole & -whole).astype(np.float64))[1]
    rank = used.astype(np.int64) * 2**13 + np.abs(exponents.astype(np.int64) - 1) * 2
    rank = np.where(finite == 0, 0, rank) + np.signbit(numbers)
    return np.where(np.isnan(numbers), 2**30, np.where(np.isinf(numbers), 2**29 + np.signbit(numbers), rank))


def _simplifications(precision: int) -> Iterator[Simplification]:
    """Yield what may be done to numbers, the most drastic first."""
    yield np.zeros_like
    yield np.ones_like
    yield lambda numbers: np.copysign(1.0, numbers)
    yield np.abs
    yield partial(_with_bits, bits=1)
    yield np.trunc
    yield lambda numbers: np.copysign(np.ceil(np.abs(numbers)), numbers)
    yield lambda numbers: np.frexp(numbers)[0] * 2
    yield lambda numbers: _with_exponent(numbers, lambda exponents: np.trunc(exponents / 2))
    yield lambda numbers: _with_exponent(numbers, lambda exponents: exponents - np.sign(exponents))
    for bits in _KEPT_BITS:
        if bits < precision:
            yield partial(_with_bits, bits=bits)
            yield partial(_with_bits, bits=bits, away=True)


def _with_bits(numbers: Reals, bits: int, *, away: bool = False) -> Reals:
    """Round significands to so many bits, towards zero or away from it."""
    significands, exponents = np.frexp(numbers)
    scaled = np.ldexp(significands, bits)
    whole = np.copysign(np.ceil(np.abs(scaled)), scaled) if away else np.trunc(scaled)
    rounded: Reals = np.ldexp(whole, exponents - bits)
    return rounded


def _with_exponent(numbers: Reals, change: Simplification) -> Reals:
    """Bring numbers nearer to 1, counted in binades."""
    significands, exponents = np.frexp(numbers)
    nearer = change(exponents.astype(np.float64) - 1)
    moved: Reals = np.ldexp(significands * 2, nearer.astype(np.int32))
    return moved


def _simplify(search: _Search, name: str) -> None:
    """Simplify as many numbers of a tensor as still fails, whole tensors first, then halves of halves."""
    if not search.tensors[name].is_floating_point():
        return
    search.begin_phase()
    for simplify in _simplifications(float_format(search.tensors[name].dtype).precision):
        pending = [np.arange(search.tensors[name].numel())]
        while pending and not search.spent:
            part = pending.pop()
            plainer = _plainer(search.tensors[name], simplify, part)
            if plainer is None or search.attempt({**search.tensors, name: plainer[0]}):
                continue
            changed = plainer[1]
            if len(changed) > 1:
                pending += [changed[len(changed) // 2 :], changed[: len(changed) // 2]]


def _plainer(
    tensor: torch.Tensor, simplify: Simplification, part: Integers
) -> tuple[torch.Tensor, Integers] | None:
    """Simplify the numbers at these flat indices that get plainer by it; None if there are none.

    Returns: the new tensor, in which all other numbers keep their bits, and the indices that changed.
    """
    flat = tensor.reshape(-1)
    largest = float_format(tensor.dtype).maximum
    numbers = flat[torch.from_numpy(part).to(flat.device)].cpu().to(torch.float64).numpy()
    with np.errstate(invalid="ignore", over="ignore"):
        new = simplify(numbers)
    # rounding away from zero may leave the format
    gain = (_complexity(new) < _complexity(numbers)) & (np.abs(new) <= largest)
    if not gain.any():
        return None
    changed = part[gain]
    result = flat.clone()
    result[torch.from_numpy(changed).to(flat.device)] = torch.from_numpy(new[gain]).to(flat)
    return result.reshape(tensor.shape), changed
