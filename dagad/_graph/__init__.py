"""Pure functions from Dask graphs to Dask graphs."""
