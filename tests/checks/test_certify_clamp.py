"""A clamp asks of the number that it gives: one term may stand for two, each with another product fused."""

import pytest

pytest.importorskip("triton", reason="ptxas and the machine's CUDA compiler come with Triton")

from verifier.cases.recipe import Recipe, Values, build
from verifier.checks.support.certificate_at_shape import certified
from verifier.execution.child_process import Runner
from verifier.ops import op
from verifier.records.certificate import Certificate, Refusal
from verifier.subjects.load_file import load

KERNEL = """
extern "C" __global__ void clamped_norm(float* out, const float* input, int columns, float eps, float share) {
  const float* x = input + blockIdx.x * columns;
  float total = 0.0f, squares = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    total += x[i];
    squares = __fadd_rn(squares, __fmul_rn(x[i], x[i]));
  }
  for (int d = 16; d > 0; d /= 2) {
    total += __shfl_xor_sync(0xffffffffu, total, d);
    squares += __shfl_xor_sync(0xffffffffu, squares, d);
  }
  const float mean = __fmul_rn(total, share);
  const float mean_first = fmaf(-mean, mean, __fmul_rn(squares, share));
  const float squares_first = fmaf(squares, share, -__fmul_rn(mean, mean));
  const float variance = ASKED < 0.0f ? 0.0f : mean_first;
  const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(variance + eps));
  for (int i = threadIdx.x; i < columns; i += blockDim.x)
    out[blockIdx.x * columns + i] = __fmul_rn(__fsub_rn(x[i], mean), rstd);
}
"""
LAUNCH = """
import torch
from verifier import Domain, source, subject, tree

KERNEL = source(__file__).kernel("clamped_norm")

@subject(
    op="layer_norm", language="cuda", variance="textbook", clamp=True, accumulates="float32",
    domain=Domain(max_abs=1e15), dtypes=("float32",), trees=tree(depth=lambda n: n + 5), differentiable=False,
    mean_contraction="mixed",
)
def clamped(input, eps=1e-5):
    x, out, columns = input.detach().contiguous(), torch.empty_like(input), input.shape[-1]
    KERNEL[x.numel() // columns, 32](out, x, columns, eps, 1.0 / columns)
    return out
"""


@pytest.mark.parametrize(("number", "expected"), [("mean_first", Certificate), ("squares_first", Refusal)])
def test_a_clamp_asks_of_the_number_that_it_gives(tmp_path, number, expected):
    (tmp_path / "clamp.cu").write_text(KERNEL.replace("ASKED", number))
    (tmp_path / "clamp.py").write_text(LAUNCH)
    (subject,) = load(tmp_path / "clamp.py").subjects
    recipe = Recipe(rows=3, columns=32, input=Values(seed=0), weight=None, bias=None)
    case = build(op(subject.op), subject, "float32", recipe, gradients=False)
    with Runner(backend="machine") as runner:
        found = certified(subject, case, runner=runner)
    assert isinstance(found, expected)
    if isinstance(found, Refusal):
        assert "of which not all uses fuse the same product" in found.why
