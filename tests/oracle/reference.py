"""Row normalizations in mpmath, the independent oracle of record: plain formulas, no code shared."""

from mpmath import mp, mpf

BITS = 1400  # sums of float64 squares span about 2100 bits; the test data stay below this


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
            found.append(result)
        return found


def entry_sums(found, entries, index, name, bits=BITS):
    """Return the sums of a per-element list over the entries of weight."""
    with mp.workprec(bits):
        totals = [mpf(0)] * entries
        for i, row in enumerate(found):
            for j, value in enumerate(row[name]):
                totals[index[i][j]] += value
        return totals


def outside(enclosure, values, bits=BITS):
    """Return the flat positions where the true value lies outside the claimed radius."""
    wrong = []
    with mp.workprec(bits):
        parts = (part.ravel().tolist() for part in (enclosure.high, enclosure.low, enclosure.radius))
        for k, (high, low, radius, value) in enumerate(zip(*parts, values, strict=True)):
            if radius == float("inf"):
                continue
            if not abs(value - mpf(high) - mpf(low)) <= mpf(radius):
                wrong.append(k)
    return wrong
