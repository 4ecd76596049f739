"""Room 5: pure functions from a Dask graph to a Dask graph."""
