"""Backward passes in half precision, and branches, written to be certified though they are wrong."""

import re
import textwrap

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from checks_support import machine_runner

from verifier.cases.recipe import Recipe, Values, build
from verifier.checks.support.certificate_at_shape import certified
from verifier.ops import op
from verifier.records.certificate import Certificate, Refusal
from verifier.subjects.load_file import load

LAYER_NORM = """
import torch
import triton
import triton.language as tl
from verifier import Domain, Trees, subject, tree

@triton.jit
def _forward(x, y, means, rstds, weight, bias, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(value, axis=0), tl.cast(columns, tl.float32))
    centred = tl.where(inside, value - mean, 0.0)
    variance = tl.div_rn(tl.sum(centred * centred, axis=0), tl.cast(columns, tl.float32))
    rstd = tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
    out = centred * rstd
    #OUT#
    out = out * tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    out = out + tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + column, out, mask=inside)
    tl.store(means + row, mean)
    tl.store(rstds + row, rstd)

@triton.jit
def _backward(dx, dw, db, dy, x, weight, means, rstds, rows, columns, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < columns
    count = tl.cast(columns, tl.float32)
    w = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    sum_dw = tl.zeros((BLOCK,), tl.float32)
    sum_db = tl.zeros((BLOCK,), tl.float32)
    for row in range(0, rows):
        mean = tl.load(means + row)
        rstd = tl.load(rstds + row)
        #STATISTICS#
        value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
        d = tl.load(dy + row * columns + column, mask=inside, other=0.0).to(tl.float32)
        hat = tl.where(inside, (value - mean) * rstd, 0.0)
        g = d * w
        #G#
        c1 = tl.div_rn(tl.sum(hat * g, axis=0), count)
        c2 = tl.div_rn(tl.sum(g, axis=0), count)
        #MEANS#
        out = (g - (hat * c1 + c2)) * rstd
        tl.store(dx + row * columns + column, out, mask=inside)
        sum_dw += d * hat
        sum_db += d
        #SUMS#
    tl.store(dw + column, sum_dw, mask=inside)
    tl.store(db + column, sum_db, mask=inside)

class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        y, columns = torch.empty_like(x), x.shape[-1]
        rows = x.numel() // columns
        mean, rstd = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
        block = triton.next_power_of_2(columns)
        _forward[(rows,)](x, y, mean, rstd, weight, bias, columns, eps, BLOCK=block)
        ctx.save_for_backward(x, weight, mean, rstd)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, weight, mean, rstd = ctx.saved_tensors
        dx, dw, db = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
        rows, columns = mean.numel(), x.shape[-1]
        #BEFORE#
        block = triton.next_power_of_2(columns)
        _backward[(1,)](dx, dw, db, dy.contiguous(), x, weight, mean, rstd, rows, columns, BLOCK=block)
        #AFTER#
        return dx, dw, db, None

@subject(
    op="layer_norm", language="triton", variance="two_pass", accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3), dtypes=("float16", "bfloat16"),
    trees=Trees(statistics=tree(depth=9), row_gradients=tree(depth=9), columns=tree(depth=9)),
    mean_contraction="none", divide_by_n="division",
)
def attack(input, weight=None, bias=None, eps=1e-5):
    #CALL#
    return Norm.apply(input.contiguous(), weight.contiguous(), bias.contiguous(), float(eps))
"""


def source(places):
    """The right kernel with these lines added at its places."""
    added = []
    for line in LAYER_NORM.splitlines():
        found = re.fullmatch(r"(\s*)#([A-Z]+)#", line)
        added.append(textwrap.indent(places.get(found[2], ""), found[1]) if found else line)
    return "\n".join(added)


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    with machine_runner() as runner:

        def asked(dtype, **places):
            path = tmp_path_factory.mktemp("attack") / "attack.py"
            path.write_text(source(places))
            (subject,) = load(path).subjects
            values = Values(seed=0)
            recipe = Recipe(rows=3, columns=12, input=values, weight=values, bias=values)
            case = build(op(subject.op), subject, dtype, recipe, gradients=True)
            return certified(subject, case, runner=runner, gradients=True)

        yield asked


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_without_an_attack_the_backward_pass_is_certified(ask, dtype):
    found = ask(dtype)
    assert isinstance(found, Certificate), found.why
    assert {"grad_input", "grad_weight", "grad_bias"} <= set(found.outputs)


DECLARED = "the code is the declared computation"
BESIDE = "tl.load(dy + row * columns + (column + 1) % columns, mask=inside, other=0.0).to(tl.float32)"
"""Of the next column, in a row between the first and the last that a sum takes."""


@pytest.mark.parametrize(
    ("places", "stage"),
    [
        ({"G": "g = g.to(x.dtype.element_ty).to(tl.float32)"}, DECLARED),
        ({"STATISTICS": "rstd = rstd.to(x.dtype.element_ty).to(tl.float32)"}, DECLARED),
        ({"STATISTICS": "mean = mean.to(x.dtype.element_ty).to(tl.float32)"}, DECLARED),
        ({"STATISTICS": "rstd = rstd * 1.00000011920929"}, DECLARED),
        ({"MEANS": "c2 = tl.div_rn(tl.sum(g, axis=0), count - 1.0)"}, DECLARED),
        ({"MEANS": "c1 = c1.to(x.dtype.element_ty).to(tl.float32)"}, DECLARED),
        ({"MEANS": "c2 += 0.0 * tl.sum(tl.load(dy + column, mask=inside, other=0.0), axis=0)"}, DECLARED),
        ({"SUMS": "sum_dw = sum_dw.to(x.dtype.element_ty).to(tl.float32)"}, DECLARED),
        ({"SUMS": "sum_db += tl.where(row == 1, d, 0.0)"}, DECLARED),
        ({"SUMS": "sum_dw += tl.where(d > 60000.0, d, 0.0)"}, DECLARED),
        ({"SUMS": f"if row == 1:\n    sum_dw += 0.0 * {BESIDE}"}, DECLARED),
        ({"SUMS": f"if row == 1:\n    sum_db += 0.0 * {BESIDE}"}, DECLARED),
        ({"MEANS": "if c2 > 1.0e30:\n    c2 = c1"}, DECLARED),
        ({"AFTER": "dw = dw.float().mul(1.0009765625).to(dw.dtype)"}, DECLARED),
        ({"AFTER": "dw, db = db, dw"}, DECLARED),
        ({"BEFORE": "mean = mean.to(x.dtype).float()"}, DECLARED),
        ({"OUT": "if mean > 1.0e30:\n    out = out * 2.0"}, DECLARED),
        ({"OUT": "out = tl.where(mean > 1.0e30, out * 2.0, out)"}, DECLARED),
    ],
    ids=[
        "g_rounded", "rstd_rounded", "mean_rounded", "rstd_off_by_an_ulp", "mean_over_n_minus_one",
        "c1_rounded", "zero_times_another_row", "sums_rounded", "a_row_twice", "rare_values_twice",
        "zero_times_another_column_in_dw", "zero_times_another_column_in_db",
        "branch_in_the_backward",
        "dw_off_by_an_ulp", "exchanged", "saved_mean_rounded", "branch", "choice",
    ],
)  # fmt: skip
def test_a_wrong_backward_pass_in_half_is_refused(ask, places, stage):
    found = ask("float16", **places)
    assert isinstance(found, Refusal), found
    assert found.stage == stage, found


CLAMPED = ("def hook(leaf):", "    leaf.grad.clamp_(-1e4, 1e4)")
NODE = "node = input.view_as(input).grad_fn.next_functions[0][0]"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ((*CLAMPED, "input.register_post_accumulate_grad_hook(hook)"), "clamp_ is not followed"),
        ((NODE, "node.register_prehook(lambda gradients: (gradients[0].clamp(-1e4, 1e4),))"), "clamp is not"),
        (("input.grad = torch.zeros_like(input)",), "add_ is not followed"),
    ],
    ids=["after_it_is_accumulated", "before_it_is_accumulated", "accumulated_into"],
)
def test_what_changes_a_gradient_where_a_backward_pass_leaves_it_is_seen(ask, lines, why):
    """`torch.autograd.grad` gives gradients before hooks that wait for them to be accumulated."""
    found = ask("float16", CALL="\n".join(("if input.requires_grad:", *(f"    {one}" for one in lines))))
    assert isinstance(found, Refusal)
    assert why in found.why


@pytest.mark.parametrize(
    "made", ["dw.to_sparse()", "torch._efficientzerotensor(dw.shape, dtype=dw.dtype, device=dw.device)"]
)
def test_a_gradient_that_lies_in_no_memory_is_no_failure_of_the_verifier(ask, made):
    found = ask("float16", AFTER=f"dw = {made}")
    assert isinstance(found, Refusal)
    assert "grad_weight has elements that lie nowhere in memory" in found.why
