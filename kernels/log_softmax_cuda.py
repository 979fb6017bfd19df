"""Log-softmax in CUDA C++: the tiers and the launch of softmax_cuda.py with another finish."""

from pathlib import Path

from verifier import load, source, subject

SOURCE = "OneFlow, efficient LayerNorm and Softmax CUDA kernels; corrected"

library = load(Path(__file__).with_name("softmax_cuda.py")).module
KERNELS = source(__file__)


@subject(
    op="log_softmax",
    language="cuda",
    variance="softmax",
    accumulates="float32",
    dtypes=("float16", "bfloat16", "float32", "float64"),
    trees=library.TREES,
    guarantees={"determinism", "batch_invariance", "layouts", "large_offsets"},
)
def log_softmax_cuda(input, dim):
    """Log-softmax in CUDA C++, the row kept in registers or shared memory."""
    return library.softmax_by(KERNELS, "LogSoftmax", input, dim)
