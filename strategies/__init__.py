"""Inputs for kernels: dtypes, shapes, layouts and values, as small seeded descriptors."""
