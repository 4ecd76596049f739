"""Room 1: values as flat lists of leaves, and how they travel."""
