"""What compiled code says of sums in half precision: each way to keep one is seen, and no other addition."""

import re
from pathlib import Path

import pytest

from verifier.machine.ptx import half_sums
from verifier.machine.ptx.instruction_counts import count_instructions
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
