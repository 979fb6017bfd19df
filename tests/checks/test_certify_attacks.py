"""Wrong kernels that were written to be certified: none may be, and the reason is named."""

import numpy as np
import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from attacked_kernels import LAUNCH, RMS_NORM, kernel
from checks_support import machine_runner

from verifier.cases.recipe import Recipe, Values, build
from verifier.checks.support.certificate_at_shape import certified
from verifier.execution.child_process import Runner
from verifier.ops import op
from verifier.records.certificate import Certificate, Refusal
from verifier.subjects.load_file import load

PTX = 'tl.inline_asm_elementwise("{}", "=f,f", [{}], dtype=tl.float32, is_pure={}, pack=1)'  # on float32


def asking(runner, folders):
    """Return what asks a runner for a certificate of the kernel with these lines at its places."""

    def asked(replaced=(), **places):
        path = folders.mktemp("attack") / "attack.py"
        text = kernel(places)
        for old, new in replaced:
            assert old in text
            text = text.replace(old, new)
        path.write_text(text)
        (subject,) = load(path).subjects
        recipe = Recipe(rows=3, columns=12, input=Values(seed=0))
        case = build(op(subject.op), subject, "float32", recipe, gradients=False)
        return certified(subject, case, runner=runner)

    return asked


@pytest.fixture(scope="module")
def ask(tmp_path_factory):
    with machine_runner() as runner:
        yield asking(runner, tmp_path_factory)


@pytest.fixture(scope="module")
def ask_apart(tmp_path_factory):
    """The same in processes of their own, for wrappers that do what a process may remember."""
    with Runner(backend="machine") as runner:
        yield asking(runner, tmp_path_factory)


def test_without_an_attack_the_kernel_is_certified(ask):
    assert isinstance(ask(), Certificate)


DATA = "nothing decides on data"
RECORDED = "every operation is recorded"
SHAPE = "results have the shape and dtype that the op demands"
CALLS = "each call gives the same, in memory of its own"


def test_sums_of_two_products_of_which_either_is_fused_do_not_cancel(ask):
    lines = (
        "first = tl.fma(value, mean, centred * variance)",
        "second = tl.fma(centred, variance, value * mean)",
        "out += (first - second) * 1024.0",
    )
    found = ask(OUT="\n".join(lines))
    assert isinstance(found, Refusal)
    assert "of which not all uses fuse the same product" in found.why


def test_a_rounding_error_and_its_negative_do_not_cancel(ask):
    lines = (
        "product = value * mean",
        "first = tl.fma(value, mean, -product)",
        "second = tl.fma(-value, mean, product)",
        "out += (first - second) * 1024.0",
    )
    found = ask(OUT="\n".join(lines))
    assert isinstance(found, Refusal)
    assert "of which not all uses fuse the same product" in found.why


def test_a_product_of_constants_is_not_rounded_where_it_is_fused(ask):
    eps = 'tl.inline_asm_elementwise("fma.rn.f32 $0, 0f3F9B5C64, 0f370A39B9, $1;", "=f,f", [variance], '
    eps += "dtype=tl.float32, is_pure=True, pack=1)"
    found = ask([("variance + eps", eps)])
    assert isinstance(found, Refusal)
    assert "fma.f32(1.21" in found.why


@pytest.mark.parametrize(
    ("places", "stage", "why"),
    [
        ({"AFTER": "if np.abs(x.cpu().numpy()).max() > 100: y.zero_()"}, DATA, "numpy"),
        ({"AFTER": "if np.asarray(x.cpu()).max() > 100: y.zero_()"}, DATA, "numpy"),
        ({"AFTER": "if max(x.view(-1).tolist()) > 100: y.zero_()"}, DATA, "tolist"),
        ({"AFTER": "if np.from_dlpack(x.cpu()).max() > 100: y.zero_()"}, DATA, "dlpack"),
        (
            {
                "AFTER": "flags = torch.empty(x.numel(), dtype=torch.int8, device=x.device)\n"
                "_flags[(1,)](x, flags, x.numel(), BLOCK=64)\n"
                "if flags.nonzero().shape[0]: y.zero_()"
            },
            DATA,
            "nonzero",
        ),
        (
            {
                "VARIANCE": f"place = {PTX.format('mov.u32 $0, %smid;', 'variance', False)}\n"
                "variance = tl.where(place.to(tl.int32, bitcast=True) > 100, 2.0 * variance, variance)"
            },
            RECORDED,
            "unknown value",
        ),
        ({"AFTER": "y = y.reshape(-1)"}, SHAPE, "output has shape (36,); (3, 12) is expected"),
        ({"AFTER": "y = y.reshape(12, 3)"}, SHAPE, "output has shape (12, 3)"),
        ({"AFTER": "y = y[:1]"}, SHAPE, "output has shape (1, 12)"),
        ({"AFTER": "y = y.view(torch.int32)"}, SHAPE, "output has dtype int32"),
        ({"AFTER": "y = None"}, SHAPE, "output is None"),
        ({"AHEAD": "KEPT = {}", "BEFORE": "y = KEPT.setdefault(x.shape, y)"}, CALLS, "the next call writes"),
        ({"AHEAD": "N = []", "AFTER": "N.append(y if N else y.zero_())"}, CALLS, "in a call before"),
        ({"AHEAD": "N = []", "AFTER": "N.append(0)\nif len(N) == 2: y.zero_()"}, CALLS, "in a call before"),
        ({"AHEAD": "N = []", "AFTER": "N.append(0)\nif len(N) == 3: y.zero_()"}, CALLS, "in a call before"),
    ],
    ids=[
        "numpy", "array", "tolist", "dlpack", "shape_by_data", "multiprocessor", "flat", "transposed",
        "one_row", "integers", "nothing", "one_buffer_for_all_calls", "first_call_differs",
        "second_call_differs", "third_call_differs",
    ],
)  # fmt: skip
def test_a_wrapper_that_hides_what_it_does_is_refused(ask_apart, places, stage, why):
    found = ask_apart(**places)
    assert isinstance(found, Refusal), found.statement
    assert found.stage == stage
    assert why in found.why


READ = "large.append(float(x.abs().max()))"
ZEROED = "if large[0] > 1e4: y.zero_()"
HELD = "if h.max() > 1e4: y.zero_()"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (
            (f"t = threading.Thread(target=lambda: {READ})", "t.start()", "t.join()", ZEROED),
            "a thread of its",
        ),
        (
            ("t = threading.Thread(target=lambda: y.add_(1e-3))", "t.start()", "t.join()"),
            "a thread of its own",
        ),
        (("if os.fork() == 0: os._exit(0)",), "a process of its own"),
        (("if 'e+' in str(x[0, 0]): y.zero_()",), "__repr__"),
        (("if b'G' in pickle.dumps(x): y.zero_()",), "__reduce_ex__"),
        (("if b'G' in pickle.dumps(x.untyped_storage()): y.zero_()",), "__reduce_ex__ of a storage"),
        (
            (
                "x.untyped_storage()._write_file(held := tempfile.TemporaryFile(), False, True, 4)",
                "if b'G' in held.read(): y.zero_()",
            ),
            "_write_file of a storage",
        ),
        (("y.untyped_storage()[0] = 0",), "__setitem__ of a storage"),
        (("held = torch._C._to_dlpack(x.cpu())",), "_to_dlpack"),
        (("held = torch.to_dlpack(x.cpu())",), "to_dlpack"),
        (("torch.save(x, held := io.BytesIO())", "if b'G' in held.getvalue(): y.zero_()"), "__reduce_ex__"),
        ((f"with _disable_current_modes(): {READ}", ZEROED), "operations of torch where no recorder"),
        (("h = np.zeros((3, 12), np.float32)", "torch.from_numpy(h).copy_(x)", HELD), "from_numpy"),
        (("h = np.zeros((3, 12), np.float32)", "torch.as_tensor(h).copy_(x)", HELD), "as_tensor"),
        (
            (
                "h = bytearray(144)",
                "torch.frombuffer(h, dtype=torch.float32).reshape(3, 12).copy_(x)",
                "if h[3] > 0x60: y.zero_()",
            ),
            "frombuffer",
        ),
    ],
    ids=[
        "thread_reads",
        "thread_writes",
        "fork",
        "text",
        "pickle",
        "storage",
        "storage_to_file",
        "byte_of_storage",
        "capsule",
        "capsule_of_torch",
        "save",
        "modes_disabled",
        "array_of_numpy",
        "tensor_as_array",
        "buffer",
    ],
)
def test_a_wrapper_that_reads_or_writes_where_no_recorder_looks_is_refused(ask_apart, lines, why):
    modes = "from torch.utils._python_dispatch import _disable_current_modes"
    ahead = f"import io, os, pickle, tempfile, threading\n{modes}"
    found = ask_apart(AHEAD=ahead, AFTER="\n".join(("large = []", *lines)))
    assert isinstance(found, Refusal), found.statement
    assert (found.stage, f"asks for {why}" in found.why) == (DATA, True), found.why


TWO_PROGRAMS = (
    ("_forward[(x.numel() // columns,)]", "_forward[(2 * (x.numel() // columns),)]"),
    ("row = tl.program_id(0)", "row = tl.program_id(0) // 2"),
)
STORED = "    tl.store(y + row * columns + column, OUT, mask=inside)"
CLAMPED = "tl.maximum(out, -50.0)"  # no case that runs has so small a result
RUNS = "the kernel runs to its end, without a race or a stray write"


@pytest.mark.parametrize(
    ("stored", "stage"),
    [
        ("    out = tl.where(tl.program_id(0) % 2 == 0, OTHER, out)\n" + STORED, "what is stored"),
        (
            "    if tl.program_id(0) % 2 == 0:\n    "
            + STORED.replace("OUT", "OTHER")
            + "\n    else:\n    "
            + STORED,
            RUNS,
        ),
    ],
    ids=["by_one_instruction", "by_two"],
)
def test_programs_that_store_equal_numbers_in_one_place_may_store_others(ask, stored, stage):
    """The machine lets the odd program be the last one; a device may not."""
    lines = stored.replace("OTHER", CLAMPED).replace("OUT", "out")
    found = ask(replaced=(*TWO_PROGRAMS, (STORED.replace("OUT", "out"), lines)))
    assert isinstance(found, Refusal), found.statement
    assert found.stage.startswith(stage), found


def test_programs_that_store_the_same_expression_by_one_instruction_do_not_differ(ask):
    assert isinstance(ask(replaced=TWO_PROGRAMS), Certificate)


def rounded(code, *values):
    registers = ",".join("f" * len(values))
    asked = f'tl.inline_asm_elementwise("{code}", "=f,{registers}", [{", ".join(values)}]'
    return f"{asked}, dtype=tl.float32, is_pure=True, pack=1)"


BYTE = (
    "{ .reg .b32 a; .reg .f32 g; mov.b32 a, $1; shr.u32 a, a, 24; cvt.u32.u8 a, a; "
    "mov.b32 g, a; mov.f32 $0, g; }"
)
NARROW = BYTE.replace("cvt.u32.u8 a, a", ".reg .b16 h; cvt.u8.u32 h, a; mov.b32 a, {h, 0}")


@pytest.mark.parametrize("code", [BYTE, NARROW], ids=["read", "made"])
def test_a_byte_of_data_is_no_constant(ask, code):
    """The largest byte of a number's bits, as a subnormal number, is taken to where it can be added."""
    add = "out += tl.maximum(byte * 1.2676506e30 * 5.62949953e14 - 250.0, 0.0)"  # 0 in every case that runs
    found = ask(OUT=f"byte = {rounded(code, 'value')}\n{add}")
    assert (found.stage, "unknown value" in found.why) == (RECORDED, True)


@pytest.mark.parametrize(
    ("uses", "stage", "why"),
    [
        ("selp.f32 $0, 0f00000000, $1, p;", RECORDED, "unknown value"),
        ("mov.f32 $0, $1; @p mov.f32 $0, 0f00000000;", DATA, "guard"),
    ],
)
def test_which_lanes_are_active_together_is_no_constant(ask, uses, stage, why):
    """No warp of the machine has 7 active lanes alone; a device may let some go ahead."""
    active = "{ .reg .b32 a; .reg .pred p; activemask.b32 a; setp.eq.u32 p, a, 7;"
    found = ask(OUT=f"out = {rounded(f'{active} {uses} }}', 'out')}")
    assert (found.stage, why in found.why) == (stage, True), found.why


def test_what_takes_four_operands_is_unknown(ask):
    """Bit 0 of a result is cleared."""
    code = "{ .reg .b32 a; mov.b32 a, $1; bfi.b32 a, 0, a, 0, 1; mov.b32 $0, a; }"
    found = ask(OUT=f"out = {rounded(code, 'out')}")
    assert (found.stage, "unknown value" in found.why) == (RECORDED, True), found.why


REST = f"rest = {rounded('sub.rn.f32 $0, $1, $2;', 'out', 'part')}"
PART = f"part = {rounded('mul.rn.f32 $0, $1, 0f3F333333;', 'out')}"


@pytest.mark.parametrize(
    "out",
    [
        "out += 1e20 * tl.fma(centred, centred, -(centred * centred))",
        f"{PART}\nout = part + {rounded('fma.rn.f32 $0, $1, 0fBF333333, $1;', 'out')}",
        f"{PART}\n{REST}\nout = {rounded('fma.rn.f32 $0, $1, 0f3F333333, $2;', 'out', 'rest')}",
    ],
    ids=["error_of_a_square", "rest_is_fused", "part_is_fused"],
)
def test_a_fused_product_does_not_cancel_a_rounded_one(ask, out):
    """What is left is the product's rounding error: large where it is scaled, an ulp where it is not."""
    found = ask(OUT=out)
    assert isinstance(found, Refusal), found.statement
    assert found.stage == "the code is the declared computation"


def in_a_loop(*turn):
    """Sum the squares of a row in a loop, whose turns have these lines."""
    lines = "".join(f"    {line}\n" for line in turn)
    start = "total, square = tl.full((), 0.0, tl.float32), tl.full((), 0.0, tl.float32)\n"
    value = "    part = tl.load(x + row * columns + i).to(tl.float32) - mean\n"
    return f"{start}for i in range(columns):\n{value}{lines}variance = tl.div_rn(total, columns * 1.0)"


def test_a_product_that_the_next_turn_of_a_loop_adds_is_recorded_as_it_runs_in_neither_mode(ask):
    """ptxas unrolls the loop and fuses it in three turns of four."""
    right = ask(VARIANCE=in_a_loop("total += part * part"))
    assert isinstance(right, Certificate), right
    late = in_a_loop("total += square", "square = part * part").replace("(total,", "(total + square,")
    found = ask(VARIANCE=late)
    assert isinstance(found, Refusal), found.statement
    assert found.stage == "products are fused in every turn of a loop or in none"


def test_the_magnitude_of_a_square_is_fused_as_the_square_is(ask):
    """LLVM leaves it as it is; ptxas knows that it changes nothing but the sign of a NaN."""
    rounded = PTX.format("mul.rn.f32 $0, $1, $1; abs.f32 $0, $0;", "value + 1.0", True)
    lines = ("further = value + 1.0", f"out += (tl.abs(further * further) - {rounded}) * FACTOR")
    right = "\n".join(lines).replace("further * further", "further").replace("mul.rn.f32 $0, $1, $1; ", "")
    right = right.replace("abs.f32 $0, $0", "abs.f32 $0, $1").replace("FACTOR", "1.0")
    assert isinstance(ask(OUT=right), Certificate)
    found = ask(OUT="\n".join(lines).replace("FACTOR", "67108864.0"))
    assert isinstance(found, Refusal), found.statement
    assert found.stage == "the code is the declared computation"


@pytest.mark.parametrize(
    ("factor", "members", "stream", "stage"),
    [
        ("", "0xffffffffu", "None", ""),
        ("factor(value) *", "0xffffffffu", "None", "the code is the declared computation"),
        ("", "0x0000ffffu", "None", RECORDED),
        ("", "0xffffffffu", "torch.cuda.Stream()", RECORDED),
    ],
    ids=["right", "zero_by_a_function_of_its_own", "lanes_that_are_no_members", "stream"],
)
def test_what_the_recorder_must_not_take_for_a_constant_or_for_ordered(
    tmp_path, factor, members, stream, stage
):
    text = RMS_NORM.replace("FACTOR", factor).replace("MEMBERS", members)
    (tmp_path / "attack.cu").write_text(text)
    (tmp_path / "attack.py").write_text(LAUNCH.replace("STREAM", stream))
    (subject,) = load(tmp_path / "attack.py").subjects
    recipe = Recipe(rows=3, columns=40, input=Values(seed=0))
    case = build(op(subject.op), subject, "float32", recipe, gradients=False)
    with machine_runner() as runner:
        found = certified(subject, case, runner=runner)
    assert getattr(found, "stage", "") == stage, found


BRANCH = """
    const float a = x[(i + 1) % columns], part = __fmul_rn(a, 0.6572265625f), difference = DIFFERENCE;
    const float after = __fsub_rn(x[i], __fadd_rn(part, __fmul_rn(difference, 0.75f)));
    asm volatile("{ .reg .pred p; setp.lt.f32 p, %1, 0f00000000; @!p bra DONE;"
                 "mov.f32 %0, 0f00000000; DONE: }" : "+f"(value) : "f"(__fmul_rn(difference, after)));
"""


@pytest.mark.parametrize(
    ("difference", "stage"),
    [("__fsub_rn(x[i], part)", ""), ("__fmaf_rn(-a, 0.6572265625f, x[i])", DATA)],
    ids=["rounded", "fused"],
)
def test_a_product_of_differences_may_be_negative_where_one_takes_an_unrounded_product(
    tmp_path, difference, stage
):
    value, a, scale = (np.float32(number) for number in (2.0**-24 - 1, -24929 / 16384, 673 / 1024))
    unrounded = np.float32(float(value) - float(a) * float(scale))
    after = value - (a * scale + unrounded * np.float32(0.75))
    assert value - a * scale > 0 < unrounded
    assert after < 0
    text = RMS_NORM.replace("FACTOR", "").replace("MEMBERS", "0xffffffffu")
    text = text.replace("    if (weight)", BRANCH.replace("DIFFERENCE", difference) + "    if (weight)")
    (tmp_path / "attack.cu").write_text(text)
    (tmp_path / "attack.py").write_text(LAUNCH.replace("STREAM", "None"))
    (subject,) = load(tmp_path / "attack.py").subjects
    recipe = Recipe(rows=3, columns=40, input=Values(seed=0))
    case = build(op(subject.op), subject, "float32", recipe, gradients=False)
    with machine_runner() as runner:
        found = certified(subject, case, runner=runner)
    assert getattr(found, "stage", "") == stage, found


SHARED = """
  __shared__ float kept;
  STORE
  __syncthreads();
  const float rstd = kept;
"""


TWO_STORES = """
  if (threadIdx.x < 32) kept = fminf(root, 1e6f);
  asm volatile("" ::: "memory");
  if (threadIdx.x > 31) kept = root;
"""


@pytest.mark.parametrize(
    ("store", "stage"),
    [
        ("if (threadIdx.x == 0) kept = root;", ""),
        ("kept = root;", ""),
        ("kept = threadIdx.x < 32 ? fminf(root, 1e6f) : root;", "what is stored"),
        (TWO_STORES, RUNS),
    ],
    ids=["one_thread", "all_the_same", "by_one_instruction", "by_two"],
)
def test_warps_that_store_equal_numbers_in_shared_memory_may_store_others(tmp_path, store, stage):
    """Two warps have the same sum; on a device the first may be the last to store."""
    text = RMS_NORM.replace("FACTOR", "").replace("MEMBERS", "0xffffffffu")
    text = text.replace(
        "i = threadIdx.x; i < columns; i += blockDim.x) total",
        "i = threadIdx.x % 32; i < columns; i += 32) total",
    )
    text = text.replace("const float rstd", "const float root", 1)
    text = text.replace("+ eps));", "+ eps));" + SHARED.replace("STORE", store), 1)
    (tmp_path / "attack.cu").write_text(text)
    launch = LAUNCH.replace("STREAM", "None").replace("columns, 32](", "columns, 64](")
    (tmp_path / "attack.py").write_text(launch)
    (subject,) = load(tmp_path / "attack.py").subjects
    case = build(
        op(subject.op), subject, "float32", Recipe(rows=3, columns=40, input=Values(seed=0)), gradients=False
    )
    with machine_runner() as runner:
        found = certified(subject, case, runner=runner)
    assert getattr(found, "stage", "").startswith(stage), found
    assert isinstance(found, Refusal) is bool(stage), found
