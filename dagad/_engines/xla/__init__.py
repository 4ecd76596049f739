"""Numpy for jax: functions written in plain numpy run on what jax traces, and are compiled as they are."""
