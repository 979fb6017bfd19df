"""backends of the verifier."""
