"""What an op means exactly, in arithmetics where nothing is rounded, derived from the op's own definition."""
