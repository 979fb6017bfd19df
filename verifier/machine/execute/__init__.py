"""Runs the translated blocks of a grid."""
