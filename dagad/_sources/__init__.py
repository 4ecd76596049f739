"""Room 4: what rows can be, and where their cotangents land."""
