"""Arrays that share memory with `x`, or don't, and programs that change one of the two in place."""

from __future__ import annotations

from typing import Any

import numpy as np

SHARE = """
x.reshape(-1); x.ravel(); x.T; x.transpose(1, 0); x.swapaxes(0, 1); x[None].squeeze(); x[...]; x[:]; x[0]; x[:, 0]
x[0, ...]; x[0, 0, ...]; x.real; x.view(); x.conj(); x.mT; x.astype(float, copy=False); np.reshape(x, -1); np.ravel(x)
np.transpose(x); np.swapaxes(x, 0, 1); np.squeeze(x); np.broadcast_arrays(x, np.ones((2, 3)))[0]; np.real(x)
np.expand_dims(x, 0); np.moveaxis(x, 0, 1); np.rollaxis(x, 1); np.atleast_1d(x); np.atleast_3d(x); np.split(x, 2)[0]
np.array_split(x, 2, axis=1)[0]; np.hsplit(x, 3)[0]; np.vsplit(x, 2)[0]; np.flip(x); np.fliplr(x); np.rot90(x)
np.asarray(x); np.array(x, copy=False); np.ascontiguousarray(x); np.matrix_transpose(x); np.einsum("ij->ji", x)
np.meshgrid(x[0], copy=False)[0]; np.diff(x, n=0); np.atleast_1d(x, x)[1]; x
"""
APART = """
x.copy(); x.flatten(); x.astype(float); +x; x * 1; x[0, 0]; x[[0]]; np.reshape(x.T, -1); np.ravel(x.T); np.conj(x)
np.array(x); np.copy(x); np.positive(x); np.einsum("ij,ij->ij", x, x); np.triu(x); np.roll(x, 0); np.concatenate([x])
np.where(True, x, 0); np.clip(x, None, None); np.round(x, 20); np.nan_to_num(x); np.take(x, [0], axis=0); np.sort(x)
np.meshgrid(x[0])[0]; np.array(x, ndmin=3); np.fft.fftshift(x); np.maximum(x, x); np.sum(x, axis=())
"""
CHANGES = ["v *= 2.0", "x *= 2.0", "v += v"]
SQUARE = np.arange(6.0).reshape(2, 3) - 2.3


def changed(view: str, change: str, used: str = "np.sum(x), np.sum(v)") -> Any:
    made: dict[str, Any] = {"np": np}
    exec(f"def fun(x):\n    x = x * 1.0\n    v = {view}\n    {change}\n    return {used}", made)
    return made["fun"]


def parts(text: str) -> list[str]:
    return [part.strip() for part in text.replace("\n", ";").split(";") if part.strip()]
