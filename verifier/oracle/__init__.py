"""Certified exact answers: enclosures, the rungs that compute them, and the ladder of verdicts."""
