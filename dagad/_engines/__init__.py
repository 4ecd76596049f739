"""Room 2: what differentiates one flat function. One engine a file."""
