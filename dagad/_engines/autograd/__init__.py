"""Autograd: its tape, forward mode, the node that an outer tape sees, and what has to be patched."""

from dagad._engines.autograd import (
    linalg_rules as linalg_rules,
    numpy_functions as numpy_functions,  # what numpy has and autograd has not
    numpy_rules as numpy_rules,
    primitives as primitives,  # so that they travel with their rules
    scipy_parts as scipy_parts,
)
