"""Room 10: what users call."""
