"""How a function of a user's own is called as an op of ours: names of arguments, adapters, specifications."""
