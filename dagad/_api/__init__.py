"""Room 7: what users call."""
