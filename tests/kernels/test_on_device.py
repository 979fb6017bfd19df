"""The CUDA subjects on a real device: the proved bounds, the same bits, exact results where there are any."""

import pytest
import torch
from cuda_verdicts import outcomes, output_of, subject_of

from verifier.records.verdict import Verdict

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.usefixtures("compiler"),
    pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="torch sees no CUDA device"),
]

LAYER_NORMS = ("layer_norm_welford_cuda", "layer_norm_two_pass_cuda", "layer_norm_textbook_cuda")
CORRECTED = (*LAYER_NORMS, "layer_norm_backward_cuda", "softmax_cuda", "log_softmax_cuda")
EXTENTS = (
    (1, 1),
    (1, 2),
    (5, 3),
    (4, 17),
    (6, 34),
    (300, 130),
    (7, 1000),
    (9, 1025),
    (33, 4096),
    (2, 60000),
    (3, 32768),
)


def draw(*shape, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).cuda()


def judged(stem, dtype, **recipe):
    subject = subject_of(stem)
    found = outcomes(subject, dtype, "cuda", **recipe)
    verdicts = {o.output: o.verdict for o in found if o.output != "grad_bias" or subject.op == "layer_norm"}
    assert verdicts
    assert set(verdicts.values()) == {Verdict.PASS}, [o for o in found if o.verdict is not Verdict.PASS]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize(("rows", "columns"), EXTENTS)
@pytest.mark.parametrize("stem", CORRECTED)
def test_forward_and_backward_keep_their_bounds(stem, rows, columns, dtype):
    judged(stem, dtype, rows=rows, columns=columns)


@pytest.mark.parametrize(
    ("name", "rows", "columns"),
    [
        ("thread_per_row", 512, 33),
        ("warp_shared", 70, 2048),
        ("block_per_row", 70, 2048),
        ("block_many_rows", 70, 2048),
        ("block_many_rows", 33, 300),
    ],
)
def test_a_published_step_is_right_where_its_defects_are_silent(name, rows, columns):
    judged(f"layer_norm_backward_published_{name}_cuda", "float32", rows=rows, columns=columns)


@pytest.mark.parametrize("stem", LAYER_NORMS)
@pytest.mark.parametrize("columns", [2, 64])
def test_rows_of_two_values_normalize_exactly(stem, columns):
    """mean 5, deviation 2, eps 0: every step of textbook and two-pass is exact, and so is 1 / sqrt(4)."""
    if stem == "layer_norm_welford_cuda" and columns > 2:
        pytest.skip("Welford divides by 3: its steps are not exact")
    sign = torch.tensor([1.0, -1.0]).repeat(3, columns // 2).cuda()
    weight = torch.arange(1.0, columns + 1).cuda()
    output = output_of(stem, 5 + 2 * sign, columns, weight, weight + 1, 0.0)
    assert torch.equal(output, sign * weight + weight + 1)


@pytest.mark.parametrize("stem", ["layer_norm_two_pass_cuda", "layer_norm_textbook_cuda"])
def test_device_and_machine_agree_in_every_bit_of_exact_rows(stem):
    sign = torch.tensor([1.0, -1.0]).repeat(4, 600)
    x = (7 + 4 * sign).half()
    on_device = output_of(stem, x.cuda(), 1200, None, None, 0.0).cpu()
    assert torch.equal(on_device, output_of(stem, x, 1200, None, None, 0.0))


@pytest.mark.parametrize("columns", [34, 1028])
@pytest.mark.parametrize("stem", [*LAYER_NORMS, "softmax_cuda"])
def test_a_layout_changes_no_bit(stem, columns):
    x = draw(8, columns)

    def run(t):
        return output_of(stem, t, -1 if "softmax" in stem else columns)

    plain = run(x)
    wide = torch.full((8, 2 * columns + 1), torch.nan, device="cuda")
    for laid in (x.t().contiguous().t(), wide[:, 1 : columns + 1], wide[:, 1::2]):
        laid.copy_(x)
        assert torch.equal(run(laid), plain)


@pytest.mark.parametrize("columns", [64, 9000])
def test_the_backward_has_the_same_bits_every_time(columns):
    x, grad, weight = draw(700, columns), draw(700, columns, seed=1), draw(columns, seed=2)
    mean, rstd = x.mean(1), x.var(1, unbiased=False).add(1e-5).rsqrt()
    backward = subject_of("layer_norm_backward_cuda")
    first = backward(grad, x, weight, mean=mean, rstd=rstd)
    for _ in range(5):
        again = backward(grad, x, weight, mean=mean, rstd=rstd)
        assert all(map(torch.equal, first, again))


def test_a_launch_follows_torchs_current_stream():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.zeros(64, 4096, device="cuda")
        torch.cuda._sleep(10_000_000)  # cycles: the copy below has not happened when the kernel is queued
        x.copy_(draw(64, 4096))
        output = output_of("layer_norm_two_pass_cuda", x, 4096)
    stream.synchronize()
    assert torch.equal(output, output_of("layer_norm_two_pass_cuda", x, 4096))
    assert output.any()


def test_rows_beyond_32_bit_offsets_are_reached():
    if torch.cuda.mem_get_info()[0] < 10 * 2**30:
        pytest.skip("needs 10 GiB of device memory")
    rows = torch.empty(2**31 + 2**21, dtype=torch.float16, device="cuda").as_strided((3, 1024), (2**30, 1))
    values = draw(3, 1024, dtype=torch.float16)
    rows.copy_(values)
    assert torch.equal(
        output_of("layer_norm_two_pass_cuda", rows, 1024),
        output_of("layer_norm_two_pass_cuda", values, 1024),
    )
