"""CUDA C++ in the styles of real kernels: lanes that are off touch nothing, half intrinsics are read."""

import pytest
import torch

from verifier import source
from verifier.machine import session
from verifier.machine.execute.findings import OutOfBounds

pytestmark = pytest.mark.usefixtures("compiler")

STYLES = ("branch", "early return", "nested loops", "switch", "null pointer", "one beyond")
KERNELS = """
#include <cuda_fp16.h>
__constant__ float table[5] = {1, 2, 3, 4, 5};

extern "C" __global__ void styled(const float* __restrict__ w, float* __restrict__ y, int n, int style) {
  const int i = threadIdx.x;
  float* out = y + blockIdx.x * n;
  if (style == 0) {
    if (i < n) out[i] = 2.f * w[i];
  } else if (style == 1) {
    if (i >= n) return;
    out[i] = 2.f * __ldg(w + i);
  } else if (style == 2) {
    for (int c = i * 3; c < n; c += 3 * blockDim.x)
      for (int k = c; k < min(c + 3, n); ++k) out[k] = 2.f * w[k];
  } else if (style == 3) {
    switch (n - 1 - i) {
      case 0: case 2: out[i] = 2.f * w[i]; break;
      case 1: case 3: out[i] = w[i] + w[i]; break;
      case 4: out[i] = 2.f * table[i];
    }
  } else if (style == 4) {
    const float* from = i < n ? w : nullptr;
    if (from) out[i] = 2.f * __ldg(from + i);
  } else if (i <= n) out[min(i, n - 1)] = __ldg(w + i);
}

extern "C" __global__ void halves(const __half* __restrict__ x, __half* y, int n) {
  const int i = threadIdx.x;
  if (i < n) y[i] = __hmul(hrsqrt(x[i]), hexp(__float2half(0.f)));
}
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory):
    folder = tmp_path_factory.mktemp("styles")
    (folder / "styles.cu").write_text(KERNELS)
    return source(folder / "styles.py")


def run(kernels, style):
    w, y = torch.arange(1.0, 6.0), torch.zeros(10)
    with session():
        kernels.kernel("styled")[2, 32](w, y, 5, STYLES.index(style))
    return y.tolist()


@pytest.mark.parametrize("style", STYLES[:-1])
def test_lanes_that_are_off_are_no_access_out_of_bounds(style, kernels):
    assert run(kernels, style) == [2.0, 4.0, 6.0, 8.0, 10.0] * 2


def test_a_lane_that_is_on_and_reads_beyond_is_one(kernels):
    with pytest.raises(OutOfBounds) as caught:
        run(kernels, "one beyond")
    assert caught.value.thread == (5, 0, 0)


def test_half_intrinsics_are_read(kernels):
    x, y = torch.tensor([1.0, 4.0, 16.0, 64.0]).half(), torch.zeros(4).half()
    with session():
        kernels.kernel("halves")[1, 32](x, y, 4)
    assert y.tolist() == [1.0, 0.5, 0.25, 0.125]
