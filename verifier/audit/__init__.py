"""Searches for failing cases, shrinks them and reports."""
