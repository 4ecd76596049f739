"""Room 1: values as flat lists of leaves, what a function carries, and how both travel."""
