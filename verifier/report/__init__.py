"""report of the verifier."""
