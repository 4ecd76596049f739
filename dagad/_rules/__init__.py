"""Room 3: derivatives of numpy's, scipy's and Dask's functions, in tables; who imports it has them all in force."""

from dagad._rules import (
    indexing as indexing,
    linalg_rules as linalg_rules,
    numpy_functions as numpy_functions,  # what numpy has and autograd has not
    numpy_rules as numpy_rules,
    powers as powers,
    scipy_parts as scipy_parts,
    ufunc_methods as ufunc_methods,
)
from dagad._tracing import primitives as primitives  # so that they travel with their rules
