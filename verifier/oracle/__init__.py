"""oracle of the verifier."""
