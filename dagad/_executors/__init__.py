"""Room 6: how and where an operation runs."""
