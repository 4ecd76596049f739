"""Room 8: how and where an operation runs."""
