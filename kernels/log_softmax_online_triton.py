"""Log-softmax in the online form: one sweep finds a row's maximum and its sum of exponentials together.

A second sweep writes (x - largest) - log(sum). The kernels are those of softmax_online_triton.py, and the
backward pass is that of softmax_triton.py.
"""

from pathlib import Path

from verifier import Source, load, subject

SOURCE = Source(
    title="Online normalizer calculation for softmax",
    author="Maxim Milakov, Natalia Gimelshein",
    url="https://arxiv.org/abs/1805.02867",
    changed="our own in Triton, for log-softmax",
)

online = load(Path(__file__).with_name("softmax_online_triton.py")).module


@subject(
    op="log_softmax",
    language="triton",
    source=SOURCE,
    variance="softmax",
    accumulates="float32",
    formula="online_recomputed",
    dtypes=online.library.DTYPES,
    trees=online.TREES,
    guarantees=online.library.skeleton.GUARANTEES,
)
def log_softmax_online_triton(input, dim):
    return online.library.softmax_by("log_softmax", input, dim, online.ONLINE)
