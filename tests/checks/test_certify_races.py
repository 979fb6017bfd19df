"""Wrong kernels whose threads, warps and launches nothing orders: none is certified."""

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from attacked_kernels import ROOT, STORE, asked, cuda_kernel, decided, kernel, refused

from verifier.execution.child_process import Runner

RUNS = "the kernel runs to its end, without a race or a stray write"


@pytest.fixture(scope="module")
def runner():
    with Runner(backend="machine") as opened:
        yield opened


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
    decided(found, certified, RUNS, "SharedRace")


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
    decided(found, certified, RUNS, "asynchronous copy")


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
    decided(found, certified, RUNS, "may begin before")


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
    refused(found, RUNS, "without the others")


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
    refused(found, RUNS, "reads by .nc")


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
    decided(found, lane >= 32, LAST)


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
    decided(found, other == "1.0", LAST, "kept")


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
    decided(found, certified, RUNS, "GlobalRace")


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
    decided(found, certified, RUNS, "GlobalRace")


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
    refused(found, RUNS, "a watch for races in parts")


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
    decided(found, certified, RUNS, "GlobalRace")


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
    decided(found, together, RUNS, "in a branch of its own")
