"""Log-softmax with whole rows in registers, one long or several short ones a program: a row is read once.

Forward: the largest element, the sum of exp(x - largest), and (x - largest) - log(sum).
Backward: dx = dy - exp(y) * sum(dy), where y is computed again in fp32 from the row's two saved statistics:
a y that was stored in half would bring its rounding into every exponential.
The kernels are those of softmax_tiled_triton.py.
"""

from pathlib import Path

from verifier import Source, load, subject

SOURCE = Source(
    title="Articles on an efficient LayerNorm and Softmax CUDA kernel",
    author="OneFlow: Guo Ran, Yao Chi, Zheng Zekang, Liu Juncheng",
    url="https://github.com/Oneflow-Inc/oneflow/blob/master/oneflow/core/cuda/softmax.cuh",
    licence="Apache-2.0, of the code at that address",
    changed="our own in Triton: several rows a program, each in registers",
)

library = load(Path(__file__).with_name("softmax_tiled_triton.py")).module


@subject(
    op="log_softmax",
    language="triton",
    source=SOURCE,
    variance="softmax",
    accumulates="float32",
    formula="recomputed",
    dtypes=library.wide.DTYPES,
    trees=library.TREES,
    guarantees=library.skeleton.GUARANTEES,
)
def log_softmax_tiled_triton(input, dim):
    return library.softmax_by("log_softmax", input, dim)
