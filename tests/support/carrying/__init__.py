"""Ways to carry a value into a chunk function, by what carries it, and how a chunk gets it out again."""
