"""Wrong kernels that store in arguments or behind a shared array: none is certified."""

import pytest

pytest.importorskip("triton", reason="certified are Triton's kernels; Triton is missing")

from attacked_kernels import ROOT, STORE, asked, cuda_kernel, decided

from verifier.execution.child_process import Runner
from verifier.records.certificate import Certificate, Refusal

RUNS = "the kernel runs to its end, without a race or a stray write"
KEPT = "arguments are left as they are"


@pytest.fixture(scope="module")
def runner():
    with Runner(backend="machine") as opened:
        yield opened


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
    decided(found, certified, RUNS, "behind the shared variable")
