"""What the two published batch norms by hand share, their update of running statistics included: no subject.

Both take statistics over every dimension but 1, normalize by the biased variance and move running_var towards
the unbiased one.
"""

from verifier import Domain, KnownDefect

SHAPE_LOST = KnownDefect(
    id="running-shape-lost",
    check="forward_error",
    also=("layouts",),
    reason="squeeze() takes the only dimension of the running statistics away when there is one channel: "
    "assigned to .data, it replaces the buffer's shape.",
    where=lambda case: case.given["input"].shape[1] == 1,
)


def claim(source):
    """Return the declaration that both share."""
    return {
        "op": "batch_norm",
        "language": "torch",
        "source": source,
        "variance": "welford",
        "accumulates": "float32",
        "dtypes": ("float32", "float64"),
        "domain": Domain(min_rows=1, min_columns=1, max_abs=1e15, max_kappa=1e2),
        "mutates": ("running_mean", "running_var"),
    }


def by_channel(vector, input):
    """The vector with its channels in dimension 1."""
    return vector.reshape(1, -1, *(1 for _ in input.shape[2:]))


def scale_and_shift(normalized, weight, bias):
    if weight is not None:
        normalized = normalized * by_channel(weight, normalized)
    return normalized if bias is None else normalized + by_channel(bias, normalized)


def move(buffer, momentum, value):
    """Replaces the buffer's data, not its contents: the published update."""
    if buffer is not None:
        buffer.data = ((1 - momentum) * buffer.reshape(value.shape) + momentum * value.detach()).squeeze()
