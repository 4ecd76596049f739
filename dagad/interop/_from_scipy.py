"""What of scipy is used by the modules that make pytrees of its vectors; where it is missing, how to have it."""

from __future__ import annotations

try:
    from scipy import optimize as optimize, sparse as sparse
    from scipy.sparse.linalg import LinearOperator as LinearOperator
except ModuleNotFoundError as error:
    error.add_note('dagad: `dagad.interop.scipy` needs scipy: `pip install "dagad[scipy]"`.')
    raise
