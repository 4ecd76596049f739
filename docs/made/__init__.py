"""Pages that are made of what dagad and its examples say of themselves."""
