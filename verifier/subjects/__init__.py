"""Finds, reads and declares what is under test, and keeps what it sets for the process."""
