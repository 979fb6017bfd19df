"""Expression graphs of a kernel's outputs as data, and what can be proved of them."""
