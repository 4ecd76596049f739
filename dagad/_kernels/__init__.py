"""Room 7: kernels, and one operation on rows, both closed under differentiation."""
