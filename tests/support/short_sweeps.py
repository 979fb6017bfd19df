"""Sweeps of a release with few inputs of each kind; that the whole one has them all is a test of its own."""

from verifier.commands import cost_of_dtype

KAPPAS = (0.0, 1.0, 10.0, 100.0)
MAGNITUDES = (2.0**-6, 4096.0)
FEW_COLUMNS = 32


def shorten_sweeps(monkeypatch):
    """Let a release try these alone, with one seed."""
    usual = cost_of_dtype.COLUMNS

    def sweep(_dtype):
        yield from ((kappa, 1.0, usual) for kappa in KAPPAS)
        yield from ((0.0, magnitude, usual) for magnitude in MAGNITUDES)

    monkeypatch.setattr(cost_of_dtype, "SEEDS", (0,))
    monkeypatch.setattr(cost_of_dtype, "_sweep", sweep)
    monkeypatch.setattr(cost_of_dtype, "_grid", lambda _: ((k, 1.0, FEW_COLUMNS) for k in KAPPAS))
