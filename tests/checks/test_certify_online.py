"""Online softmax: kernels that rescale rightly are certified, wrong ones refused, whatever they get wrong."""

import textwrap

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from checks_support import machine_runner

from verifier.cases.recipe import Recipe, Values, build
from verifier.checks.support.certificate_at_shape import certified
from verifier.ops import op
from verifier.records.certificate import Certificate, Refusal
from verifier.subjects.load_file import load

HEAD = """
import torch
import triton
import triton.language as tl
from verifier import subject, tree

LOWEST = tl.constexpr(-3.4028234663852886e38)
NONE = tl.constexpr(float("-inf"))

@triton.jit
def _joined(m_a, s_a, m_b, s_b):
    m = tl.maximum(m_a, m_b)
    return m, s_a * tl.exp(m_a - m) + s_b * tl.exp(m_b - m)

@triton.jit
def _forward(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    x += row * columns
    y += row * columns
"""
TAIL = """
    for start in range(0, columns, BLOCK):
        inside = start + lane < columns
        value = tl.load(x + start + lane, mask=inside, other=NONE).to(tl.float32)
        tl.store(y + start + lane, tl.div_rn(tl.exp(value - highest), total), mask=inside)

@subject(
    op="softmax", language="triton", variance="softmax", accumulates="float32", formula="online",
    dtypes=("float16", "float32"), trees=tree(depth=lambda n: n), differentiable=False,
)
def attack(input, dim):
    x = input.detach().movedim(dim, -1).contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    _forward[(x.numel() // columns,)](x, y, columns, BLOCK=8, num_warps=1)
    return y.movedim(-1, dim)
"""
CHOOSES = """
value = tl.load(x + lane, mask=lane < columns, other=NONE).to(tl.float32)
top = tl.maximum(value, LOWEST)
lanes = tl.exp(value - top)
for start in range(BLOCK, columns, BLOCK):
    value = tl.load(x + start + lane, mask=start + lane < columns, other=NONE).to(tl.float32)
    above = value - top
    grows = above > 0.0
    factor = tl.exp(tl.where(grows, -above, above))
    lanes = tl.where(grows, lanes * factor + 1.0, lanes + factor)
    top = tl.where(grows, value, top)
highest = tl.max(top, axis=0)
top = tl.where(lanes > 0.0, top, highest)
total = tl.sum(lanes * tl.exp(top - highest), axis=0)
"""
RESCALES = """
top = tl.full((BLOCK,), NONE, tl.float32)
lanes = tl.zeros((BLOCK,), tl.float32)
for start in range(0, columns, BLOCK):
    value = tl.load(x + start + lane, mask=start + lane < columns, other=NONE).to(tl.float32)
    larger = tl.maximum(top, value)
    lanes = lanes * tl.exp(top - larger) + tl.exp(value - larger)
    top = larger
highest = tl.max(top, axis=0)
total = tl.sum(lanes * tl.exp(top - highest), axis=0)
"""
BY_TILES = """
highest = NONE
total = 0.0
for start in range(0, columns, BLOCK):
    value = tl.load(x + start + lane, mask=start + lane < columns, other=NONE).to(tl.float32)
    larger = tl.maximum(highest, tl.max(value, axis=0))
    total = total * tl.exp(highest - larger) + tl.sum(tl.exp(value - larger), axis=0)
    highest = larger
"""
IN_PAIRS = RESCALES.partition("highest")[0] + "highest, total = tl.reduce((top, lanes), 0, _joined)\n"
RIGHT = {"chooses": CHOOSES, "rescales": RESCALES, "by tiles": BY_TILES, "in pairs": IN_PAIRS}
COLUMNS = 21  # two tiles and a part of one
CUDA_SUBJECT = """
import torch
from verifier import source, subject, tree

KERNEL = source(__file__).kernel("online")

@subject(
    op="softmax", language="cuda", variance="softmax", accumulates="float32", formula="online",
    dtypes=("float32",), trees=tree(depth=lambda n: n), differentiable=False,
)
def attack(input, dim):
    x = input.detach().movedim(dim, -1).contiguous()
    y, columns = torch.empty_like(x), x.shape[-1]
    KERNEL[x.numel() // columns, 64](y, x, columns)
    return y.movedim(-1, dim)
"""
CUDA_KERNEL = """
__device__ void join(float& m, float& s, float other, float more) {
  const float larger = fmaxf(m, other);
  s = __fadd_rn(__fmul_rn(s, expf(m - larger)), __fmul_rn(more, expf(other - larger)));
  m = larger;
}

extern "C" __global__ void online(float* out, const float* input, int columns) {
  __shared__ float tops[2], sums[2];
  const float* x = input + (long long)blockIdx.x * columns;
  float m = x[threadIdx.x], s = 1.0f;
  for (int i = threadIdx.x + blockDim.x; i < columns; i += blockDim.x) join(m, s, x[i], 1.0f);
  for (int distance = 16; distance > 0; distance /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, m, distance);
    join(m, s, other, __shfl_xor_sync(0xffffffffu, s, distance));
  }
  if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = m, sums[threadIdx.x / 32] = s;
  __syncthreads();
  m = tops[0], s = sums[0];
  join(m, s, tops[1], sums[1]);
  for (int i = threadIdx.x; i < columns; i += blockDim.x)
    out[(long long)blockIdx.x * columns + i] = __fdiv_rn(expf(x[i] - m), s);
}
"""
DECLARED = "the code is the declared computation"
CUDA_COLUMNS = 70  # each of 64 threads has an element


def source(body):
    """The source of a kernel whose sweep is `body`."""
    return HEAD + textwrap.indent(body, "    ") + TAIL


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    with machine_runner() as runner:

        def asked(text, dtype="float32", columns=COLUMNS, beside=""):
            path = tmp_path_factory.mktemp("online") / "attack.py"
            path.write_text(text)
            if beside:
                path.with_suffix(".cu").write_text(beside)
            (subject,) = load(path).subjects
            recipe = Recipe(rows=2, columns=columns, input=Values(seed=0))
            case = build(op(subject.op), subject, dtype, recipe, gradients=False)
            return certified(subject, case, runner=runner)

        yield asked


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_kernel_is_certified_however_it_rescales(ask, name):
    found = ask(source(RIGHT[name]), "float16" if name == "chooses" else "float32")
    assert isinstance(found, Certificate), found
    assert all(one.terms == COLUMNS and one.depth < COLUMNS for proof in found.proofs for one in proof.sums)


LOAD, GROWN = "x + start + lane, mask=start + lane < columns", "tl.exp(tl.where(grows, -above, above))"
NEW_TOP, LATER = "top = tl.where(grows, value, top)", "total = tl.where(larger > 1e6, total + total, total)"
WRONG = [
    # sums that are not rescaled, by the wrong factor, twice, or to a maximum of before
    (CHOOSES, "lanes * factor + 1.0", "lanes + 1.0"),
    (RESCALES, "lanes * tl.exp(top - larger) +", "lanes +"),
    (BY_TILES, "total * tl.exp(highest - larger)", "total"),
    (BY_TILES, "highest - larger", "larger - highest"),
    (CHOOSES, "lanes * tl.exp(top - highest)", "lanes"),
    (CHOOSES, "lanes * tl.exp(top - highest)", "lanes * tl.exp(2.0 * (top - highest))"),
    (BY_TILES, "    highest = larger", "    highest = larger if start < 16 else highest"),
    # maxima that are merged wrongly, or lack a lane
    (CHOOSES, NEW_TOP, f"top = tl.where(lane < 7, {NEW_TOP[6:]}, top)"),
    (CHOOSES, "tl.max(top, axis=0)", "tl.max(tl.where(lane == 5, NONE, top), axis=0)"),
    (RESCALES, "tl.max(top, axis=0)", "tl.min(top, axis=0)"),
    (RESCALES, "tl.max(top, axis=0)", "tl.max(top.to(tl.float16).to(tl.float32), axis=0)"),
    (CHOOSES, "above > 0.0", "above > 1e-30"),
    (CHOOSES, "above > 0.0", "above < 0.0"),
    (CHOOSES, "lanes > 0.0", "lanes > 1.0"),
    # elements that are taken twice, or not at all
    (RESCALES, LOAD, f"{LOAD} - 1"),
    (BY_TILES, LOAD, LOAD.replace("lane,", "lane // 2,")),
    (CHOOSES, "range(BLOCK, columns, BLOCK)", "range(0, columns, BLOCK)"),
    (CHOOSES, "lanes * factor + 1.0", "lanes * factor"),
    (CHOOSES, "lanes + factor", "lanes + 2.0 * factor"),
    (IN_PAIRS, "(top, lanes)", "(top, tl.where(lane == 3, lanes + lanes, lanes))"),
    # an ulp beside the scale, and roundings between
    (CHOOSES, "factor + 1.0", "factor + 1.00000012"),
    (RESCALES, "tl.exp(top - larger)", "tl.exp2((top - larger) * 1.44269514)"),
    (RESCALES, "tl.exp(top - larger)", "tl.exp2(top * 1.44269504 - larger * 1.44269504)"),
    (BY_TILES, "tl.exp(highest - larger)", "(tl.exp(highest - larger) * 0.99999994)"),
    (CHOOSES, GROWN, f"{GROWN}.to(tl.float16).to(tl.float32)"),
    (RESCALES, "    top = larger", "    top, lanes = larger, lanes.to(tl.bfloat16).to(tl.float32)"),
    # what rare data alone show
    (BY_TILES, "    highest = larger", f"    highest, total = larger, {LATER[8:]}"),
    (CHOOSES, GROWN, f"tl.maximum({GROWN}, 1e-30)"),
]


@pytest.mark.parametrize(("body", "before", "after"), WRONG, ids=range(len(WRONG)))
def test_a_kernel_that_rescales_wrongly_is_refused(ask, body, before, after):
    assert before in body
    found = ask(source(body.replace(before, after)))
    assert isinstance(found, Refusal), found
    assert found.stage == DECLARED


@pytest.mark.parametrize("after", ["tl.exp(m_b - m_a)", "tl.exp(m - m_b)", "1.0"])
def test_a_merge_that_rescales_one_sum_wrongly_is_refused(ask, after):
    text, before = source(IN_PAIRS), "tl.exp(m_b - m)"
    assert before in text
    assert isinstance(ask(text.replace(before, after)), Refusal)


@pytest.mark.parametrize(
    ("before", "after", "stage"),
    [
        ("online", "online", ""),
        ("  __syncthreads();\n", "", "the kernel runs to its end, without a race or a stray write"),
        ("join(m, s, tops[1], sums[1])", "m = fmaxf(m, tops[1]), s += sums[1]", DECLARED),
        ("join(m, s, tops[1], sums[1])", "join(m, s, tops[0], sums[1])", DECLARED),
        ("expf(other - larger)", "expf(other - m)", DECLARED),
        ("distance = 16", "distance = 8", DECLARED),
    ],
)
def test_threads_that_join_through_shared_memory_need_a_barrier_and_both_maxima(ask, before, after, stage):
    assert before in CUDA_KERNEL
    found = ask(CUDA_SUBJECT, columns=CUDA_COLUMNS, beside=CUDA_KERNEL.replace(before, after))
    assert getattr(found, "stage", "") == stage, found
