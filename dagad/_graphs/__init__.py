"""Room 3: pure functions from a Dask graph to a Dask graph."""
