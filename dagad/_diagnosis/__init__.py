"""Room 11: what is checked, run again and examined: derivatives, chunks that failed, clusters."""
