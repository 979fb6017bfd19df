"""hazards of the verifier."""
