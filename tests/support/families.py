"""Which built-in kernels share most of their code."""


def family(subject):
    """Tell subjects that share most of their code from others: op and language, published or not.

    Gated norms share a skeleton; norms that multiply by 1 + weight are launches of the norm's own kernels;
    masked softmaxes are one launch.
    """
    op = "gated" if "_gate" in subject.op else subject.op.removesuffix("_one_plus_weight")
    op = "masked" if op.startswith(("masked_", "causal_")) else op
    return op, subject.language, "published" in subject.name
