"""Autograd: its tape, forward mode, the node that an outer tape sees, and what has to be patched."""

from dagad._engines.autograd import primitives as primitives  # so that they travel with their rules
