"""Autograd: its tape, forward mode, the node that an outer tape sees, and what has to be patched."""
