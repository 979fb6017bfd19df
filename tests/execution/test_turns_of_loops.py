"""How often loops turn in a launch is computed from their heads, or not known."""

import pytest
import triton
import triton.language as tl

from verifier.execution.turns_of_loops import heads_of_cuda, heads_of_triton, of_launch, template_names

SOURCE = """
#include "tiers.cuh"
template <typename T, int kPack, bool kVector = false>
__global__ void kernel(const T* x, long long rows, long long columns) {
  const long long per_block = static_cast<long long>(blockDim.x) * kPack;
  int last = 5;
  for (long long base = blockIdx.x * per_block;
       base < rows; base += gridDim.x * per_block) {
    tile<kPack>(x);
  }
  for (int i = threadIdx.x; i <= columns / kPack; ++i) {}
  for (int i = 0; i < last; ++i) {}
  for (int i = kWarp / 2; i > 0; i /= 2) {}
}
"""
HEADER = """
constexpr int kWarp = 32;
__device__ void tile(const float* x) {
  for (int i = 0; i < kWarp; i += 16) {}
  for (int i = 0; i < size(x); ++i) {}
}
__device__ void other() { for (int i = 0; i < 3; ++i) {} }
"""


@pytest.mark.parametrize(("rows", "grid", "turned"), [(64, 8, 1), (65, 8, 2), (65, 9, 1), (0, 1, 0)])
def test_turns_in_c_follow_from_arguments_constants_and_the_grid(tmp_path, rows, grid, turned):
    (tmp_path / "tiers.cuh").write_text(HEADER)
    path = tmp_path / "kernel.cu"
    path.write_text(SOURCE)
    assert template_names(path, "kernel") == ("T", "kPack", "kVector")
    template = {"T": "float", "kPack": 2, "kVector": True}
    values = of_launch({"rows": rows, "columns": 7}, template, (grid,), (4,))
    turns = {head.where: head.turns(values) for head in heads_of_cuda(path, "kernel")}
    own = {("kernel.cu", 7): turned, ("kernel.cu", 11): 4, ("kernel.cu", 12): None}
    assert turns == {**own, ("tiers.cuh", 4): 2, ("tiers.cuh", 5): None}
    assert heads_of_cuda(path, "of_a_macro") == ()


@triton.jit
def inner(x, columns, BLOCK: tl.constexpr):
    for start in range(0, columns, BLOCK):
        tl.store(x + start, 0.0)


@triton.jit
def kernel(x, columns, chunk, BLOCK: tl.constexpr):
    chunk = chunk + 1
    inner(x, columns, BLOCK)
    for row in range(tl.program_id(0), columns):
        tl.store(x + row, 0.0)
    for row in range(chunk):
        tl.store(x + row, 0.0)
    for _ in tl.static_range(BLOCK // 2 - 1):
        tl.store(x, 0.0)


@pytest.mark.parametrize(("columns", "turned"), [(4, 1), (5, 2)])
def test_turns_in_triton_follow_from_arguments_that_are_not_assigned(columns, turned):
    values = {"columns": columns, "chunk": 3, "BLOCK": 4}
    heads = heads_of_triton(kernel, values)
    assert [head.turns(values) for head in heads] == [None, None, 1, turned]
