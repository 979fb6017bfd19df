"""Log-softmax in CUDA C++: the tiers and the launch of softmax_cuda.py with another finish."""

from pathlib import Path

from verifier import Source, load, source, subject

SOURCE = Source(
    title="Articles on an efficient LayerNorm and Softmax CUDA kernel",
    author="OneFlow: Guo Ran, Yao Chi, Zheng Zekang, Liu Juncheng",
    url="https://github.com/Oneflow-Inc/oneflow/blob/master/oneflow/core/cuda/softmax.cuh",
    licence="Apache-2.0, of the code at that address",
    changed="as softmax_cuda",
)

library = load(Path(__file__).with_name("softmax_cuda.py")).module
KERNELS = source(__file__)


@subject(
    op="log_softmax",
    language="cuda",
    source=SOURCE,
    variance="softmax",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    trees=library.TREES,
    guarantees={"determinism", "batch_invariance", "layouts", "large_offsets"},
)
def log_softmax_cuda(input, dim):
    """Log-softmax in CUDA C++, the row kept in registers or shared memory."""
    return library.softmax_by(KERNELS, "LogSoftmax", input, dim)
