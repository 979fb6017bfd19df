"""What compiled code says of sums in half precision: each way to keep one is seen, and no other addition."""

import re
from pathlib import Path

import pytest

from verifier.machine.ptx import half_sums
from verifier.machine.ptx.basic_blocks import build
from verifier.machine.ptx.instruction_counts import count_instructions
from verifier.machine.ptx.parser import parse
from verifier.subjects.nvrtc import compile_cached

SOURCE = Path(__file__).with_name("sums_in_half.cu")
SUMS = {
    "over_threads_half": {half_sums.THREADS},
    "over_threads_bfloat16": {half_sums.THREADS},
    "over_threads_rounded": {half_sums.THREADS},
    "in_a_loop": {half_sums.ROUNDS},
    "squares_in_a_loop": {half_sums.ROUNDS},
    "rounded_in_a_loop": {half_sums.ROUNDS},
    "of_a_vector": {half_sums.ELEMENTS},
    "of_a_long_row": {half_sums.ELEMENTS},
    "of_a_row_in_tiles": {half_sums.ELEMENTS},
    "in_shared_memory": {half_sums.SHARED},
    "by_atomics": {half_sums.ATOMIC},
    "under_a_lock": {half_sums.LOCKED},
}
NAMES = re.findall(r"__global__ void (\w+)", SOURCE.read_text(encoding="utf-8"))


@pytest.fixture(scope="module", params=[80, 90])
def code(request):
    """PTX of all kernels of the file."""
    return compile_cached(SOURCE, "in_a_loop", request.param).ptx


@pytest.mark.parametrize("name", NAMES)
def test_sums_in_half_are_told_from_single_additions(name, code):
    found = count_instructions(code, name).kept_in_half
    assert {one.kind for one in found} == SUMS.get(name, set())
    assert all(re.search(r"sums_in_half\.cu:\d+", one.place) for one in found)


def test_right_kernels_of_the_list_do_add_in_half(code):
    quiet = {name for name in NAMES if name not in SUMS and not count_instructions(code, name).half_sums}
    assert quiet == {"wide_over_threads", "wide_in_shared_memory", "staged_in_turn"}


PATHS = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry paths(.param .u64 out, .param .u32 n)
{
  .reg .pred %p<3>;
  .reg .b32 %r<9>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd1, [out];
  ld.param.u32 %r1, [n];
  setp.gt.s32 %p1, %r1, 4;
  mov.u32 %r2, 0;
  @%p1 ld.global.u32 %r2, [%rd1];
  mov.u32 %r3, 1;
  @%p1 bra ELSE;
  mov.u32 %r3, 2;
ELSE:
  mov.u32 %r4, 0;
LOOP:
  add.s32 %r5, %r4, %r2;
  add.s32 %r4, %r5, %r3;
  setp.lt.s32 %p2, %r4, 100;
  @%p2 bra LOOP;
  st.global.u32 [%rd1], %r4;
  ret;
}
"""


def test_each_read_knows_the_results_that_it_may_hold():
    module = parse(PATHS)
    flow = half_sums.ReachingDefinitions(build(module, module.functions["paths"]))
    lines = [str(instruction.text()) for instruction in flow.instructions]
    at = {
        name: [n for n, i in enumerate(flow.instructions) if name in i.written]
        for name in ("%r2", "%r3", "%r4")
    }
    first, second = (n for n, text in enumerate(lines) if "add.s32" in text)
    assert [len(places) for places in at.values()] == [2, 2, 2]
    assert flow.reaching[first]["%r2"] == {*at["%r2"]}  # a load that its guard may leave out, in one block
    assert flow.reaching[second]["%r3"] == {*at["%r3"]}  # of two paths
    assert flow.reaching[first]["%r4"] == {*at["%r4"]}  # before the loop, or in its last turn
    assert flow.reaching[second]["%r5"] == {first}
    (stored,) = (n for n, text in enumerate(lines) if "st.global" in text)
    assert flow.reaching[stored]["%r4"] == {second}
    assert "%r4" not in flow.reaching[at["%r4"][0]]  # what is written is not read
