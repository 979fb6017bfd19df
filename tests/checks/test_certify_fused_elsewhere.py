"""Wrong kernels that are right if products are fused where the text says so, and not where ptxas does."""

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from attacked_kernels import STORE, asked, cuda_kernel, refused

from verifier.execution.child_process import Runner

FORM = "the code is the declared computation"
TURNS = "products are fused in every turn of a loop or in none"


@pytest.fixture(scope="module")
def runner():
    with Runner(backend="machine") as opened:
        yield opened


def added(code):
    """The kernel with something added, many times, that is zero on the machine: `extra`, which code sets."""
    first = "  for (int d = 16; d > 0; d /= 2)"
    return cuda_kernel(
        [
            (first, f"  float extra = 0.0f;\n{code}\n{first}"),
            (STORE, STORE.replace("value;", "__fadd_rn(value, __fmul_rn(extra, 1048576.0f));")),
        ]
    )


def by_assembly(between, code="sub.f32 %0, p, %3;"):
    """The rounding error of a product, with something between the product and the sum that may take it."""
    return f"""
  const float u = x[1], v = x[2], q = __fmul_rn(u, v);
  asm volatile("{{ .reg .f32 p, d; mul.f32 p, %1, %2; {between} {code} }}"
               : "=f"(extra) : "f"(u), "f"(v), "f"(q));
"""


IN_THE_NEXT_TURN = """
  float p = 0.0f, q = 0.0f;
  #pragma unroll 1
  for (int i = 0; i + 1 < columns; i++) {
    extra = __fadd_rn(extra, p - q);
    const float u = x[i], v = x[i + 1];
    if (threadIdx.x == i) out[blockIdx.x * columns + i] = u;
    p = u * v; q = __fmul_rn(u, v);
  }
"""
IN_FOUR_TURNS = """
  const float u = x[1], v = x[2], p = u * v, q = __fmul_rn(u, v);
  #pragma unroll 1
  for (int i = 0; i < 4; i++) { const float w = x[i]; extra = __fadd_rn(extra, (p + w) - (q + w)); }
"""

BEHIND_A_BRANCH = """
  const float u = x[1], v = x[2], q = __fmul_rn(u, v), p = u * v;
  if (%s) out[0] = p + x[3];
  extra = p - q;
"""


@pytest.mark.parametrize(
    ("code", "stage"),
    [
        (by_assembly("L1:"), FORM),
        (by_assembly("bra L1; L1:"), FORM),
        (by_assembly("mul.f32 d, p, p;"), FORM),
        (by_assembly("bra L2; L1: mov.f32 p, %1; bra L1; L2:"), TURNS),
        (IN_THE_NEXT_TURN, TURNS),
        (IN_FOUR_TURNS, TURNS),
        (by_assembly("fma.rn.f32 d, p, p, p;"), FORM),
        (by_assembly("mul.f32 d, %1, %1; add.f32 d, p, d;"), FORM),
        (by_assembly(".reg .pred z; setp.ne.f32 z, 0f3F800000, 0f3F800000; @z exit;"), TURNS),
        (BEHIND_A_BRANCH % "warpSize != 32", TURNS),
        (BEHIND_A_BRANCH % "columns != columns / 2 * 2 && columns == 64", FORM),
    ],
    ids=[
        *("label", "jump", "unused", "only_way", "next_turn", "four_turns", "unused_fma", "unused_sum"),
        *("exit", "warp_size", "never"),
    ],
)
def test_a_product_that_ptxas_fuses_into_a_sum_elsewhere_does_not_cancel(tmp_path, runner, code, stage):
    """Whether it fuses past a branch that is never taken is not asked: the product less itself is no zero."""
    cuda, python = added(code)
    refused(asked(tmp_path, runner, python, cuda, columns=64), stage)


@pytest.mark.parametrize(
    "between",
    [
        "membar.cta;",
        "div.rn.f32 d, %1, %2; @!always st.global.f32 [%4], d;",
        "@!always st.global.f32 [%4], %1;",
    ],
    ids=["fence", "division", "guarded_store"],
)
def test_a_sum_that_ptxas_fuses_in_one_place_alone_does_not_cancel(tmp_path, runner, between):
    def sum_with(between):
        text = "mul.f32 p, %1, %2; " + between + " add.f32 %0, p, %3;"
        ahead = ".reg .f32 p, d; .reg .pred always; setp.ne.u64 always, %4, 0;"
        return f'asm volatile("{{ {ahead} {text} }}" : "=f"(s) : "f"(u), "f"(v), "f"(w), "l"(out));'

    cuda, python = added(
        f"""
  const float u = x[threadIdx.x & 15], v = x[16 + (threadIdx.x & 15)], w = x[5];
  float s;
  if (threadIdx.x < 16) {sum_with(between)}
  else {sum_with("")}
  extra = __fadd_rn(s, -__shfl_xor_sync(0xffffffffu, s, 16));
"""
    )
    found = asked(tmp_path, runner, python, cuda, columns=64)
    refused(found, FORM, "which ptxas may fuse in one place alone, would cancel")
