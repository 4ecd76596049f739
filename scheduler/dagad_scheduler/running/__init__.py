"""Runs graphs, values first: in the calling thread, in threads, on a cluster."""
