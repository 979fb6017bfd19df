"""Which built-in kernels share most of their code."""

SHARED = {
    "add_layer_norm": "add_norm",
    "add_rms_norm": "add_norm",
    "dropout_add_layer_norm": "add_norm",
    "dropout_add_rms_norm": "add_norm",
    "instance_norm": "group_norm",
    "log_softmax": "softmax",
}
"""Ops whose kernels are those of another, or share a skeleton."""


def family(subject):
    """Tell subjects that share most of their code from others: op and language, published or not.

    Gated norms share a skeleton; norms that multiply by 1 + weight are launches of the norm's own kernels;
    masked softmaxes are one launch; the series of published kernels is one module.
    """
    op = "gated" if "_gate" in subject.op else subject.op.removesuffix("_one_plus_weight")
    op = "masked" if op.startswith(("masked_", "causal_")) else SHARED.get(op, op)
    published = "published" in subject.name
    return "layer_norm" if published and op == "rms_norm" else op, subject.language, published
