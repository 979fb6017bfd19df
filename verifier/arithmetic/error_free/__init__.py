"""Sums, products and exponentials whose errors are known."""
