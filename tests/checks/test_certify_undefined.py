"""Wrong kernels that hide in what torch does unseen, in what PTX leaves undefined, and in arguments."""

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from attacked_kernels import asked, cuda_kernel, kernel

from verifier.execution.child_process import Runner
from verifier.records.certificate import Certificate, Refusal

DATA = "nothing decides on data"
DEFINED = "every operation is defined"
RUNS = "the kernel runs to its end, without a race or a stray write"
KEPT = "arguments are left as they are"
UNSEEN = "operations of torch where no recorder sees them"


@pytest.fixture(scope="module")
def runner():
    with Runner(backend="machine") as opened:
        yield opened


OBJECT = """
class Number:
    def __init__(self, tensor):
        self.tensor = tensor

    def __float__(self):
        self.large = float(self.tensor.abs().max()) > 1e4
        return 0.0
"""
LARGE = "large = float(x.abs().max()) > 1e4"
ZEROED = "if large: y.zero_()"
HOST = "torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (
            (
                "try:",
                "    torch.multinomial(x.reshape(-1) - 1e4, 1)",
                "    y.zero_()",
                "except RuntimeError: pass",
            ),
            "multinomial, which raises an error",
        ),
        (
            ("number = Number(x)", "torch.tensor([number], dtype=x.dtype)", "if number.large: y.zero_()"),
            "tensor of objects that are no numbers",
        ),
        (("guard = torch._C._DisableTorchDispatch()", LARGE, "del guard", ZEROED), UNSEEN),
        (
            (
                "python = torch._C.DispatchKeySet(torch._C.DispatchKey.Python)",
                "with torch._C._ExcludeDispatchKeyGuard(python):",
                f"    {LARGE}",
                ZEROED,
            ),
            UNSEEN,
        ),
        (
            (
                f"most = torch.ops.aten.max.default.redispatch({HOST}, x)",
                f"large = torch.ops.aten._local_scalar_dense.default.redispatch({HOST}, most) > 1e4",
                ZEROED,
            ),
            UNSEEN,
        ),
        (
            (
                "count = torch._C._len_torch_dispatch_stack()",
                "modes = [torch._C._pop_torch_dispatch_stack(None) for _ in range(count)]",
                LARGE,
                "for mode in reversed(modes): torch._C._push_on_torch_dispatch_stack(mode)",
                ZEROED,
            ),
            UNSEEN,
        ),
        (
            (
                "with torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.Python, True):",
                f"    {LARGE}",
                ZEROED,
            ),
            UNSEEN,
        ),
        (
            (
                "included = torch._C._dispatch_tls_set_dispatch_key_included",
                "included(torch._C.DispatchKey.Python, False)",
                LARGE,
                "included(torch._C.DispatchKey.Python, True)",
                ZEROED,
            ),
            UNSEEN,
        ),
        (("sys.setprofile(lambda *_: None)", "sys.setprofile(None)"), "setprofile"),
        (("if (x - 0).to_sparse()._nnz() < 3: y.zero_()",), "_nnz"),
    ],
    ids=[
        *("error", "object", "modes_disabled", "key_excluded", "redispatched", "modes_popped"),
        *("key_excluded_by_name", "key_not_included", "profile", "sparse"),
    ],
)
def test_a_wrapper_that_learns_of_data_past_the_recorder_is_refused(tmp_path, runner, lines, why):
    text = kernel({"AHEAD": f"import sys\n{OBJECT}", "AFTER": "\n".join(lines)})
    found = asked(tmp_path, runner, text, columns=12)
    assert isinstance(found, Refusal), found.statement
    assert (found.stage, f"Python asks for {why}" in found.why) == (DATA, True), found.why


@pytest.mark.parametrize(
    "lines",
    [
        ("try:", "    x.t().view(-1)", "except RuntimeError:", "    pass"),
        ("scale = torch.tensor([1.0, 2.0])",),
    ],
    ids=["error_of_a_view", "tensor_of_numbers"],
)
def test_errors_that_shapes_make_and_tensors_of_numbers_tell_nothing(tmp_path, runner, lines):
    found = asked(tmp_path, runner, kernel({"AFTER": "\n".join(lines)}), columns=12)
    assert isinstance(found, Certificate), found


STORE = "    out[blockIdx.x * columns + i] =  value;"
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
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert found.stage == DEFINED, found


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
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert found.stage == DEFINED, found


OWN = STORE + " float* own = (float*)input + blockIdx.x * columns;"


@pytest.mark.parametrize(
    ("store", "certified"),
    [
        ("own[i] = own[i];", True),
        ("own[i] = fminf(own[i], 1e6f);", False),
        ("own[i] = own[i] * 0.5f * 2.0f;", False),
    ],
    ids=["what_it_is", "clamped", "halved_and_doubled"],
)
def test_an_argument_that_rare_data_change_is_told(tmp_path, runner, store, certified):
    """No case that runs has an element that is so large, or subnormal."""
    cuda, python = cuda_kernel([(STORE, f"{OWN} {store}")])
    found = asked(tmp_path, runner, python, cuda)
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, found.why) == (KEPT, "something else is stored in input")


ROOT = "  const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(total, (float)columns) + eps));"
EXCHANGED = """
  __shared__ QUALIFIED float parts[2];
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = total;
  BARRIER
""" + ROOT.replace("total", "parts[0] + parts[1]")
OTHERS = 'if (threadIdx.x < 32) asm volatile("bar.sync 1, 32;"); else asm volatile("bar.sync 2, 32;");'


@pytest.mark.parametrize(
    ("barrier", "qualified", "certified"),
    [
        ("__syncthreads();", "", True),
        ("__syncthreads();", "volatile", True),
        ('asm volatile("bar.sync 1, 64;" ::: "memory");', "", True),
        ("", "volatile", False),
        ("__threadfence_block();", "volatile", False),
        (OTHERS, "", False),
        ('asm volatile("bar.sync 1, 32;" ::: "memory");', "", False),
    ],
    ids=["all", "volatile", "by_number", "volatile_alone", "fence", "barriers_of_their_own", "for_one_warp"],
)
def test_warps_that_nothing_orders_are_refused_even_where_that_is_no_data_race(
    tmp_path, runner, barrier, qualified, certified
):
    text = EXCHANGED.replace("BARRIER", barrier).replace("QUALIFIED", qualified)
    cuda, python = cuda_kernel([(ROOT, text)], launch=[("columns, 32](", "columns, 64](")])
    found = asked(tmp_path, runner, python, cuda, columns=100)
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, "SharedRace" in found.why) == (RUNS, True), found.why


COPIED = """
  __shared__ volatile float kept[32];
  const unsigned at = (unsigned)__cvta_generic_to_shared((float*)kept + threadIdx.x);
  volatile float* from = out + blockIdx.x * columns + threadIdx.x;
  *from = FIRST;
  START
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(at), "l"((float*)from) : "memory");
  CLOSE asm volatile("cp.async.commit_group;" ::: "memory");
  BEFORE
  asm volatile("cp.async.wait_group 0;" ::: "memory");
""" + ROOT.replace("total", "RESULT")


@pytest.mark.parametrize(
    ("places", "certified"),
    [
        ({}, True),
        (
            {
                "FIRST": "0.0f",
                "START": "kept[threadIdx.x] = total;",
                "BEFORE": "total = kept[threadIdx.x];",
                "RESULT": "total",
            },
            False,
        ),
        ({"BEFORE": "kept[threadIdx.x] = 0.0f;"}, False),
        ({"FIRST": "0.0f", "BEFORE": "*from = total;"}, False),
        ({"CLOSE": "if (threadIdx.x < 16)"}, False),
    ],
    ids=["right", "read_before", "written_before", "source_written_before", "closed_by_some"],
)
def test_an_asynchronous_copy_that_nobody_has_waited_for_is_refused(tmp_path, runner, places, certified):
    """On the machine a copy arrives when it is waited for, and each of these kernels is right."""
    text = COPIED
    for place, plain in {"FIRST": "total", "START": "", "CLOSE": "", "BEFORE": ""}.items():
        text = text.replace(place, places.get(place, plain))
    text = text.replace("RESULT", places.get("RESULT", "kept[threadIdx.x]"))
    cuda, python = cuda_kernel([(ROOT, text)])
    found = asked(tmp_path, runner, python, cuda)
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, "asynchronous copy" in found.why) == (RUNS, True), found.why


COPY = """
@triton.jit
def _copy(x, copied, columns, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + column, mask=column < columns)
    tl.store(copied + row * columns + column, value, mask=column < columns)
"""
OF_THE_COPY = """copied = torch.empty_like(x)
_copy[(x.numel() // columns,)](x, copied, columns, BLOCK=triton.next_power_of_2(columns))
x = copied"""
WAITS = "    tl.extra.cuda.gdc_wait()\n"


@pytest.mark.parametrize(
    ("options", "first", "certified"),
    [("", "", True), (", launch_pdl=True", "", False), (", launch_pdl=True", WAITS, True)],
    ids=["in_turn", "early", "early_and_waits"],
)
def test_a_launch_that_need_not_find_what_came_before_is_refused(tmp_path, runner, options, first, certified):
    python = kernel({"AHEAD": COPY, "BEFORE": OF_THE_COPY})
    begins = "columns, eps, BLOCK: tl.constexpr):\n"
    for old, new in ((begins, begins + first), ("float(eps), BLOCK", f"float(eps){options}, BLOCK")):
        assert old in python
        python = python.replace(old, new)
    found = asked(tmp_path, runner, python)
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, "may begin before" in found.why) == (RUNS, True), found.why


def test_a_barrier_of_some_warps_is_refused_since_not_every_race_shows(tmp_path, runner):
    """A third warp has nothing to do."""
    by_two = EXCHANGED.replace("BARRIER", 'asm volatile("bar.sync 1, 64;" ::: "memory");')
    by_two = by_two.replace("QUALIFIED", "").replace("const float rstd", "rstd")
    first, second = "columns; i += blockDim.x) total", "columns; i += blockDim.x) {"
    cuda, python = cuda_kernel(
        [
            (ROOT, f"  float rstd = 0.0f;\n  if (threadIdx.x < 64) {{{by_two}}}"),
            (first, "columns && threadIdx.x < 64; i += 64) total"),
            (second, "columns && threadIdx.x < 64; i += 64) {"),
        ],
        launch=[("columns, 32](", "columns, 96](")],
    )
    found = asked(tmp_path, runner, python, cuda, columns=100)
    assert isinstance(found, Refusal), found.statement
    assert (found.stage, "without the others" in found.why) == (RUNS, True), found


@pytest.mark.parametrize("opcode", ["ld.global.nc.f32", "ldu.global.f32"])
def test_what_the_kernel_wrote_is_not_read_by_the_read_only_cache(tmp_path, runner, opcode):
    again = """
  }
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    float* own = out + blockIdx.x * columns + i;
    float value; asm volatile("OPCODE %0, [%1];" : "=f"(value) : "l"(own) : "memory");
    *own = value;"""
    again = again.replace("OPCODE", opcode)
    cuda, python = cuda_kernel([(STORE, STORE + again)])
    found = asked(tmp_path, runner, python, cuda)
    assert isinstance(found, Refusal), found.statement
    assert (found.stage, "reads by .nc" in found.why) == (RUNS, True), found.why


SHORT = """
  __shared__ float parts[SIZE];
  __shared__ float later[64];
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = total;
  __syncthreads();
  const float all = parts[0] + parts[1];
  __syncthreads();
  later[threadIdx.x] = all;
  __syncthreads();
""" + ROOT.replace("total", "later[63 - threadIdx.x]")


@pytest.mark.parametrize(("size", "certified"), [(2, True), (1, False)])
def test_a_shared_array_that_is_too_short_is_told_where_another_lies_behind_it(
    tmp_path, runner, size, certified
):
    cuda, python = cuda_kernel(
        [(ROOT, SHORT.replace("SIZE", str(size)))], launch=[("columns, 32](", "columns, 64](")]
    )
    found = asked(tmp_path, runner, python, cuda, columns=100)
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, "behind the shared variable" in found.why) == (RUNS, True), found.why


def by_assembly(code):
    """The kernel whose results go through assembly: %0 is the result, %1 what it was, %2 the thread."""
    line = f'float made; asm volatile("{code}" : "=f"(made) : "f"(value), "r"((unsigned)threadIdx.x));'
    return cuda_kernel([(STORE, f"    {line}\n{STORE.replace('value;', 'made;')}")])


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
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, "unknown value" in found.why) == ("every operation is recorded", True), found


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
    if not why:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, why in found.why, "divides by zero" in found.why) == (DEFINED, True, True), found


def test_how_much_shared_memory_a_device_allots_is_no_constant(tmp_path, runner):
    code = "{ .reg .u32 held; .reg .f32 factor; mov.u32 held, %total_smem_size; min.u32 held, held, 0; "
    cuda, python = by_assembly(
        code.replace("%", "%%")
        + "add.u32 held, held, 1; cvt.rn.f32.u32 factor, held; mul.f32 %0, %1, factor; }"
    )
    found = asked(tmp_path, runner, python, cuda)
    assert isinstance(found, Refusal), found.statement
    assert (found.stage, "unknown value" in found.why) == ("every operation is recorded", True), found


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
    assert isinstance(found, Refusal), found.statement
    assert (found.stage, "a branch is taken by setp" in found.why) == (DATA, True), found


def test_which_lane_is_elected_is_no_constant(tmp_path, runner):
    code = "{ .reg .u32 held; .reg .f32 factor; .reg .pred p; elect.sync held|p, 0xffffffff; "
    cuda, python = by_assembly(
        code + "add.u32 held, held, 1; cvt.rn.f32.u32 factor, held; mul.f32 %0, %1, factor; }"
    )
    found = asked(tmp_path, runner, python, cuda)
    assert isinstance(found, Refusal), found.statement
    assert (found.stage, "unknown value" in found.why) == ("every operation is recorded", True), found


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
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert found.stage == "the code is the declared computation", found


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
    if not why:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, "the machine lacks" in found.why, why in found.why) == (RUNS, True, True), found


NAN = "mov.f32 factor, 0f7F800000; sub.f32 factor, factor, factor; mov.b32 held, factor;"
DOUBLED = "mov.f32 factor, {0}; add.f32 factor, factor, factor; mov.b32 held, factor; and.b32 held, held, 1;"
MOVED = "setp.lt.u32 q, %2, 100; selp.b32 held, held, 0, q; shr.u32 held, held, 31;"
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
    ],
    ids=["number", "written", "asked", "guarded", "sign", "moved", "payload", "pair"],
)
def test_the_bits_of_a_nan_that_was_computed_are_no_constant(tmp_path, runner, code, certified):
    """On the machine each such factor is 1: the bits are those that its host gives."""
    registers = (
        "{ .reg .u32 held; .reg .b32 pair; .reg .f32 factor, one; .reg .pred p, q; setp.lt.u32 p, %2, 100;"
    )
    after = "selp.f32 factor, 0f3F800000, 0f40000000, p; mul.f32 %0, %1, factor; }"
    cuda, python = by_assembly(f"{registers} {code} {after}")
    found = asked(tmp_path, runner, python, cuda)
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, "the bits of a NaN" in found.why) == (DEFINED, True), found


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


LAST = "what is stored does not depend on which lane is last"
OF_LANES = """
  SHARED KIND* held = PLACE;
  *held = threadIdx.x % 32 == LANE ? 2 : 1;
  __syncthreads();
""" + ROOT.replace("total", "total * (float)*held")


@pytest.mark.parametrize("lane", [0, 40], ids=["one_lane", "none"])
@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("float", "&kept"),
        ("float", "out + blockIdx.x * columns"),
        ("double", "&kept"),
    ],
    ids=["shared", "global", "double"],
)
def test_lanes_of_a_warp_that_store_other_constants_in_one_place_are_refused(
    tmp_path, runner, kind, place, lane
):
    """On the machine the last lane stays, whose constant is 1."""
    shared = f"__shared__ {kind} kept;" if "kept" in place else ""
    text = OF_LANES.replace("SHARED", shared).replace("KIND", f"volatile {kind}")
    cuda, python = cuda_kernel([(ROOT, text.replace("PLACE", place).replace("LANE", str(lane)))])
    found = asked(tmp_path, runner, python, cuda)
    if lane >= 32:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert found.stage == LAST, found


OUT = "    tl.store(y + row * columns + column, out, mask=inside)"
BUFFER = "kept = torch.zeros(x.numel() // columns, dtype=torch.float32, device=x.device)"


def with_kept(*replaced):
    """The layer norm in Triton whose kernel has a number for each row, `kept`."""
    python = kernel({"BEFORE": BUFFER})
    for old, new in (
        ("columns, eps, BLOCK:", "columns, eps, kept, BLOCK:"),
        ("float(eps), ", "float(eps), kept, "),
    ):
        python = python.replace(old, new)
    for old, new in replaced:
        assert old in python
        python = python.replace(old, new)
    return python


@pytest.mark.parametrize("other", ["2.0", "1.0"])
def test_lanes_of_triton_that_store_other_constants_in_one_place_are_refused(tmp_path, runner, other):
    factor = f"""
    tl.store(kept + row + 0 * column, tl.where(column == 0, {other}, 1.0))
    tl.debug_barrier()
    out *= tl.load(kept + row)
"""
    found = asked(tmp_path, runner, with_kept((OUT, factor + OUT)), columns=128)
    if other == "1.0":
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, "kept" in found.why) == (LAST, True), found


MEAN = "    mean = tl.div_rn(tl.sum(value, axis=0), tl.cast(columns, tl.float32))"
THROUGH_MEMORY = """
    tl.store(kept + row, tl.sum(value, axis=0))
    tl.debug_barrier()
    mean = tl.div_rn(tl.load(kept + row), tl.cast(columns, tl.float32))
    BARRIER
    tl.store(kept + row, mean)
"""


@pytest.mark.parametrize("columns", [40, 256])
@pytest.mark.parametrize(("barrier", "certified"), [("tl.debug_barrier()", True), ("", False)])
def test_a_number_that_one_thread_overwrites_while_others_read_it_is_refused(
    tmp_path, runner, barrier, certified, columns
):
    """All warps go on with the number of their row, and the first one stores another in its place."""
    python = with_kept((MEAN, THROUGH_MEMORY.replace("BARRIER", barrier)))
    found = asked(tmp_path, runner, python, columns=columns)
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, "GlobalRace" in found.why) == (RUNS, True), found


IN_TURNS = """
    for turn in tl.range(0, TURNS):
        place = tl.where(turn % 2 == FIRST, BLOCK - 1 - column, column)
        there = place < columns
        again = tl.load(x + row * columns + place, mask=there, other=0.0).to(tl.float32)
        again = (again - mean) * tl.div_rn(1.0, tl.sqrt_rn(variance + eps))
        if weight is not None:
            again *= tl.load(weight + place, mask=there, other=0.0).to(tl.float32)
        if bias is not None:
            again += tl.load(bias + place, mask=there, other=0.0).to(tl.float32)
        if turn < TURNS - 1:
            again = tl.maximum(again, -50.0)
        tl.store(y + row * columns + place, again, mask=there)
"""


@pytest.mark.parametrize(("first", "certified"), [("2", True), ("0", False)], ids=["its_own", "of_another"])
def test_what_another_warp_has_stored_in_the_turn_before_is_not_overwritten(
    tmp_path, runner, first, certified
):
    """What the last turn stores is right; a warp that is late has stored what the one before made."""
    python = with_kept((OUT, IN_TURNS.replace("FIRST", first)))
    python = python.replace("eps, kept, BLOCK:", "eps, kept, TURNS, BLOCK:").replace(
        "kept, BLOCK=", "kept, 2, BLOCK="
    )
    found = asked(tmp_path, runner, python, columns=128)
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, "GlobalRace" in found.why) == (RUNS, True), found


def test_warps_that_exchange_sums_in_a_tensor_too_large_to_be_watched_are_refused(tmp_path, runner):
    exchanged = EXCHANGED.replace("__shared__ QUALIFIED float parts[2];", "").replace("BARRIER", "")
    cuda, python = cuda_kernel(
        [(ROOT, exchanged), ("int columns, float eps)", "int columns, float eps, float* parts)")],
        launch=[
            ("columns, 32](", "columns, 64]("),
            ("columns, eps)", "columns, eps, torch.empty((64 << 18) + 1, device=x.device))"),
        ],
    )
    found = asked(tmp_path, runner, python, cuda, columns=100)
    assert isinstance(found, Refusal), found.statement
    assert (found.stage, "a watch for races in parts" in found.why) == (RUNS, True), found


FLAGGED = """
  float* mine = flags + blockIdx.x;
  float* other = flags + (blockIdx.x + 1) % gridDim.x;
  float one = 1.0f;
  if (threadIdx.x == 0)
    asm volatile("st.release.gpu.global.f32 [%0], %1;" :: "l"(mine), "f"(one) : "memory");
  __syncthreads();
  if (threadIdx.x == 0)
    asm volatile("ld.acquire.gpu.global.f32 %0, [%1];" : "=f"(one) : "l"(WHOSE) : "memory");
  one = __shfl_sync(0xffffffffu, one, 0);
""" + ROOT.replace("total", "total * one")


@pytest.mark.parametrize(("whose", "certified"), [("mine", True), ("other", False)])
def test_an_acquire_that_need_not_come_after_the_release_is_refused(tmp_path, runner, whose, certified):
    """On the machine all blocks store first, and each finds 1 where 2 was."""
    cuda, python = cuda_kernel(
        [
            (ROOT, FLAGGED.replace("WHOSE", whose)),
            ("int columns, float eps)", "int columns, float eps, float* flags)"),
        ],
        launch=[("columns, eps)", "columns, eps, torch.full((8,), 2.0, device=x.device))")],
    )
    found = asked(tmp_path, runner, python, cuda)
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, "GlobalRace" in found.why) == (RUNS, True), found


BRANCH = """
  asm volatile("{ .reg .pred p; setp.lt.u32 p, %1, THREADS; @p bra.uni PAST; mov.f32 %0, %0; PAST: }"
    : "+f"(total) : "r"((unsigned)threadIdx.x));
"""


@pytest.mark.parametrize(("threads", "certified"), [(64, True), (16, False)])
def test_a_branch_that_parts_a_warp_is_not_said_to_keep_it_together(tmp_path, runner, threads, certified):
    cuda, python = cuda_kernel([(ROOT, BRANCH.replace("THREADS", str(threads)) + ROOT)])
    found = asked(tmp_path, runner, python, cuda)
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, "parts the lanes of a warp" in found.why) == (DEFINED, True), found.why


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
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, "ldmatrix" in found.why) == (DEFINED, True), found.why


IN_BRANCHES = """
  __shared__ volatile float kept[32];
  float one = 1.0f;
  kept[threadIdx.x] = 2.0f;
  __syncwarp();
  if (threadIdx.x < 16) {
    kept[threadIdx.x] = 1.0f;
    asm volatile("" ::: "memory");

  } else {
    asm volatile("" ::: "memory");
    one = kept[threadIdx.x - 16];
  }
""" + ROOT.replace("total", "total * one")


@pytest.mark.parametrize("together", [True, False], ids=["one_after_the_other", "in_branches"])
def test_lanes_of_a_warp_that_have_parted_exchange_nothing(tmp_path, runner, together):
    """The machine runs the lower lanes first, a device those that it likes."""
    text = IN_BRANCHES
    if together:
        text = text.replace("} else {", "}\n  __syncwarp();\n  if (threadIdx.x >= 16) {")
    cuda, python = cuda_kernel([(ROOT, text)])
    found = asked(tmp_path, runner, python, cuda)
    if together:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, "in a branch of its own" in found.why) == (RUNS, True), found
