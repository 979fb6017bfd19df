"""runner of the verifier."""
