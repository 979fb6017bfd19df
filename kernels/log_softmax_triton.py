"""Log-softmax of one Triton program a row, forward and backward, over any dimension and layout.

Forward: the largest element, the sum of exp(x - largest), and (x - largest) - log(sum), in tiles of at most
64 KB.
Backward: dx = dy - exp(y) * sum(dy), where y is computed again in fp32 from the row's two saved statistics:
a y that was stored in half would bring its rounding into every exponential.
The kernels are those of softmax_triton.py.
"""

from pathlib import Path

from verifier import Source, load, subject

SOURCE = Source(
    title="Articles on an efficient LayerNorm and Softmax CUDA kernel",
    author="OneFlow: Guo Ran, Yao Chi, Zheng Zekang, Liu Juncheng",
    url="https://github.com/Oneflow-Inc/oneflow/blob/master/oneflow/core/cuda/softmax.cuh",
    licence="Apache-2.0, of the code at that address",
    changed="our own in Triton",
)

library = load(Path(__file__).with_name("softmax_triton.py")).module


@subject(
    op="log_softmax",
    language="triton",
    source=SOURCE,
    variance="softmax",
    accumulates="float32",
    formula="recomputed",
    dtypes=library.DTYPES,
    trees=library.TREES,
    guarantees=library.skeleton.GUARANTEES,
)
def log_softmax_triton(input, dim):
    return library.softmax_by("log_softmax", input, dim, library.DESIGN)
