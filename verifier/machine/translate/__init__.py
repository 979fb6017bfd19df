"""Translates PTX into Python functions over NumPy arrays."""
