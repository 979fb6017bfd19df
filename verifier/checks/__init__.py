"""checks of the verifier."""
