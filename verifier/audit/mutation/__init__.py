"""Single mutations of a kernel's source, and what an audit sees of them."""
