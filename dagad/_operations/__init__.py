"""Room 5: one operation on rows, closed under differentiation."""
