"""Right kernels in which wrong lines are put, to be certified: none may be."""

import re
import textwrap

from verifier.cases.recipe import Recipe, Values, build
from verifier.checks.support.certificate_at_shape import certified
from verifier.ops import op
from verifier.records.certificate import Certificate, Refusal
from verifier.subjects.load_file import load

LAYER_NORM = """
import random
import numpy as np
import torch
import triton
import triton.language as tl
from verifier import Domain, subject, tree

#AHEAD#

@triton.jit
def _flags(x, flags, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(flags + i, (tl.load(x + i, mask=i < n, other=0.0) > 100.0).to(tl.int8), mask=i < n)

@triton.jit
def _forward(x, y, weight, bias, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    inside = column < columns
    value = tl.load(x + row * columns + column, mask=inside, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(value, axis=0), tl.cast(columns, tl.float32))
    centred = tl.where(inside, value - mean, 0.0)
    variance = tl.div_rn(tl.sum(centred * centred, axis=0), tl.cast(columns, tl.float32))
    #VARIANCE#
    out = centred * tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
    #OUT#
    if weight is not None:
        out *= tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    if bias is not None:
        out += tl.load(bias + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * columns + column, out, mask=inside)

@subject(
    op="layer_norm", language="triton", variance="two_pass", accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3), dtypes=("float16", "float32"),
    trees=tree(depth=lambda n: n), mean_contraction="none", differentiable=False,
)
def attack(input, weight=None, bias=None, eps=1e-5):
    x = input.detach().contiguous()
    w, b = (None if vector is None else vector.detach().contiguous() for vector in (weight, bias))
    y, columns = torch.empty_like(x), x.shape[-1]
    #BEFORE#
    _forward[(x.numel() // columns,)](x, y, w, b, columns, float(eps), BLOCK=triton.next_power_of_2(columns))
    #AFTER#
    return y
"""


def kernel(places):
    """The source of a right layer norm with these lines added at its places."""
    added = []
    for line in LAYER_NORM.splitlines():
        found = re.fullmatch(r"(\s*)#([A-Z]+)#", line)
        added.append(textwrap.indent(places.get(found[2], ""), found[1]) if found else line)
    return "\n".join(added)


RMS_NORM = """
__device__ __noinline__ float factor(float v) { return v > 100.0f ? 0.0f : 1.0f; }
extern "C" __global__ void rms(float* out, const float* input, const float* weight, int columns, float eps) {
  const float* x = input + blockIdx.x * columns;
  float total = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) total += x[i] * x[i];
  for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(MEMBERS, total, d);
  const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(total, (float)columns) + eps));
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    float value = x[i] * rstd;
    if (weight) value *= weight[i];
    out[blockIdx.x * columns + i] = FACTOR value;
  }
}
"""
LAUNCH = """
import torch
from verifier import Domain, source, subject, tree

KERNEL = source(__file__).kernel("rms")

@subject(
    op="rms_norm", language="cuda", variance="rms", accumulates="float32", domain=Domain(max_abs=1e15),
    dtypes=("float32",), trees=tree(depth=lambda n: n + 5), differentiable=False,
)
def attack(input, weight=None, eps=1e-5):
    x, out, columns = input.detach().contiguous(), torch.empty_like(input), input.shape[-1]
    with torch.cuda.stream(STREAM):
        KERNEL[x.numel() // columns, 32](out, x, weight, columns, eps)
    return out
"""


def cuda_kernel(replaced=(), launch=()):
    """The source of a right RMS norm in CUDA C++, and of its launch, with these texts replaced by others."""
    kernel = RMS_NORM.replace("FACTOR", "").replace("MEMBERS", "0xffffffffu")
    wrapper = LAUNCH.replace("STREAM", "None")
    for old, new in replaced:
        assert old in kernel
        kernel = kernel.replace(old, new)
    for old, new in launch:
        assert old in wrapper
        wrapper = wrapper.replace(old, new)
    return kernel, wrapper


STORE = "    out[blockIdx.x * columns + i] =  value;"
ROOT = "  const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(total, (float)columns) + eps));"
"""Lines of that kernel: where a result is stored, and where the root of the mean square is taken."""


def by_assembly(code):
    """The kernel whose results go through assembly: %0 is the result, %1 what it was, %2 the thread."""
    line = f'float made; asm volatile("{code}" : "=f"(made) : "f"(value), "r"((unsigned)threadIdx.x));'
    return cuda_kernel([(STORE, f"    {line}\n{STORE.replace('value;', 'made;')}")])


def asked(folder, runner, python, cuda="", columns=40):
    """What comes of asking for a certificate of the subject in these sources, at 3 rows in float32."""
    (folder / "attack.cu").write_text(cuda)
    (folder / "attack.py").write_text(python)
    (subject,) = load(folder / "attack.py").subjects
    recipe = Recipe(rows=3, columns=columns, input=Values(seed=0))
    case = build(op(subject.op), subject, "float32", recipe, gradients=False)
    return certified(subject, case, runner=runner)


def refused(found, stage, *words):
    """Demand a refusal at a stage, which says these words."""
    assert isinstance(found, Refusal), found.statement
    assert found.stage == stage, found
    assert [word for word in words if word not in found.why] == [], found


def decided(found, certified, stage, *words):
    """Demand a certificate, or a refusal at a stage, which says these words."""
    if certified:
        assert isinstance(found, Certificate), found
    else:
        refused(found, stage, *words)
