"""Room 4: what differentiates one flat function. One engine a file."""
