"""Shadows, the second values of floats: where they lie and how they move."""
