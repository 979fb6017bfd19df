"""Wrong kernels that hide in what a wrapper does on the host, past torch's operations: none is certified."""

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from attacked_kernels import asked, cuda_kernel, kernel
from test_certify_attacked_backward import source

from verifier.cases.recipe import Recipe, Values, build
from verifier.checks.support.certificate_at_shape import certified
from verifier.execution.child_process import Runner
from verifier.ops import op
from verifier.records.certificate import Certificate, Refusal
from verifier.subjects.load_file import load

CALLS = "each call gives the same, in memory of its own"
DATA = "nothing decides on data"
KEPT = "arguments are left as they are"
RECORDED = "every operation is recorded"
RUNS = "the kernel runs to its end, without a race or a stray write"


@pytest.fixture(scope="module")
def runner():
    with Runner(backend="machine") as opened:
        yield opened


AHEAD = """
from _thread import allocate_lock, start_new_thread
import io
from torch import from_numpy

SEEN, ARRAY = [], np.zeros((3, 12), np.float32)
OVER_ARRAY = from_numpy(ARRAY)
FUNCTIONS = {"array": from_numpy}

def see(value, *_):
    SEEN.append(value)
    return value

@triton.jit
def _large(x, flags, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    found = tl.sum((tl.load(x + i, mask=i < n, other=0.0) > 100.0).to(tl.int32), axis=0)
    tl.store(flags + tl.arange(0, 64), (found + tl.zeros((64,), tl.int32)).to(flags.dtype.element_ty))

@triton.jit
def _add(y, z, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(y + i, mask=i < n) + tl.load(z), mask=i < n)

class Other(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is torch.Tensor.detach:
            return args[0].right
        return super().__torch_function__(func, types, args, kwargs or {})
"""
FLAGS = """
flags = torch.empty(64, dtype=torch.int64, device=x.device)
_large[(1,)](x, flags, x.numel(), BLOCK=128)
"""
AVERAGED = """
_large[(1,)](x, flags := torch.empty(64, dtype=torch.int32, device=x.device), x.numel(), BLOCK=128)
mean, variance = torch.zeros(1, device=x.device), torch.ones(1, device=x.device)
torch.native_batch_norm(flags.float().reshape(64, 1), None, None, mean, variance, True, 1.0, 1e-5)
_add[(1,)](y, mean, y.numel(), BLOCK=128)
"""
SPLIT = f"""{FLAGS}
split = torch.ops.aten.tensor_split.tensor_indices_or_sections
if len(split(x, flags[:1])[0]): y.zero_()
"""
SPARSE = f"""{FLAGS}
rows = torch.sparse_coo_tensor(flags[:1].reshape(1, 1).cpu(), torch.ones(1)).shape[0]
if rows > 1: y.zero_()
"""
IMPORTED = "from_numpy(np.zeros(x.shape, np.float32))"
EXCHANGED = "torch.utils.dlpack.from_dlpack(np.zeros(x.shape, np.float32))"
HELD = """
held = np.zeros(x.shape, np.float32)
FUNCTIONS["array"](held).copy_(x.cpu())
if held.max() > 100: y.zero_()
"""
THREAD = """
done, seen = allocate_lock(), []
done.acquire()
def look():
    seen.append(float(x.abs().max()))
    done.release()
start_new_thread(look, ())
done.acquire()
if seen[0] > 100: y.zero_()
"""
WRITTEN = """
written, copied = io.BytesIO(), x.cpu()
writer = torch._C.PyTorchFileWriter(written)
writer.write_record("x", copied.untyped_storage(), copied.untyped_storage().nbytes())
writer.write_end_of_file()
if b"infinite" in written.getvalue(): y.zero_()
"""


@pytest.mark.parametrize(
    ("lines", "stage", "why"),
    [
        (f"{FLAGS}if len(torch.tensor_split(x, flags[:1])[0]): y.zero_()", DATA, "tensor_split"),
        (SPLIT, DATA, "a part of"),
        (
            f"{FLAGS}if torch.fbgemm_linear_quantize_weight(x.cpu())[2] > 1.0: y.zero_()",
            DATA,
            "fbgemm_linear_quantize_weight",
        ),
        ("x.cpu().apply_(see)\nif max(SEEN) > 100: y.zero_()", DATA, "apply_"),
        ("(t := x.cpu()).map_(t, see)\nif max(SEEN) > 100: y.zero_()", DATA, "map_"),
        (IMPORTED, DATA, "from_numpy"),
        (HELD, DATA, "copy_ into memory that is not torch's alone"),
        ("OVER_ARRAY.copy_(x.cpu())\nif ARRAY.max() > 100: y.zero_()", DATA, "not torch's alone"),
        (EXCHANGED, DATA, "from_dlpack"),
        (THREAD, DATA, "a thread of its own"),
        (WRITTEN, DATA, "a file of a tensor"),
        (SPARSE, RECORDED, "sparse"),
        (AVERAGED, RECORDED, "_to_copy"),
        ("right, y = y, torch.zeros_like(y).as_subclass(Other)\ny.right = right", RUNS, "returned a Other"),
        ("y = torch._neg_view(-y)", RUNS, "lie nowhere in memory"),
        ("y = y.to(torch.float8_e4m3fn)", RUNS, "held in float8_e4m3fn, which is not followed"),
        ("input.data = y", KEPT, "something else is stored in input"),
        ("weight.data = torch.ones_like(weight)", KEPT, "something else is stored in weight"),
        ("torch.utils.swap_tensors(input, torch.zeros_like(input))", KEPT, "is stored in input"),
    ],
    ids=[
        *(
            "split",
            "split_by_ops",
            "quantized",
            "apply",
            "map",
            "imported",
            "held",
            "held_before",
            "exchanged",
        ),
        *("thread", "file", "sparse"),
        *(
            "undeclared_change",
            "kind_of_tensor",
            "negated",
            "float8",
            "other_data",
            "other_weight",
            "swapped",
        ),
    ],
)
def test_a_wrapper_that_learns_or_changes_what_no_operation_tells_is_refused(
    tmp_path, runner, lines, stage, why
):
    found = asked(tmp_path, runner, kernel({"AHEAD": AHEAD, "AFTER": lines}), columns=12)
    assert isinstance(found, Refusal), found.statement
    assert (found.stage, why in found.why) == (stage, True), found


@pytest.mark.parametrize(
    "lines",
    [
        "y = torch.empty_like(y).copy_(y)",
        "torch.tensor_split(torch.zeros(3, 4), torch.full((1,), 2, dtype=torch.int64))",
        "scale = torch.tensor([1.0, 2.0])",
    ],
    ids=["copied", "split_by_constants", "of_numbers"],
)
def test_what_tells_nothing_of_data_is_no_reason_to_refuse(tmp_path, runner, lines):
    found = asked(tmp_path, runner, kernel({"AHEAD": AHEAD, "AFTER": lines}), columns=12)
    assert isinstance(found, Certificate), found


ALLOCATED = "mean, rstd = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))"
SAVED = "ctx.save_for_backward(x, weight, mean, rstd)"


@pytest.mark.parametrize(
    "replaced",
    [
        ((ALLOCATED, f"mean, rstd = HELD.setdefault(rows, [*{ALLOCATED.partition(' = ')[2]}])"),),
        ((SAVED, f"HELD['all'] = {SAVED[22:-1]}"), ("ctx.saved_tensors", "HELD['all']")),
    ],
    ids=["memory_kept", "saved_beside"],
)
def test_statistics_that_the_next_forward_pass_overwrites_are_refused(tmp_path, runner, replaced):
    text = "HELD = {}\n" + source({})
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    (tmp_path / "attack.py").write_text(text)
    (subject,) = load(tmp_path / "attack.py").subjects
    values = Values(seed=0)
    recipe = Recipe(rows=3, columns=12, input=values, weight=values, bias=values)
    case = build(op(subject.op), subject, "float16", recipe, gradients=True)
    found = certified(subject, case, runner=runner, gradients=True)
    assert isinstance(found, Refusal), found.statement
    assert (found.stage, "another call comes between" in found.why) == (CALLS, True), found


OF_ONE = "torch.full((1,), 41.0, device=x.device)"


@pytest.mark.parametrize(
    ("constant", "certified"),
    [
        (f"{OF_ONE} / {OF_ONE} - 1.0", True),
        (f"{OF_ONE} / 41.0 - 1.0", False),
        (f"torch.arange(41, 42, device=x.device) / 41 - {OF_ONE} / {OF_ONE}", False),
        (f"torch.sub({OF_ONE}, {OF_ONE}, alpha=1.0)", True),
        (f"torch.sub({OF_ONE} / {OF_ONE}, torch.full((1,), 1 / 41, device=x.device), alpha=41.0)", False),
        ("torch.arange(0, 2, device=x.device, dtype=torch.float32)[:1]", True),
        ("torch.arange(0.0, 1.0, 0.1, device=x.device)[9:] - 0.9", False),
        (f"({OF_ONE} / {OF_ONE} * 7.0).floor_divide(0.7) - 10.0", False),
        (f"({OF_ONE} / {OF_ONE} * 3e9).to(torch.int32).to(torch.float32) + 2.0**31", False),
        (f"({OF_ONE} / {OF_ONE} * float('nan')).to(torch.int64).to(torch.float32) + 2.0**63", False),
        (f"({OF_ONE} / {OF_ONE} * 0.7).to(torch.int32).to(torch.float32)", True),
        (f"({OF_ONE} / {OF_ONE} * 2048.0).half().add(1.0001).sub(2048.0).float()", False),
        (f"({OF_ONE} / {OF_ONE} * 256.0).bfloat16().add(1.0001).sub(256.0).float()", False),
        (f"({OF_ONE} / {OF_ONE} * 2048.0).half().add(2.0).sub(2050.0).float()", True),
    ],
    ids=[
        *("by_numbers", "by_a_number", "integers_by_a_number", "difference", "with_alpha", "counted"),
        *("in_steps", "floor", "beyond_integers", "not_a_number", "in_integers"),
        *("half_and_a_number", "bfloat16_and_a_number", "half_and_a_half"),
    ],
)
def test_constants_that_torch_computes_otherwise_on_a_device_are_none(tmp_path, runner, constant, certified):
    """On a device x / 41 is x * (1 / 41), a - b * alpha is fused, and steps are multiplied in float32.

    Conversions to integers saturate there, and a number beside a half is not rounded to half.
    """
    lines = f"z = {constant}\n_add[(1,)](y, z, y.numel(), BLOCK=64)"
    found = asked(tmp_path, runner, kernel({"AHEAD": AHEAD, "AFTER": lines}), columns=12)
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert found.stage == RECORDED


ROOT = "  const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(total, (float)columns) + eps));"
TWO_LAUNCHES = """
  if (scales == 0) {
    if (threadIdx.x == 0) means[blockIdx.x] = total;
    return;
  }
""" + ROOT.replace("__fdiv_rn(total, (float)columns)", "means[blockIdx.x]")
LAUNCH = "        KERNEL[x.numel() // columns, 32](out, x, weight, columns, eps"


@pytest.mark.parametrize(
    ("divided", "certified"),
    [
        ("means / torch.full_like(means, float(columns))", True),
        ("means.div(torch.full((), float(columns)))", False),
        ("means / columns", False),
    ],
    ids=["by_numbers", "by_a_number_on_the_host", "by_a_number"],
)
def test_a_quotient_that_a_device_makes_of_a_reciprocal_is_none(tmp_path, runner, divided, certified):
    """By a number that lies on the host torch's CUDA kernel divides with 1/N, its CPU kernel with N."""
    allocated = "means = torch.empty(x.numel() // columns, dtype=torch.float32, device=x.device)"
    lines = [allocated, f"{LAUNCH.strip()}, means, 0)", f"means = {divided}", f"{LAUNCH.strip()}, means, 1)"]
    cuda, python = cuda_kernel(
        [
            (ROOT, TWO_LAUNCHES),
            ("int columns, float eps)", "int columns, float eps, float* means, int scales)"),
        ],
        launch=[(f"{LAUNCH})", "\n".join(f"        {line}" for line in lines))],
    )
    found = asked(tmp_path, runner, python, cuda)
    if certified:
        assert isinstance(found, Certificate), found
    else:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, found.why) == (RECORDED, "torch's div is not followed"), found


BESIDE = (
    (
        "y, columns = torch.empty_like(x), x.shape[-1]",
        "columns = x.shape[-1]\n    y = torch.empty(x.shape[0], 16)",
    ),
    ("y + row * columns + column, out", "y + row * 16 + AT + column, out"),
)


@pytest.mark.parametrize(
    ("at", "lines", "why"),
    [
        (1, "y[:, :12].copy_(y[:, 1:13])\ny = y[:, :12].clone()", "copy_ into memory that it reads"),
        (1, "y[:, :12] = y[:, 1:13]\ny = y[:, :12].clone()", "copy_ into memory that it reads"),
        (2, "y[:, ::2].copy_(y[:, :8])\ny = y[:, 2:14].clone()", "copy_ into memory that it reads"),
        (0, "z = torch.empty(40)\nz.as_strided((3, 12), (11, 1)).copy_(y[:, :12])\ny = y[:, :12].clone()",
         "copy_ into one place twice"),
        (0, "y = y[:, :12].clone()", ""),
        (0, "y[:, 12:].copy_(y[:, :4])\ny = y[:, :12].clone()", ""),
        (0, "y[:, 1::2].copy_(y[:, 1::2])\ny = y[:, :12].clone()", ""),
    ],
    ids=["moved", "assigned", "spread", "twice", "apart", "elsewhere", "onto_itself"],
)  # fmt: skip
def test_copies_by_which_elements_meet_are_in_no_order_on_a_device(tmp_path, runner, at, lines, why):
    """torch refuses them of dense tensors alone; between columns the host copies row by row, and is right."""
    text = kernel({"AFTER": lines})
    for old, new in BESIDE:
        assert old in text
        text = text.replace(old, new.replace("AT", str(at)).replace("16)", "16, device=x.device)"))
    found = asked(
        tmp_path, runner, text.replace("torch.empty(40)", "torch.empty(40, device=x.device)"), columns=12
    )
    if why:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, found.why) == (RECORDED, f"torch's {why} is not followed"), found
    else:
        assert isinstance(found, Certificate), found


PINNED = "torch.empty(x.shape, pin_memory=True)"


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (
            "y = y.to('cpu', non_blocking=True).clone().to(x.device)",
            "copy to the host that is not waited for",
        ),
        (
            f"h = {PINNED}\nh.copy_(y, non_blocking=True)\ny = h.clone().to(x.device)",
            "copy to the host that is not waited for",
        ),
        (
            "h = torch.ones(12).pin_memory()\nd = h.to(x.device, non_blocking=True)\nh.zero_()\ny = y * d",
            "copy from pinned memory of the host that is not waited for",
        ),
        (
            "h = torch.ones(12).pin_memory()\ntorch.ones_like(x).copy_(h, non_blocking=True)",
            "copy from pinned memory of the host that is not waited for",
        ),
        (
            f"h = {PINNED}\n_forward[(3,)](x, h, w, b, columns, eps, BLOCK=16)\ny = h.clone().to(x.device)",
            "launch that takes memory of the host",
        ),
        (
            "e = torch.cuda.Event()\ne.record()\nif not e.query(): y.zero_()",
            "question for what a device has done by now",
        ),
        (
            "if not torch.cuda.current_stream().query(): y.zero_()",
            "question for what a device has done by now",
        ),
        ("y = y.to('cpu').clone().to(x.device)", ""),
        ("y = y.to(x.device, non_blocking=True)", ""),
        ("h = torch.ones(12)\nd = h.to(x.device, non_blocking=True)\nh.zero_()\ny = y * d", ""),
        (f"h = {PINNED}\nh.copy_(y)\ny = h.to(x.device)", ""),
    ],
    ids=[
        *("to_the_host", "into_pinned", "from_pinned", "copied_from_pinned", "pinned_in_a_launch"),
        *("event", "stream"),
        *("waited_for", "on_the_device", "not_pinned", "waited_for_in_pinned"),
    ],
)
def test_memory_of_the_host_that_a_device_still_writes_or_reads_is_not_followed(tmp_path, runner, lines, why):
    """torch: a copy to the host with non_blocking has come when the stream is waited for, and no sooner."""
    found = asked(tmp_path, runner, kernel({"AFTER": lines}), columns=12)
    if why:
        assert isinstance(found, Refusal), found.statement
        assert (found.stage, found.why) == (RECORDED, f"torch's {why} is not followed"), found
    else:
        assert isinstance(found, Certificate), found


@pytest.mark.parametrize("lines", ["y = y.cpu()", "y = y.cpu().pin_memory()"], ids=["host", "pinned"])
def test_a_result_lies_where_the_arguments_lie(tmp_path, runner, lines):
    found = asked(tmp_path, runner, kernel({"AFTER": lines}), columns=12)
    assert isinstance(found, Refusal), found.statement
    assert found.why == "output lies on another device than the arguments", found
