"""The CUDA subjects in the PTX machine: proved bounds, bits that do not move, and the published defects."""

import math

import pytest
import torch
from checks_support import in_turn
from cuda_verdicts import KERNELS, outcomes, output_of, subject_of

from verifier import load, machine
from verifier.records.verdict import Verdict

pytestmark = pytest.mark.usefixtures("compiler")

LAYER_NORMS = ("layer_norm_welford_cuda", "layer_norm_two_pass_cuda", "layer_norm_textbook_cuda")
CORRECTED = (*LAYER_NORMS, "layer_norm_backward_cuda", "softmax_cuda", "log_softmax_cuda")
# Every tier, pack and group width: 1 lane; padding; two rows an access; a full warp; shared.
EXTENTS = ((3, 1), (1, 2), (5, 3), (4, 17), (6, 34), (2, 1000), (3, 1025), (2, 1028))
STREAMED = (86, 26000)
"""Architecture whose blocks get the least shared memory, and float32 columns that do not fit in it."""


def draw(*shape, dtype=torch.float32, seed=0, mean=0.0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(*shape, generator=generator, dtype=torch.float64) + mean).to(dtype)


def row_norms():
    """Return the dispatcher of the row kernels."""
    return load(KERNELS / "row_norm_skeleton_cuda.py").module


def judged(stem, dtype, **recipe):
    subject = subject_of(stem)
    found = outcomes(subject, dtype, "cpu", **recipe)
    # A raw backward op has no bias, hence no theorem on its gradient; it is the exact sum in a case below.
    verdicts = {o.output: o.verdict for o in found if o.output != "grad_bias" or subject.op == "layer_norm"}
    assert verdicts
    assert set(verdicts.values()) == {Verdict.PASS}, [o for o in found if o.verdict is not Verdict.PASS]


def test_without_rows_the_gradient_of_a_bias_of_two_dimensions_is_zero():
    with machine.session():
        bias = torch.ones(2, 8, requires_grad=True)
        output, *_ = subject_of("layer_norm_two_pass_cuda")(torch.empty(0, 2, 8), (2, 8), None, bias)
        output.sum().backward()
    assert torch.equal(bias.grad, torch.zeros(2, 8))


# Bounds


@pytest.mark.parametrize(("rows", "columns"), EXTENTS)
@pytest.mark.parametrize("stem", CORRECTED)
def test_every_tier_keeps_its_bound(stem, rows, columns):
    judged(stem, "float32", rows=rows, columns=columns)


@pytest.mark.parametrize("stem", CORRECTED)
def test_the_streamed_tier_keeps_its_bound(stem):
    architecture, columns = STREAMED
    assert row_norms().plan(columns, torch.float32, architecture).tier == "streamed"
    with machine.session(architecture=architecture):
        judged(stem, "float32", rows=1, columns=columns)


@pytest.mark.parametrize(("stem", "dtype"), in_turn(CORRECTED, ["float16", "bfloat16", "float64"]))
def test_every_dtype_keeps_its_bound(stem, dtype):
    judged(stem, dtype, rows=3, columns=130)
    judged(stem, dtype, rows=2, columns=1030)


@pytest.mark.parametrize("stem", CORRECTED)
def test_the_bound_holds_for_every_admissible_device(stem):
    with machine.session(approximation="adversarial:1", contraction="on"):
        judged(stem, "float32", rows=4, columns=77)


@pytest.mark.parametrize("stem", LAYER_NORMS)
def test_more_rows_than_parts_keep_the_bound(stem):
    judged(stem, "float32", rows=300, columns=5)


@pytest.mark.parametrize("stem", [*LAYER_NORMS, "layer_norm_backward_cuda"])
def test_weight_and_bias_may_be_absent(stem):
    judged(stem, "float32", rows=3, columns=40, weight=None, bias=None)


# Bits that must not move


def run(stem, x, weight=None, bias=None, grad=None):
    """Return output and gradients of a layer norm, or of a softmax over the last dimension."""
    leaves = [t.detach().requires_grad_() for t in (x, weight, bias) if t is not None]
    if "softmax" in stem:
        output = output_of(stem, leaves[0], -1)
    else:
        output = output_of(stem, leaves[0], (x.shape[-1],), *leaves[1:])
    grad = torch.ones_like(output) if grad is None else grad
    return (output.detach(), *torch.autograd.grad(output, leaves, grad))


def bits(tensors):
    return [
        t.contiguous().view(torch.uint8 if t.element_size() == 1 else torch.int16).tolist() for t in tensors
    ]


def transposed(t):
    return t.t().contiguous().t() if t.dim() == 2 else strided(t)


def padded(t):
    wide = torch.full((*t.shape[:-1], t.shape[-1] + 3), math.nan, dtype=t.dtype)
    wide[..., : t.shape[-1]] = t
    return wide[..., : t.shape[-1]]


def misaligned(t):
    flat = torch.full((t.numel() + 1,), math.nan, dtype=t.dtype)
    flat[1:] = t.flatten()
    return flat[1:].view(t.shape)


def strided(t):
    wide = torch.full((*t.shape[:-1], 2 * t.shape[-1]), math.nan, dtype=t.dtype)
    wide[..., ::2] = t
    return wide[..., ::2]


@pytest.mark.parametrize("layout", [transposed, padded, misaligned, strided])
@pytest.mark.parametrize("columns", [34, 1028])
@pytest.mark.parametrize("stem", ["layer_norm_welford_cuda", "layer_norm_two_pass_cuda", "softmax_cuda"])
def test_a_layout_changes_no_bit(stem, columns, layout):
    x, grad = draw(4, columns, dtype=torch.float16, mean=3.0), draw(4, columns, dtype=torch.float16, seed=1)
    affine = () if "softmax" in stem else (draw(columns, dtype=torch.float16, seed=s) for s in (2, 3))
    affine = tuple(affine)
    plain = run(stem, x, *affine, grad=grad)
    laid = run(stem, layout(x), *map(layout, affine), grad=layout(grad))
    assert bits(laid) == bits(plain)


@pytest.mark.parametrize("stem", CORRECTED[:3] + CORRECTED[4:])
def test_an_expanded_gradient_is_read_as_it_is(stem):
    x = draw(5, 34)
    plain = run(stem, x, grad=torch.full((5, 34), 0.5))
    expanded = run(stem, x, grad=torch.tensor(0.5).expand(5, 34))
    assert bits(expanded) == bits(plain)


@pytest.mark.parametrize("columns", [12, 1028])
@pytest.mark.parametrize("stem", [*LAYER_NORMS, "softmax_cuda"])
def test_a_row_does_not_depend_on_the_others(stem, columns):
    x = draw(7, columns, mean=2.0)
    together = run(stem, x)[0]
    alone = torch.cat([run(stem, row[None])[0] for row in x])
    assert bits([together]) == bits([alone])
    assert bits([run(stem, x[:4])[0]]) == bits([together[:4]])  # even: two rows an access


@pytest.mark.parametrize("stem", [*LAYER_NORMS, "softmax_cuda"])
def test_architectures_agree(stem):
    x = draw(3, 50, mean=5.0)
    seen = []
    for architecture in (80, 90, 100):
        with machine.session(architecture=architecture):
            seen.append(bits(run(stem, x)))
    assert seen[0] == seen[1] == seen[2]


def backward_case(rows, columns, dtype=torch.float32, statistics=None):
    x, grad, weight = (
        draw(*s, dtype=dtype, seed=i) for i, s in enumerate(((rows, columns),) * 2 + ((columns,),))
    )
    exact = x.double()
    mean = exact.mean(1).to(statistics or dtype)
    rstd = (exact.var(1, unbiased=False) + 1e-5).rsqrt().to(statistics or dtype)
    return grad, x, weight, mean, rstd


def corrected_backward(grad, x, weight, mean, rstd):
    return subject_of("layer_norm_backward_cuda")(grad, x, weight, mean=mean, rstd=rstd)


@pytest.mark.parametrize("columns", [40, 8200])
def test_the_order_of_blocks_changes_no_bit_of_the_backward(columns):
    case = backward_case(9, columns)
    seen = []
    for seed in (None, 1, 2):
        with machine.session(schedule_seed=seed):
            seen.append(bits(corrected_backward(*case)))
    assert seen[0] == seen[1] == seen[2]


def test_the_gradient_of_the_bias_is_an_exact_sum_of_integers():
    grad, *rest = backward_case(700, 3)
    grad = grad.mul(100).round()
    _, _, grad_bias = corrected_backward(grad, *rest)
    assert torch.equal(grad_bias.double(), grad.double().sum(0))


# Ends of the domain


@pytest.mark.parametrize("shape", [(0, 5), (3, 0), (0, 0)])
@pytest.mark.parametrize("stem", [*LAYER_NORMS, "softmax_cuda", "log_softmax_cuda"])
def test_no_rows_or_no_columns_give_empty_results(stem, shape):
    affine = () if "softmax" in stem else (torch.ones(shape[1]), torch.ones(shape[1]))
    output, grad_input, *parameters = run(stem, torch.zeros(shape), *affine)
    assert output.shape == grad_input.shape == shape
    assert all(torch.equal(p, torch.zeros(shape[1])) for p in parameters)


@pytest.mark.parametrize("stem", LAYER_NORMS)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_row_with_a_nonfinite_element_is_nan_and_no_other(stem, bad):
    x = draw(3, 8)
    clean = run(stem, x)[0]
    x[1, 5] = bad
    output = run(stem, x)[0]
    assert output[1].isnan().all()
    assert torch.equal(output[[0, 2]], clean[[0, 2]])


def test_softmax_of_infinities():
    output = subject_of("softmax_cuda")(
        torch.tensor([[-math.inf] * 3, [0.0, -math.inf, 0.0], [0.0, math.inf, 0.0]]), 1
    )
    assert output[0].isnan().all()
    assert torch.equal(output[1], torch.tensor([0.5, 0.0, 0.5]))
    assert output[2].isnan().all()


@pytest.mark.parametrize("dim", [0, 1, -2])
def test_softmax_over_an_inner_dimension(dim):
    x = draw(3, 4, 5)
    moved = x.movedim(dim, -1).contiguous()
    assert torch.equal(
        subject_of("softmax_cuda")(x, dim), subject_of("softmax_cuda")(moved, -1).movedim(-1, dim)
    )


def test_a_fused_residual_is_the_norm_of_the_sum():
    fused = subject_of("layer_norm_residual_cuda").function.__globals__["add_layer_norm"]
    x, residual = draw(3, 40).mul(8).round(), draw(3, 40, seed=1).mul(8).round()  # sums are exact in half
    output, _, _ = fused(x.half(), residual.half(), 40, output_dtype=torch.float32)
    assert output.dtype == torch.float32
    assert torch.equal(output, output_of("layer_norm_welford_cuda", x + residual, 40))


@pytest.mark.parametrize("columns", [34, 1028])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_parts_of_the_fused_subject_change_no_bit(columns, dtype):
    x, weight = draw(3, columns, dtype=dtype, mean=3.0), draw(columns, dtype=dtype, seed=1)
    output, _, _ = subject_of("layer_norm_residual_cuda")(x, (columns,), weight)
    plain = output_of("layer_norm_welford_cuda", x, (columns,), weight)
    assert bits([output]) == bits([plain])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_split_is_exact(dtype):
    split = subject_of("layer_norm_residual_cuda").function.__globals__["split"]
    tiny, most = torch.finfo(dtype).smallest_normal, torch.finfo(dtype).max
    scales = torch.tensor([1.0, most / 8, tiny, tiny * torch.finfo(dtype).eps * 3], dtype=torch.float64)
    x = (draw(4, 4001, dtype=torch.float64) * scales[:, None]).to(dtype)
    part, residual = split(x)
    assert torch.equal(part.double() + residual.double(), x.double())
    assert residual[:, 1:].count_nonzero() > residual[:, 1:].numel() // 2


def test_a_second_derivative_is_refused():
    x = draw(2, 6).requires_grad_()
    output = output_of("layer_norm_welford_cuda", x, 6)
    (grad,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


# Published defects


def step(name):
    return subject_of(f"layer_norm_backward_published_{name}_cuda")


def test_a_thread_per_row_forgets_the_last_rows():
    gradients = step("thread_per_row")(*backward_case(257, 3))
    assert not gradients[0][256].any()
    assert gradients[0][:256].any(dim=1).all()
    assert not any(g.any() for g in step("thread_per_row")(*backward_case(255, 3)))


def test_a_warp_per_row_adds_to_what_memory_holds(monkeypatch):
    case = backward_case(2, 40)
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)
    right = step("warp_per_row")(*case)[0]
    monkeypatch.setattr(torch, "empty_like", lambda t: torch.full_like(t, 1.0))
    assert not torch.equal(step("warp_per_row")(*case)[0], right)


@pytest.mark.parametrize(
    ("name", "columns"), [("warp_shared", 65), ("block_per_row", 100), ("block_per_row", 1056)]
)
def test_a_barrier_in_a_loop_of_unequal_turns_is_found(name, columns):
    with pytest.raises(machine.MachineFinding, match=r"barrier(.|\n)*_cuda\.cu"):
        step(name)(*backward_case(2, columns))


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("thread_per_row", 256, 3),
        ("warp_shared", 3, 64),
        ("block_per_row", 2, 1024),
        ("block_many_rows", 40, 31),
        ("block_many_rows", 3, 300),
    ],
)
def test_where_its_defects_are_silent_a_step_keeps_its_bound(name, rows, columns):
    judged(f"layer_norm_backward_published_{name}_cuda", "float32", rows=rows, columns=columns)


@pytest.mark.parametrize(("name", "rows", "columns"), [("warp_shared", 9, 512), ("block_many_rows", 40, 700)])
def test_sums_in_half_break_the_bound_of_sums_in_float(name, rows, columns):
    stem = f"layer_norm_backward_published_{name}_cuda"
    found = outcomes(subject_of(stem), "float16", "cpu", rows=rows, columns=columns)
    assert Verdict.FAIL in {o.verdict for o in found}


def test_slots_that_no_warp_wrote_are_read():
    with machine.session(poison=0x41):  # 0x41414141 is 12.08 in float
        poisoned = step("block_per_row")(*backward_case(2, 96))[0]
    with machine.session(poison=0):
        clean = step("block_per_row")(*backward_case(2, 96))[0]
    assert not torch.equal(poisoned, clean)


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [("thread_per_row", 512, 3), ("warp_per_row", 9, 32), ("block_many_rows", 300, 5)],
)
def test_atomic_sums_depend_on_the_order_of_blocks(name, rows, columns):
    seen = set()
    for seed in range(4):
        with machine.session(schedule_seed=seed):
            seen.add(str(bits(step(name)(*backward_case(rows, columns))[1:])))
    assert len(seen) > 1


@pytest.mark.parametrize("name", ["warp_per_row", "block_many_rows"])
def test_half_sums_lose_what_float_sums_keep(name):
    grad, x, weight, mean, rstd = backward_case(70, 64, torch.float16)
    grad = torch.ones_like(grad) * 100  # a sum of 70 * 100 is past the integers of half, 2048
    published = step(name)(grad + 1, x, weight, mean, rstd)[2]
    exact = torch.full((64,), 70.0 * 101).half()
    assert not torch.equal(published, exact)
    corrected = corrected_backward(grad + 1, x, weight, mean.float(), rstd.float())[2]
    assert torch.equal(corrected, exact)


@pytest.mark.parametrize(
    "name", ["thread_per_row", "warp_per_row", "warp_shared", "block_per_row", "block_many_rows"]
)
def test_what_a_published_step_does_not_take_is_refused(name):
    grad, x, weight, mean, rstd = backward_case(4, 32)
    for arguments, message in (
        ((grad.t().contiguous().t(), x, weight, mean, rstd), "contiguous"),
        ((grad, x, None, mean, rstd), "weight"),
        ((grad.double(), x.double(), weight.double(), mean, rstd), "float16 and float32"),
        ((grad[:0], x[:0], weight, mean[:0], rstd[:0]), "at least one row"),
    ):
        with pytest.raises(ValueError, match=message):
            step(name)(*arguments)
