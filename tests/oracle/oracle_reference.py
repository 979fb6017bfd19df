"""Row normalizations in mpmath, the independent oracle of record: plain formulas, no code shared."""

from mpmath import mp, mpf

BITS = 4000
"""Precision of the reference; its own rounding (see `own_error`) must stay far below every radius."""


def exact(number):
    return mpf(float(number))


def rows_in_mpmath(
    x, eps, *, centred=True, weight=None, bias=None, grad=None, given=None, running=None, bits=BITS
):
    """Return dicts of lists of mpf: one list (or number) for each row."""
    with mp.workprec(bits):
        found = []
        for i, row in enumerate(x):
            values = [exact(a) for a in row]
            n = len(values)
            mean = sum(values) / n if centred else mpf(0)
            variance = sum((a - mean) ** 2 for a in values) / n
            if given is not None:
                mean, rstd = exact(given[0][i]), exact(given[1][i])
            elif running is not None:
                mean, variance = exact(running[0][i]), exact(running[1][i])
                rstd = 1 / mp.sqrt(variance + exact(eps))
            else:
                rstd = 1 / mp.sqrt(variance + exact(eps))
            normalized = [(a - mean) * rstd for a in values]
            w = [exact(a) for a in weight[i]] if weight is not None else [mpf(1)] * n
            b = [exact(a) for a in bias[i]] if bias is not None else [mpf(0)] * n
            result = {
                "mean": mean,
                "variance": variance,
                "rstd": rstd,
                "normalized": normalized,
                "output": [h * c + d for h, c, d in zip(normalized, w, b, strict=True)],
            }
            if grad is not None:
                dy = [exact(a) for a in grad[i]]
                g = [c * d for c, d in zip(dy, w, strict=True)]
                c1 = sum(a * h for a, h in zip(g, normalized, strict=True)) / n
                c2 = sum(g) / n if centred else mpf(0)
                if running is not None:
                    c1 = c2 = mpf(0)
                result["grad_input"] = [(a - h * c1 - c2) * rstd for a, h in zip(g, normalized, strict=True)]
                result["contribution"] = [d * h for d, h in zip(dy, normalized, strict=True)]
                result["grad"] = dy
            result["own_error"] = own_error(result, row, w, b, [] if grad is None else dy, bits)
            found.append(result)
        return found


def own_error(result, *operands_and_bits):
    """Return a bound on the rounding of the reference itself, for every value of a row.

    Every value is a polynomial of degree at most 12 in these magnitudes, with fewer than n**2 terms
    and fewer than 2**20 roundings on any path.
    """
    *operands, bits = operands_and_bits
    size = mpf(len(operands[0])) * (1 + abs(result["rstd"])) ** 3 * (1 + abs(result["mean"]))
    for operand in operands:
        size *= 1 + max((abs(exact(a)) for a in operand), default=0)
    return mpf(2) ** (64 - bits) * size**2


def entry_sums(found, entries, index, name, bits=BITS):
    """Return the sums of a per-element list over the entries of weight."""
    with mp.workprec(bits):
        totals = [mpf(0)] * entries
        for i, row in enumerate(found):
            for j, value in enumerate(row[name]):
                totals[index[i][j]] += value
        return totals


def outside(enclosure, values, slack, bits=BITS):
    """Return the flat positions where the true value lies outside the claimed radius.

    slack: the error of the true values themselves (see `own_error`), one for each or one for all.
    """
    wrong = []
    with mp.workprec(bits):
        parts = (part.ravel().tolist() for part in (enclosure.high, enclosure.low, enclosure.radius))
        slacks = slack if isinstance(slack, list) else [slack] * len(values)
        for k, (high, low, radius, value, own) in enumerate(zip(*parts, values, slacks, strict=True)):
            if radius == float("inf"):
                continue
            if not abs(value - mpf(high) - mpf(low)) <= mpf(radius) + own:
                wrong.append(k)
    return wrong
