"""Matrix products of torch between launches, in every arithmetic of shadows that follows a run."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from torch.nn.functional import linear

from verifier.checks.support.running_bound_of_torch import Followed, TorchSlots, made
from verifier.machine.shadow.arithmetics import enclosed, field, make
from verifier.machine.shadow.host_operations import HostSlots
from verifier.machine.shadow.host_products import Product, Shadowed
from verifier.machine.shadow.slots import Slots
from verifier.machine.shadow.taint_slots import TaintSlots

PRODUCTS = {
    "mm": lambda x, w, b: x @ w.T,
    "addmm": lambda x, w, b: torch.addmm(b, x, w.T),
    "addmm by numbers": lambda x, w, b: torch.addmm(b, x, w.T, beta=0.5, alpha=-4),
    "addmm without what is added": lambda x, w, b: torch.addmm(b, x, w.T, beta=0),
    "linear": linear,
    "of three dimensions": lambda x, w, b: linear(x.reshape(2, 3, 7), w, b).reshape(6, 4),
    "of one dimension": lambda x, w, b: linear(x[0], w, b).reshape(1, 4),
    "turned in place": lambda x, w, b: (x @ w.T).t_().transpose_(0, 1).unsqueeze_(0).squeeze_(0).detach_(),
    "bmm": lambda x, w, b: torch.bmm(x.reshape(2, 3, 7), w.T.expand(2, 7, 4)).reshape(6, 4),
    "baddbmm": lambda x, w, b: torch.baddbmm(b, x[None], w.T[None])[0],
    "einsum": lambda x, w, b: torch.einsum("bi,oi->bo", x, w),
    "einsum of batches": lambda x, w, b: torch.einsum("...i,oi->...o", x.reshape(3, 2, 7), w).reshape(6, 4),
    "matmul": lambda x, w, b: torch.matmul(x.reshape(2, 3, 7), w.T).reshape(6, 4),
    "mv": lambda x, w, b: torch.mv(x, w[0]).reshape(6, 1),
    "into": lambda x, w, b: torch.mm(x, w.T, out=torch.empty(6, 4, dtype=x.dtype)),
    "in place": lambda x, w, b: torch.ones(6, 4, dtype=x.dtype).addmm_(x, w.T, beta=0.5),
    "dot": lambda x, w, b: torch.dot(x[0], w[0]).reshape(1, 1),
    "columns left out": lambda x, w, b: x[:, :0] @ w[:, :0].T,
}
"""By name a function of (6, 7), (4, 7) and (4,)."""


def given(dtype):
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in ((6, 7), (4, 7), (4,))]


def rational(tensor):
    return np.vectorize(Fraction, otypes=[object])(tensor.double().numpy())


def wanted(name, x, w, b):
    """Return the product by Python's rationals."""
    x, w, b = map(rational, (x, w, b))
    product = x.dot(w.T)
    return {
        "addmm": lambda: product + b,
        "addmm by numbers": lambda: b / 2 - 4 * product,
        "linear": lambda: product + b,
        "of three dimensions": lambda: product + b,
        "of one dimension": lambda: product[:1] + b,
        "baddbmm": lambda: product + b,
        "in place": lambda: product + Fraction(1, 2),
        "mv": lambda: product[:, :1],
        "dot": lambda: product[:1, :1],
        "columns left out": lambda: product * 0,
    }.get(name, lambda: product)()


def followed(name, slots, tensors, mode=HostSlots):
    with mode(slots):
        result = PRODUCTS[name](*tensors)
        return result, slots.get(result)


@pytest.mark.parametrize("name", list(PRODUCTS))
def test_a_product_is_exact_in_a_field(name):
    slots, tensors = Slots(make("field")), given(torch.bfloat16)
    for tensor in tensors:
        slots.set(tensor, field.of_floats(tensor.double().numpy()))
    _, residues = followed(name, slots, tensors)
    assert not slots.counters.uncovered
    for found, exact in zip(residues.reshape(-1), wanted(name, *tensors).reshape(-1), strict=True):
        assert int(found) == field.of_fraction(exact)


@pytest.mark.parametrize("name", list(PRODUCTS))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_lifted_product_is_within_its_radius(name, dtype):
    slots, tensors = Slots(make("enclosed")), given(dtype)
    for tensor in tensors:
        slots.set(tensor, enclosed.exact(tensor.double().numpy()))
    _, lifted = followed(name, slots, tensors)
    for found, exact in zip(lifted.reshape(-1), wanted(name, *tensors).reshape(-1), strict=True):
        assert abs(Fraction(float(found["value"])) - exact) <= Fraction(float(found["radius"]))
        assert found["radius"] <= 2.0**-45


@pytest.mark.parametrize("name", list(PRODUCTS))
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("error", [0.0, 0.25])
@pytest.mark.parametrize("mode", [HostSlots, TorchSlots])
def test_a_bound_holds_what_torch_rounds_and_what_its_operands_err_by(name, dtype, error, mode):
    torchs, tensors = mode is TorchSlots, given(dtype)
    slots = Slots(Followed() if torchs else make("ball", given=True))
    meant = [tensor + torch.tensor(error).to(dtype) for tensor in tensors]  # each operand errs by as much
    for tensor, other in zip(tensors, meant, strict=True):
        away = (tensor.double() - other.double()).abs().numpy()
        slots.set(tensor, made(other.double().numpy(), away) if torchs else away)
    result, shadows = followed(name, slots, tensors, mode)
    bounds = shadows["bound"] if torchs else shadows
    exact = wanted(name, *meant).reshape(-1)
    for actual, bound, value in zip(
        result.double().reshape(-1).tolist(), bounds.reshape(-1), exact, strict=True
    ):
        assert abs(Fraction(actual) - value) <= Fraction(float(bound))
        # Seven terms of sizes below 2^4, and of their errors.
        assert bound <= (2.0**7 if error else 2.0**6 * torch.finfo(dtype).eps)


def test_an_element_of_a_product_depends_on_a_row_and_a_column():
    slots, (x, w, b) = TaintSlots(make("taint")), given(torch.float16)
    slots.set(x, np.broadcast_to(np.uint64(1) << np.arange(6, dtype=np.uint64)[:, None], (6, 7)))
    slots.set(w, np.broadcast_to(np.uint64(64) << np.arange(4, dtype=np.uint64)[:, None], (4, 7)))
    slots.set(b, np.full(4, 1 << 20, dtype=np.uint64))
    _, sources = followed("addmm", slots, (x, w, b))
    for row, column in np.ndindex(6, 4):
        assert int(sources[row, column]) == 1 << row | 64 << column | 1 << 20


def product_of_ones(terms):
    """Return a row of ones times a column of ones, in a field."""
    arithmetic = make("ball")
    ones = np.ones((1, 1, terms))
    row = Shadowed(floats=ones, shadows=np.zeros(ones.shape))
    return Product(arithmetic=arithmetic, left=row, right=row.turned())


@pytest.mark.parametrize(
    ("result", "follows"),
    [(100.0, True), (99.0, True), (0.0, False), (np.inf, True), (np.nan, True), (200.0, False)],
)
def test_what_errs_by_more_than_any_order_of_sums_is_no_product(result, follows):
    # In float16 a hundred terms may be wrong by 104 * 100 / 2048 in all, so by 5 of them.
    found = product_of_ones(100).following("f16", np.full((1, 1), result, dtype=np.float16), (1, 1))
    assert (found is not None) == follows
    if follows:
        away = abs(result - 100.0)
        assert found[0, 0] == np.inf if not np.isfinite(away) else away <= found[0, 0] <= away + 1e-9


def test_a_product_of_whole_numbers_is_not_followed():
    slots, x = Slots(make("field")), torch.ones(3, 3)
    slots.set(x, field.of_floats(np.ones((3, 3))))
    with HostSlots(slots):
        x.int() @ x.int()
        x.to(torch.complex64) @ x.to(torch.complex64)
    assert slots.counters.uncovered


def test_a_product_in_parts_is_the_product(monkeypatch):
    from verifier.machine.shadow import host_products

    tensors, found = given(torch.float32), []
    for most in (1 << 21, 60, 1):
        monkeypatch.setattr(host_products, "_AT_ONCE", most)
        slots = Slots(make("field"))
        for tensor in tensors:
            slots.set(tensor, field.of_floats(tensor.double().numpy()))
        found.append(followed("bmm", slots, tensors)[1])
    assert all((residues == found[0]).all() for residues in found)
