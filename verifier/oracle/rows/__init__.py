"""Results of normalizations over rows: float64, double-double, then balls."""
