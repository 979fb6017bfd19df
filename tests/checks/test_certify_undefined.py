"""Wrong kernels that hide in what PTX leaves undefined: none is certified."""

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from attacked_kernels import ROOT, STORE, asked, by_assembly, cuda_kernel, decided, refused

from verifier.execution.child_process import Runner
from verifier.records.certificate import Certificate, Refusal

DATA = "nothing decides on data"
DEFINED = "every operation is defined"
RUNS = "the kernel runs to its end, without a race or a stray write"


@pytest.fixture(scope="module")
def runner():
    with Runner(backend="machine") as opened:
        yield opened


ONE = 'int one; asm volatile("mov.u32 %0, %%laneid; and.b32 %0, %0, 0; add.u32 %0, %0, 1;" : "=r"(one));'


def scaled(line):
    """The kernel whose results take a factor that no data decide, 1 in each run of the machine."""
    return cuda_kernel([(STORE, f"    {ONE}\n    {line}\n{STORE.replace('value;', 'value * (float)one;')}")])


@pytest.mark.parametrize(
    ("line", "certified"),
    [
        ("if (threadIdx.x < 16) one = __shfl_sync(0x0000ffffu, one, 10);", True),
        ("if (threadIdx.x < 16) one = __shfl_sync(0x0000ffffu, one, 20);", False),
        ("if (threadIdx.x < 16) one = __shfl_xor_sync(0xffffffffu, one, 16);", False),
        ("if (threadIdx.x < 16) one = 1 + (__ballot_sync(0xffff0000u, one) == 0xffff0000u);", False),
        ("if (threadIdx.x < 16) one = 1 - (__reduce_max_sync(0xffff0000u, one) == 1u);", False),
    ],
    ids=["of_a_member", "of_no_member", "of_a_lane_elsewhere", "vote_of_others", "maximum_of_others"],
)
def test_what_a_collective_leaves_undefined_is_no_constant(tmp_path, runner, line, certified):
    cuda, python = scaled(line)
    found = asked(tmp_path, runner, python, cuda, columns=32)
    decided(found, certified, DEFINED)


@pytest.mark.parametrize(
    ("members", "certified"),
    [
        ("threadIdx.x < 16 ? 0x0000ffffu : 0xffff0000u", True),
        ("threadIdx.x < 16 ? 0x0000ffffu : 0xffffffffu", False),
        ("0xffffffffu << (threadIdx.x == 3)", False),
    ],
    ids=["halves", "half_and_all", "one_lane_but_itself"],
)
@pytest.mark.parametrize(
    "line", ["__shfl_sync(members, one, threadIdx.x)", "__reduce_max_sync(members, (unsigned)one)"]
)
def test_members_that_do_not_name_the_same_members_are_told(tmp_path, runner, members, line, certified):
    """Each lane waits for those that it names to come with its own mask."""
    cuda, python = scaled(f"const unsigned members = {members}; one = {line};")
    found = asked(tmp_path, runner, python, cuda, columns=32)
    decided(found, certified, DEFINED)


@pytest.mark.parametrize(
    ("before", "certified"),
    [
        ("mov.u32 held, 3; and.b32 held, held, 1;", True),
        ("and.b32 held, held, 1;", False),
        ("setp.gt.u32 p, %2, 100; @p mov.u32 held, 1; and.b32 held, held, 1;", False),
        ("min.u32 held, held, 1;", False),
        ("selp.u32 held, 0, 1, p;", False),
        ("addc.u32 held, 1, 0; and.b32 held, held, 1;", False),
    ],
    ids=["written", "never_written", "written_by_others", "least", "predicate", "carry"],
)
def test_what_a_register_holds_that_nothing_was_written_to_is_no_constant(
    tmp_path, runner, before, certified
):
    """On the machine each such factor is 1."""
    registers = "{ .reg .u32 held; .reg .f32 factor; .reg .pred p;"
    cuda, python = by_assembly(
        f"{registers} {before} cvt.rn.f32.u32 factor, held; mul.f32 %0, %1, factor; }}"
    )
    found = asked(tmp_path, runner, python, cuda)
    decided(found, certified, "every operation is recorded", "unknown value")


@pytest.mark.parametrize(
    ("before", "why"),
    [
        ("mov.u32 held, 4; div.u32 held, held, 4;", ""),
        ("setp.gt.u32 p, %2, 100; mov.u32 held, 0; @p div.u32 held, 7, held; mov.u32 held, 1;", ""),
        ("mov.u32 held, 0; div.u32 held, 7, held; min.u32 held, held, 1;", "div.u32"),
        ("mov.u32 held, 0; rem.s32 held, 1, held;", "rem.s32"),
    ],
    ids=["by_four", "by_zero_nowhere", "quotient", "remainder"],
)
def test_an_integer_that_is_divided_by_zero_is_no_constant(tmp_path, runner, before, why):
    registers = "{ .reg .u32 held; .reg .f32 factor; .reg .pred p;"
    cuda, python = by_assembly(
        f"{registers} {before} cvt.rn.f32.u32 factor, held; mul.f32 %0, %1, factor; }}"
    )
    found = asked(tmp_path, runner, python, cuda)
    decided(found, not why, DEFINED, why, "divides by zero")


def test_how_much_shared_memory_a_device_allots_is_no_constant(tmp_path, runner):
    code = "{ .reg .u32 held; .reg .f32 factor; mov.u32 held, %total_smem_size; min.u32 held, held, 0; "
    cuda, python = by_assembly(
        code.replace("%", "%%")
        + "add.u32 held, held, 1; cvt.rn.f32.u32 factor, held; mul.f32 %0, %1, factor; }"
    )
    found = asked(tmp_path, runner, python, cuda)
    refused(found, "every operation is recorded", "unknown value")


BY_RECIPROCAL = ROOT.replace("__fdiv_rn(total, (float)columns)", "__fmul_rn(total, share)")
SHARE = '  float share; asm volatile("{}" : "=f"(share) : "f"((float)columns));\n'


@pytest.mark.parametrize(
    ("opcode", "assumed"),
    [
        ("rcp.rn.f32 %0, %1;", ""),
        ("div.full.f32 %0, 0f3F800000, %1;", "div.full.f32 errs by no more than the PTX ISA says"),
        ("rcp.approx.f32 %0, %1;", None),
    ],
    ids=["rounded", "full", "approximate"],
)
def test_an_approximation_of_constants_is_no_constant(tmp_path, runner, opcode, assumed):
    """On the machine each of these is 1/N, rounded once."""
    declared = ("trees=", 'divide_by_n="reciprocal", mean_contraction="mixed", trees=')
    cuda, python = cuda_kernel([(ROOT, SHARE.format(opcode) + BY_RECIPROCAL)], launch=[declared])
    found = asked(tmp_path, runner, python, cuda)
    if assumed is None:
        assert isinstance(found, Refusal), found.statement
        assert "rcp.approx.f32(40.0)" in found.why
    else:
        assert isinstance(found, Certificate), found
        assert [one for one in found.assumptions if "errs" in one] == [assumed] * bool(assumed)


def test_a_branch_that_an_approximation_of_constants_decides_is_refused(tmp_path, runner):
    leaves = "if (share * 40.0f > 1.5f) { out[blockIdx.x * columns] = 0.0f; __threadfence(); return; }"
    text = f"{SHARE.format('rcp.approx.f32 %0, %1;')}  {leaves}\n{ROOT}"
    cuda, python = cuda_kernel([(ROOT, text)])
    found = asked(tmp_path, runner, python, cuda)
    refused(found, DATA, "a branch is taken by setp")


def test_which_lane_is_elected_is_no_constant(tmp_path, runner):
    code = "{ .reg .u32 held; .reg .f32 factor; .reg .pred p; elect.sync held|p, 0xffffffff; "
    cuda, python = by_assembly(
        code + "add.u32 held, held, 1; cvt.rn.f32.u32 factor, held; mul.f32 %0, %1, factor; }"
    )
    found = asked(tmp_path, runner, python, cuda)
    refused(found, "every operation is recorded", "unknown value")


POLICY = "createpolicy.fractional.L2::evict_last.b64 made, 1.0;"
TIMES = "mul.f32 one, %1, 0f3F8CCCCD;"
LESS = "sub.f32 error, one, two;"
PAST = "setp.ge.u32 p, %2, 100; mov.f32 error, 0f00000000; @p bra PAST; {less} PAST:"


@pytest.mark.parametrize(
    ("times", "less", "certified"),
    [
        (TIMES.replace("mul", "mul.rn"), LESS, True),
        (TIMES, LESS, False),
        (TIMES, "sub.f32 one, one, two; mov.f32 error, one;", False),
        (f"mov.f32 error, %1; {TIMES.replace('%1', 'error')}", LESS, False),
        (TIMES, PAST.format(less=LESS), False),
    ],
    ids=["rounded", "in_block", "own_register", "operand_written_again", "other_block"],
)
def test_a_product_that_ptxas_fuses_is_no_rounded_one_whatever_its_registers(
    tmp_path, runner, times, less, certified
):
    """The result is what it was and 2^24 times the rounding error of a product, if ptxas fuses it."""
    registers = "{ .reg .f32 one, two, error; .reg .pred p; mul.rn.f32 two, %1, 0f3F8CCCCD;"
    cuda, python = by_assembly(f"{registers} {times} {less} fma.rn.f32 %0, error, 0f4B800000, %1; }}")
    found = asked(tmp_path, runner, python, cuda)
    decided(found, certified, "the code is the declared computation")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("ld.param.u32 held, [rms_param_3]; sub.u32 held, held, 39;", ""),
        ("ld.param.u32 held, [rms_param_3+4]; min.u32 held, held, 1; max.u32 held, held, 1;", "parameter"),
        ("ld.param.u32 held, [rms_param_4+32]; setp.eq.u32 p, held, 7; selp.u32 held, 2, 1, p;", "parameter"),
        (f"{POLICY} mov.u32 held, 1;", ""),
        (
            f"{POLICY} mov.b64 moved, made; setp.eq.u64 p, moved, 7; selp.u32 held, 2, 1, p;",
            "createpolicy",
        ),
    ],
    ids=["argument", "behind_it", "behind_all", "policy_of_nothing", "policy_as_a_number"],
)
def test_what_lies_behind_arguments_and_what_policies_hold_is_no_constant(tmp_path, runner, code, why):
    registers = "{ .reg .u32 held; .reg .f32 factor; .reg .pred p; .reg .b64 made, moved;"
    cuda, python = by_assembly(f"{registers} {code} cvt.rn.f32.u32 factor, held; mul.f32 %0, %1, factor; }}")
    found = asked(tmp_path, runner, python, cuda)
    decided(found, not why, RUNS, "the machine lacks", why)


NAN = "mov.f32 factor, 0f7F800000; sub.f32 factor, factor, factor; mov.b32 held, factor;"
DOUBLED = "mov.f32 factor, {0}; add.f32 factor, factor, factor; mov.b32 held, factor; and.b32 held, held, 1;"
MOVED = "setp.lt.u32 q, %2, 100; selp.b32 held, held, 0, q; shr.u32 held, held, 31;"
WORDS = "mov.f64 wide, {0}; {1}.f64 wide, wide, wide; mov.b64 {{low, held}}, wide;"
PAIR = "mov.f32 one, 0f3F800000; cvt.rn.f16x2.f32 pair, one, factor; and.b32 held, pair, 0x8000;"


@pytest.mark.parametrize(
    ("code", "certified"),
    [
        (f"{DOUBLED.format('0f3FC00000')} setp.eq.u32 p, held, 0;", True),
        ("mov.u32 held, 0x7FC00001; setp.ne.u32 p, held, 0;", True),
        (f"{NAN} setp.nan.f32 p, factor, factor;", True),
        (f"{NAN} setp.gt.u32 q, %2, 100; @q shl.b32 held, held, 1; setp.le.u32 p, %2, 100;", True),
        (f"{NAN} setp.lt.s32 p, held, 0;", False),
        (f"{NAN} {MOVED} setp.eq.u32 p, held, 1;", False),
        (f"{DOUBLED.format('0f7FC00001')} setp.eq.u32 p, held, 1;", False),
        (f"{NAN} {PAIR} setp.ne.u32 p, held, 0;", False),
        (f"{WORDS.format('0d3FF8000000000000', 'add')} setp.gt.s32 p, held, 0;", True),
        (f"{WORDS.format('0d7FF0000000000000', 'sub')} setp.lt.s32 p, held, 0;", False),
    ],
    ids=[
        *("number", "written", "asked", "guarded", "sign", "moved", "payload", "pair"),
        *("words_of_a_double", "words_of_a_wide_nan"),
    ],
)
def test_the_bits_of_a_nan_that_was_computed_are_no_constant(tmp_path, runner, code, certified):
    """On the machine each such factor is 1: the bits are those that its host gives."""
    registers = (
        "{ .reg .u32 held, low; .reg .b32 pair; .reg .f32 factor, one; .reg .f64 wide; .reg .pred p, q; "
        "setp.lt.u32 p, %2, 100;"
    )
    after = "selp.f32 factor, 0f3F800000, 0f40000000, p; mul.f32 %0, %1, factor; }"
    cuda, python = by_assembly(f"{registers} {code} {after}")
    found = asked(tmp_path, runner, python, cuda)
    decided(found, certified, DEFINED, "the bits of a NaN")


BY_SHARE = """
extern "C" __global__ void ln(
  float* out, const float* input, const float* weight, const float* bias, int columns, float inv, float eps) {
  const float* x = input + blockIdx.x * columns;
  float total = 0.0f;
  for (int i = threadIdx.x; i < columns; i += 32) total += x[i];
  for (int d = 16; d > 0; d /= 2) total += __shfl_xor_sync(0xffffffffu, total, d);
  const float mean = total * inv;
  float squares = 0.0f;
  for (int i = threadIdx.x; i < columns; i += 32) {
    float c = x[i] - mean;
    squares += __fmul_rn(c, c);
  }
  for (int d = 16; d > 0; d /= 2) squares += __shfl_xor_sync(0xffffffffu, squares, d);
  const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fadd_rn(__fmul_rn(squares, inv), eps)));
  for (int i = threadIdx.x; i < columns; i += 32) {
    float v = __fmul_rn(x[i] - mean, rstd);
    if (weight) v = __fmul_rn(v, weight[i]);
    if (bias) v = __fadd_rn(v, bias[i]);
    out[blockIdx.x * columns + i] = v;
  }
}
"""
LAUNCHED = """
import torch
from verifier import Domain, source, subject, tree
KERNEL = source(__file__).kernel("ln")
@subject(op="layer_norm", language="cuda", variance="two_pass", accumulates="float32",
    domain=Domain(max_abs=1e15, max_kappa=1e3), dtypes=("float32",), trees=tree(depth=lambda n: n + 5),
    mean_contraction="MEAN", divide_by_n="reciprocal", differentiable=False)
def attack(input, weight=None, bias=None, eps=1e-5):
    x, out, columns = input.detach().contiguous(), torch.empty_like(input), input.shape[-1]
    KERNEL[x.numel() // columns, 32](out, x, weight, bias, columns, 1.0 / columns, eps)
    return out
"""


@pytest.mark.parametrize(("declared", "certified"), [("mixed", True), ("none", False)])
def test_a_mean_that_is_a_product_and_subtracted_in_loops_is_not_rounded(
    tmp_path, runner, declared, certified
):
    """ptxas fuses the product with an argument into both loops, which are blocks of their own."""
    found = asked(tmp_path, runner, LAUNCHED.replace("MEAN", declared), BY_SHARE)
    if certified:
        assert isinstance(found, Certificate), found
        assert [proof.claims for proof in found.proofs] == ["EZ", "EZC"]
    else:
        assert isinstance(found, Refusal), found.statement
        assert found.stage == "the code is the declared computation", found


BRANCH = """
  asm volatile("{ .reg .pred p; setp.lt.u32 p, %1, THREADS; @p bra.uni PAST; mov.f32 %0, %0; PAST: }"
    : "+f"(total) : "r"((unsigned)threadIdx.x));
"""


@pytest.mark.parametrize(("threads", "certified"), [(64, True), (16, False)])
def test_a_branch_that_parts_a_warp_is_not_said_to_keep_it_together(tmp_path, runner, threads, certified):
    cuda, python = cuda_kernel([(ROOT, BRANCH.replace("THREADS", str(threads)) + ROOT)])
    found = asked(tmp_path, runner, python, cuda)
    decided(found, certified, DEFINED, "parts the lanes of a warp")


BY_MATRIX = """
  __shared__ alignas(16) float tile[32];
  tile[threadIdx.x] = total;
  __syncthreads();
  LEAVES
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=f"(total)
    : "r"((unsigned)__cvta_generic_to_shared(tile) + 16 * (threadIdx.x % 8)) : "memory");
"""


@pytest.mark.parametrize(("leaves", "certified"), [("", True), ("if (threadIdx.x >= 16) return;", False)])
def test_a_matrix_is_loaded_by_whole_warps(tmp_path, runner, leaves, certified):
    cuda, python = cuda_kernel([(ROOT, BY_MATRIX.replace("LEAVES", leaves) + ROOT)])
    found = asked(tmp_path, runner, python, cuda, columns=16)
    decided(found, certified, DEFINED, "ldmatrix")


IN_FOUR = """  float* s = PLACE; if (threadIdx.x < 4) s[threadIdx.x] = threadIdx.x ? 0.0f : total;
  __syncwarp(); float4 q = *(float4*)s; total = q.x + q.y + q.z + q.w;
"""


@pytest.mark.parametrize(
    ("declared", "place", "certified"),
    [
        ("__shared__ float held[8];", "held + 4", False),
        ("__shared__ __align__(16) float held[8];", "held + 4", True),
        ("__device__ float held[32];", "held + 4 * blockIdx.x", False),
        ("__device__ __align__(16) float held[32];", "held + 4 * blockIdx.x", True),
    ],
    ids=["shared", "shared_aligned", "global", "global_aligned"],
)
def test_an_access_asks_for_no_more_alignment_than_a_variable_is_declared_to_have(
    tmp_path, runner, declared, place, certified
):
    cuda, python = cuda_kernel(
        [(ROOT, IN_FOUR.replace("PLACE", place) + ROOT), ('extern "C"', 'DECLARED\nextern "C"')]
    )
    cuda = cuda.replace("DECLARED", declared if "device" in declared else "")
    cuda = cuda.replace("  float* s", f"  {'' if 'device' in declared else declared}\n  float* s")
    found = asked(tmp_path, runner, python, cuda)
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert "Misaligned" in found.why, found
