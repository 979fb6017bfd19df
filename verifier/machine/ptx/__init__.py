"""PTX as text, as instructions, and what can be read off them."""
