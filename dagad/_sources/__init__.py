"""Room 6: what rows can be, and where their cotangents land."""
