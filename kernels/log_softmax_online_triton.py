"""Log-softmax in the online form: one sweep finds a row's maximum and its sum of exponentials together.

A second sweep writes (x - largest) - log(sum). The kernels are those of softmax_online_triton.py, and the
backward pass is that of softmax_triton.py.
"""

from pathlib import Path

from verifier import load, subject

SOURCE = "our own, after the online normalizer of Milakov and Gimelshein"

online = load(Path(__file__).with_name("softmax_online_triton.py")).module


@subject(
    op="log_softmax",
    language="triton",
    variance="softmax",
    accumulates="float32",
    formula="online_recomputed",
    dtypes=online.library.DTYPES,
    trees=online.TREES,
    guarantees=online.library.skeleton.GUARANTEES,
)
def log_softmax_online_triton(input, dim):
    return online.library.softmax_by("log_softmax", input, dim, online.DESIGN)
