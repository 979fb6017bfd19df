"""machine of the verifier."""
