"""Calls of functions that chunks may make by their plain names: expressions in `x`, or what is made of it, by family.

`x` is being differentiated: 12 numbers between 0.3 and 0.9. `m` is `x` as a matrix of 3 by 4, `s` a symmetric positive
definite one of 3 by 3, `z` a complex vector, `y` a vector of constants. The guide's table is made of these.
"""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Mapping
from typing import Any

from support.scipy_calls import (
    DISTANCES,
    INTEGRALS,
    SCIPY_FFT,
    SCIPY_LINALG,
    SCIPY_NDIMAGE,
    SCIPY_SIGNAL,
    SPECIAL,
    STATS,
)

UFUNCS = """
np.add(x, y) | np.subtract(y, x) | np.multiply(x, y) | np.divide(y, x) | np.true_divide(x, y) | np.negative(x)
np.positive(x) | np.power(x, y) | np.float_power(x, 2.5) | np.mod(x, 0.37) | np.remainder(1.7, x) | np.fmod(1.7, x)
np.abs(x - 0.55) | np.absolute(z) | np.fabs(x - 0.55) | np.exp(x) | np.exp2(x) | np.expm1(x) | np.log(x) | np.log2(x)
np.log10(x) | np.log1p(x) | np.sqrt(x) | np.cbrt(x) | np.square(x) | np.reciprocal(x) | np.sin(x) | np.cos(x)
np.tan(x) | np.arcsin(x) | np.arccos(x) | np.arctan(x) | np.arctan2(x, y) | np.hypot(x, y) | np.sinh(x) | np.cosh(x)
np.tanh(x) | np.arcsinh(x) | np.arccosh(1 + x) | np.arctanh(x) | np.degrees(x) | np.radians(x) | np.rad2deg(x)
np.deg2rad(x) | np.maximum(x, 0.6) | np.minimum(x, 0.6) | np.fmax(0.6, x) | np.fmin(x, 0.6) | np.logaddexp(x, y)
np.logaddexp2(x, y) | np.matmul(m, m.T) | np.vecdot(m, m * y[:4]) | np.matvec(m, x[:4]) | np.vecmat(x[:3], m)
np.copysign(x, -y) | np.ldexp(x, 3) | np.heaviside(x, 0.5) * x | np.conj(z) | np.conjugate(z) | np.floor(3 * x) * x
np.ceil(3 * x) * x | np.trunc(3 * x) * x | np.rint(3 * x) * x | np.sign(x - 0.5) * x | np.floor_divide(x, 0.2) * x
np.frexp(x)[0] | np.nextafter(x, 9.0) | np.i0(x) | np.add(x, y, dtype=float)
np.modf(3 * x)[0] | np.divmod(3 * x, 0.7)[1] | np.isfinite(x) * x | np.greater(x, 0.5) * x | np.add.reduce(m)
np.multiply.reduce(m, axis=1) | np.maximum.reduce(m) | np.add.accumulate(x) | np.subtract.outer(x, x)
np.copysign(x - 0.5, x - 0.6) | np.add(x, y, where=True) | np.modf(3 * x)[1] * x
np.logaddexp.reduce(m, axis=1) | np.logaddexp.reduce(9 * m, None, keepdims=True) | np.logaddexp.accumulate(40 * x)
np.logaddexp.accumulate(m, 1) | np.add.reduceat(m, [1, 2]) | np.add.reduceat(m, [0, 3], axis=1)
np.maximum.accumulate(x) | np.minimum.accumulate(m, axis=1) | np.maximum.accumulate(m) | np.signbit(x - 0.5) * x
np.spacing(x) * 1e16 * x | np.frexp(x)[1] * x
np.frexp(x[0])[0]
"""

REDUCTIONS = """
np.sum(m, axis=0) | np.sum(x, where=x > 0.5) | np.sum(m, axis=1, initial=x[0]) | np.prod(x, where=y > 1, initial=2.0)
np.mean(m, axis=0, where=m > 0.4) | np.std(m, correction=1) | np.var(x, where=y > 1) | np.max(m, axis=0, initial=0.6)
np.prod(x - x[0]) | np.sum(m, 1, keepdims=True) | np.prod(m, axis=1) | np.mean(m, axis=0) | np.mean(m)
np.std(m, axis=1) | np.std(x, ddof=1) | np.var(m, axis=0) | np.max(m, axis=1) | np.min(x) | np.amax(x)
np.amin(m, axis=0) | np.ptp(m, axis=1) | np.median(x) | np.median(m, axis=0) | np.percentile(x, [20.0, 70.0])
np.quantile(m, 0.3, axis=1) | np.quantile(m, [0.3, 0.8], axis=0, keepdims=True) | np.average(x, weights=y * x)
np.average(m, axis=1, weights=y[:4]) | np.nansum(hole) | np.nanprod(hole) | np.nanmean(hole) | np.nanstd(hole)
np.nanvar(hole, ddof=1) | np.nanmax(hole) | np.nanmin(hole) | np.nanmedian(hole) | np.nanquantile(hole, 0.4)
np.nanpercentile(hole, 40.0) | np.nancumsum(hole) | np.nancumprod(hole) | np.cumsum(m, axis=1) | np.cumsum(m)
np.cumprod(x) | np.cumprod(x - 0.5) | np.cumprod(x - x[2]) | np.cumprod(m, axis=1)
np.cumulative_sum(x, include_initial=True) | np.cumulative_prod(m, axis=0) | np.trapezoid(x, y)
np.trapezoid(m, dx=0.5) | np.count_nonzero(x) * x | np.any(x > 0.5) * x | np.all(x > 0.5) * x | np.argmax(x) * x
np.argmin(x) * x | np.argsort(x) * x | np.searchsorted(y, x) * x | np.allclose(x, x) * x | np.nonzero(x)[0] * x
np.sum(m, axis=1, keepdims=1, where=m > 0.4) | np.max(m, axis=0, keepdims=1, where=m > 0.4, initial=0.3)
np.prod(m, axis=1, keepdims=1, where=m > 0.4) | np.var(hole, where=y <= 1.5) | np.std(hole, where=y <= 1.5, keepdims=1)
np.mean(hole, where=y <= 1.5, keepdims=1) | np.trapezoid(x[:3], [0.0, 1.0, 3.0])
np.quantile(x[:1], 0.3) | np.nanmedian(x[None], axis=0)
np.nanmedian(hole.reshape(3, 4), axis=0) | np.nanquantile(hole.reshape(3, 4), [0.3, 0.8], axis=1, keepdims=True)
np.nanpercentile(hole.reshape(3, 4), 30, axis=0) | np.histogram(y, bins=3, weights=x**2)[0]
np.trapezoid(m, dx=y[:2, None], axis=0)
np.sum(m, 0, float) | np.max(m, 0, None, True) | np.mean(m, 1, float, None, True)
np.cumulative_prod(x, include_initial=True)
np.nanmean(hole.reshape(3, 4), axis=1) | np.nanvar(hole.reshape(3, 4), axis=1, keepdims=True)
np.nanmax(hole.reshape(3, 4), axis=1, keepdims=True) | np.nansum(hole.reshape(3, 4), 0)
np.histogram(x, bins=[0.0, 0.5, 1.0])[0] * x[:2] | np.histogram(x, bins=3)[1] | np.histogram(x, bins=3, density=True)[0]
np.histogram_bin_edges(x, 4) | np.histogramdd((y, 2 * y), bins=(2, 3), weights=x)[0]
np.histogramdd([y, x], bins=(2, 3), weights=x, density=True)[0] | np.histogramdd(m.T, bins=2)[1][1]
np.histogramdd([x[:2], x[2:4]], bins=2)[0] * x[:2] | np.histogram2d(y, x, bins=(2, 3), weights=x**2)[0]
np.histogram2d(x, y, bins=[0.0, 0.5, 0.8, 1.5])[0] * x[:3] | np.histogram2d(x, y, bins=3)[1]
np.histogram2d(x, y, bins=2, density=True)[0] | np.histogramdd(m, bins=2, range=[(0, 1)] * 4, weights=x[:3])[0]
np.histogram2d(y, x, bins=[[0.0, 0.5, 1.0], [0.0, 0.6, 0.8, 1.5]], weights=x)[0]
np.histogram2d(y, x, bins=[1, 2], range=[[0, 1], [0, 2]], weights=x)[0]
np.histogram2d(y, x, bins=[2, 3], weights=x)[0]
np.histogram2d(y, x, bins=[3, [0.0, 0.6, 1.5]], weights=x)[0]
np.histogram2d(y, y, bins=[0.0, x[0], 0.5 + x[1], 2.0], weights=x, density=True)[0]
np.histogram2d(y, y, bins=np.cumsum(x[:4]), weights=x)[1] | np.histogram2d(y, x, bins=y[[0, 5, 11]], weights=x)[0]
np.histogramdd([y, x], bins=[[0, 1, 2], [0, 0.5, 1, 2]], weights=x)[0]
np.histogramdd([y], bins=[[0, 1, 2]], weights=x)[0]
np.histogramdd([y, 2 * y, x], bins=(2, [0, 1, 4], range(3)), weights=x)[0]
np.histogramdd([y, 2 * y], bins=[[0.0, x[0], 2.0], [0.0, 1.5, 2.0, 4.0]], weights=x, density=True)[0]
np.histogramdd([y, 2 * y], bins=[np.cumsum(x[:3]), 3], weights=x)[1][0]
np.prod(x[:0]) + x[0] | np.nanprod(m[:, :0], axis=1) + x[:3] | np.nanmedian(m[:0], axis=1) | np.cumsum(x[0])
np.quantile(x, 1) | np.quantile(x, [0.05, 0.3], method="lower") | np.percentile(m, 30, axis=1, method="nearest")
np.quantile(m, 0.2, axis=1, method="hazen") | np.percentile(x, 33, method="averaged_inverted_cdf")
np.nanquantile(hole.reshape(3, 4), [0.3, 0.8], axis=1, method="higher") | np.quantile(x, 0.07, method="inverted_cdf")
np.quantile(x, [0.0, 0.5, 0.25, 1.0], method="nearest") | np.nanpercentile(hole, 40, method="median_unbiased")
np.quantile(m, 0.4, (0, 1), method="midpoint", keepdims=True)
"""

SHAPES = """
np.reshape(x, (3, 4)) | np.ravel(m) | np.transpose(m) | np.swapaxes(m, 0, 1) | np.moveaxis(m, 0, 1)
np.rollaxis(m, 1) | np.squeeze(m[None]) | np.expand_dims(x, 0) | np.broadcast_to(x, (2, 12))
np.broadcast_arrays(x[:4], m)[0] | np.atleast_1d(x) * x | np.atleast_2d(x, m)[1] * m
np.atleast_1d(x[0]) | np.atleast_2d(x) | np.atleast_3d(m)
np.concatenate([x, y, x]) | np.concatenate([m, m], axis=None) | np.stack([x, y], axis=1) | np.stack([x[0], 1.5, x[1]])
np.vstack([x, y]) | np.hstack([x, x]) | np.dstack([m, m]) | np.column_stack([x, y])
np.block([[m, m], [s, y[:3, None] * s[:, :1], np.ones((3, 4))]]) | np.append(x, y) | np.insert(x, 3, x[:2])
np.delete(x, [1, 4]) | np.resize(x, 15) | np.repeat(x, 2) | np.repeat(m, [1, 0, 2], axis=0) | np.tile(m[:, :3], 2)
np.tile(x, (2, 2)) | np.pad(x, 2) | np.pad(x, 2, mode="edge") | np.split(x, 3)[1] | np.array_split(x, 5)[2]
np.hsplit(m, 2)[0] | np.vsplit(m, 3)[1] | np.dsplit(m[None], 2)[1] | np.unstack(m)[1] | np.flip(m)
np.flip(m, axis=1) | np.flipud(m) | np.fliplr(m) | np.rot90(m) | np.roll(x, 3) | np.roll(m, (1, 2), axis=(0, 1))
np.take(x, [3, 1, 3]) | np.take_along_axis(m, np.argsort(m, axis=1), axis=1) | np.compress(y > 1, x)
np.extract(y > 1, x) | np.diag(x) | np.diag(m, 1) | np.diagonal(m) | np.diagonal(m[None], 1, 1, 2) | np.diagflat(m)
np.trace(s) | np.trace(m, 1) | np.tril(m) | np.triu(m, 1) | np.vander(x[:3]) | np.sort(x) | np.sort(m, axis=0)
np.partition(x, 4) | np.meshgrid(x, y)[0] | np.where(y > 1, x, 0.0) | np.where(x > 0.5, x[0], x)
np.select([x > 0.7, x > 0.4], [x, x**2], 0.1) | np.copy(x) | np.choose(np.arange(12) % 2, [x, 2 * x])
np.lib.stride_tricks.sliding_window_view(x, 3) | np.angle(z, False)
np.piecewise(x, [x > 0.5], [np.exp, lambda t: t**2]) | np.astype(x, float) | np.apply_along_axis(np.sum, 1, m)
np.apply_along_axis(np.sort, 0, m) | np.apply_along_axis(np.cumsum, -2, m) | np.clip(x, 0.4, 0.7)
np.clip(x, x[0], None) | np.full_like(x, x[0])
np.matrix_transpose(m) | np.permute_dims(m, (1, 0)) | np.concat([x, x]) | np.nan_to_num(hole)
np.nan_to_num(hole, nan=x[0]) | np.repeat(m, 2, axis=-1) | np.repeat(m, [1, 0, 2, 1], axis=1)
np.choose([0, 1] * 6, [x, 2 * x]) | np.piecewise(x[:2], x[:2] > x[0], [np.exp, lambda t: t**2])
np.insert(y, 3, values=x[0]) | np.insert(np.arange(11), 3, 9 * x[0]) * x | np.clip(x[:4], np.full((3, 4), 0.45), None)
np.full_like(x, x[0], shape=(3,)) | np.full_like(x, 5 * x[0], dtype=int) * x | np.full_like(m, x[0], x.dtype)
np.partition(m, 1, axis=0)
np.transpose(m[None], (-1, 0, 1)) | np.ravel(m.T, order="A") | np.reshape(m.T, (2, 6), order="A")
np.ravel(m.T, "K") | np.astype(9 * x, int) * x
np.tril(x[:4] ** 2) | np.triu(x[:4] ** 2, 1) | np.hsplit(x, [3])[1] | np.piecewise(x[0], [x[0] > 0.1], [np.exp])
"""

NUMBERS = """
np.dot(m, x[:4]) | np.vdot(x, y) | np.inner(m, m) | np.outer(x, y) | np.outer(m, y)
np.tensordot(m, m, axes=([1], [1])) | np.einsum("ij,kj->ik", m, m) | np.einsum("ij->j", m) | np.kron(x[:3], y[:2])
np.cross(x[:3], x[3:6]) | np.convolve(x, y[:3]) | np.convolve(x, x[:5]) | np.convolve(z, y)
np.convolve(x[:5], y, mode="same") | np.convolve(y, x[:3], mode="valid") | np.correlate(x, y[:4])
np.correlate(x[:4], y, mode="same") | np.correlate(y, x, mode="full") | np.interp(x, [0.0, 0.5, 1.0], [0.0, 2.0, 1.0])
np.interp([0.1, 0.6, 9.0], np.linspace(0, 1, 12), x) | np.bincount(np.arange(12) % 5, weights=x, minlength=7)
np.bincount(np.arange(12) % 5, x) * x[:5] | np.cov(m, bias=True) | np.cov(m, ddof=2)
np.bincount(np.arange(12) % 5, x) | np.cov(m) | np.cov(x, y) | np.cov(m, rowvar=False) | np.var(x)
np.corrcoef(m) | np.diff(x) | np.diff(m, 2, axis=1) | np.diff(x, prepend=0.0) | np.ediff1d(x) | np.gradient(x)
np.gradient(m, axis=0) | np.gradient(m[:2])[0] | np.gradient(x, y) | np.unwrap(9 * x) | np.sinc(x) | np.sinc(x - x[0])
np.real(z) | np.imag(z) | np.angle(z) | np.real_if_close(z).real | np.polyval([1.0, 2.0, 3.0], x)
np.polyval(x[:3], 2.0) | np.linspace(x[0], x[1], 5) | np.linspace(x[:2], x[2:4], 4, endpoint=False)
np.logspace(x[0], x[1], 4) | np.geomspace(x[0], x[1], 4) | np.round(5 * x) * x | np.digitize(x, [0.4, 0.6]) * x
np.ones_like(x) * x | np.zeros_like(x) + x | np.convolve(x, y, mode="valid") | np.convolve(x[:4], y[:4], mode="same")
np.convolve(x[:4], y, mode="valid") | np.correlate(x, y)
np.geomspace(-x[0], -x[1], 4) | np.geomspace(-x[:2], -8.0, 4)
np.gradient(x[:3], [0.0, 1.0, 3.0]) | np.polyval(x[:3], [1.0, 2.0]) | np.diff(y, append=x[0])
np.diff(m, append=x[:3, None])
np.cross(m[:, :3], x[:3]) | np.cross(x[:3], m[:3].T, axisc=0)
np.average(m[None], axis=(2, 0), weights=x[:4, None])
np.interp(7 * x, [0.1, 0.8, 0.4], x[:3], period=0.9) | np.interp(4 * y, x[3:6], x[:3], period=-x[7])
np.gradient(x, edge_order=2) | np.gradient(m, y[:3] ** 2, x[0], edge_order=2)[0] | np.gradient(y, x, edge_order=2)
np.polyder(x) | np.polyder(x, 3) | np.polyint(x) | np.polyint(x, 2, [1.0, 2.0]) | np.polyint(x[2:], 2, k=x[:1])
np.interp([0.2, 0.4, 0.5], [0.4], x[:1]) | np.interp(x, [0.4], [2.0])
np.trace(m, dtype=float)
np.einsum("ii->i", s) | np.einsum("ii", s) | np.einsum("...ii->...i", s[None] * y[:2, None, None])
np.einsum("iij,jk->ik", s[:, :, None] * m[:, None, :], m.T) | np.einsum("ij,kk", m, s)
np.einsum("ij,jk", m, m.T, optimize=np.einsum_path("ij,jk", m, m.T)[0]) | np.einsum("i,i->i", x, y, dtype=complex)
np.einsum("ij,ij->i", m[:, :1], np.cumsum(m, axis=1)) | np.einsum("ij,j", m**2, x[:1]) | np.einsum(m, [0, 1], [1])
np.einsum(m, [0, 1], x[:4], [1]) | np.einsum(m, [..., 0], x[:4], [0], [...]) | np.einsum(s, [0, 0], y[:3], [1])
np.einsum("ij,j->i", m, x[:4], dtype=float, order="F")
"""

LINALG = """
np.linalg.det(s) | np.linalg.slogdet(s)[1] | np.linalg.slogdet(s).logabsdet | np.linalg.inv(s) | np.linalg.pinv(m)
np.linalg.solve(s, x[:3]) | np.linalg.solve(s, m) | np.linalg.cholesky(s) | np.linalg.eigh(s)[0]
np.linalg.eigh(s).eigenvectors ** 2 | np.linalg.eigvalsh(s) | np.real(np.linalg.eigvals(s))
np.real(np.linalg.eig(s)[0]) | np.linalg.svd(m, full_matrices=False)[1] | np.linalg.svd(m, compute_uv=False)
np.linalg.svdvals(m) | np.linalg.qr(m.T)[1] | np.linalg.qr(m.T).Q | np.linalg.qr(s)[0] | np.linalg.qr(m.T, mode="r")
np.linalg.qr(m)[1] | np.linalg.svd(s)[0] | np.linalg.svd(s)[1]
np.linalg.norm(x) | np.linalg.norm(m) | np.linalg.norm(m, axis=1) | np.linalg.norm(x, 1) | np.linalg.norm(x, np.inf)
np.linalg.norm(m, 2) | np.linalg.norm(m, "nuc") | np.linalg.norm(m, axis=0, keepdims=True) | np.linalg.norm(x, 3)
np.linalg.vector_norm(x) | np.linalg.vector_norm(m, axis=1, ord=3) | np.linalg.matrix_norm(m) | np.linalg.cond(s)
np.linalg.matrix_power(s, 3) | np.linalg.matrix_power(s, -2) | np.linalg.multi_dot([m, m.T, s])
np.linalg.lstsq(m.T, x[:4])[0] | np.linalg.tensorsolve(s, x[:3]) | np.linalg.tensorinv(s, ind=1)
np.linalg.matrix_rank(s) * x | np.linalg.outer(x, y) | np.linalg.cross(x[:3], x[3:6]) | np.linalg.diagonal(m)
np.linalg.trace(m) | np.linalg.matmul(m, m.T) | np.linalg.tensordot(m, m) | np.linalg.vecdot(m, m)
np.linalg.matrix_transpose(m)
np.linalg.cholesky(s, upper=True) | np.linalg.cholesky(s + 0.1j * (m[:, :3] - m[:, :3].T), upper=True)
np.linalg.solve(np.stack([s, 2 * s]), m) | np.linalg.matrix_norm(m, ord="nuc") | np.linalg.matrix_norm(m, ord=1)
np.linalg.matrix_norm(x.reshape(2, 2, 3), ord="nuc") | np.linalg.matrix_norm(x.reshape(2, 2, 3), ord=-2)
np.linalg.matrix_norm(x.reshape(2, 2, 3), ord=2, keepdims=True) | np.linalg.matrix_norm(x.reshape(2, 2, 3), ord=-1)
np.linalg.matrix_norm(x.reshape(2, 2, 3), ord=np.inf) | np.linalg.matrix_norm(m, ord=-np.inf)
np.linalg.matrix_norm(x.reshape(1, 2, 2, 3), ord="nuc") | np.linalg.norm(x.reshape(2, 2, 3), "fro", axis=(1, 2))
np.linalg.solve(s, z[:3]) | np.linalg.solve(s + 0.1j * s, x[:3])
np.linalg.svd(s, hermitian=True)[1] | np.linalg.eigvalsh(s, UPLO="U") | np.linalg.pinv(s, hermitian=True)
np.linalg.det(np.outer(x[:3], x[3:6]))
np.linalg.norm(m, axis=(0,)) | np.linalg.eigh(s, "U").eigenvectors
np.linalg.svd(m[:, :3], hermitian=True)[1]
np.linalg.pinv(m[:, :3] + 3 * s, hermitian=True) | np.linalg.pinv(m[:, :3] + 3 * s, None, True)
"""

FFT = """
np.fft.fft(x) | np.fft.ifft(z) | np.fft.rfft(x) | np.fft.irfft(z) | np.fft.fft2(m) | np.fft.ifft2(m) | np.fft.rfft2(m)
np.fft.irfft2(m) | np.fft.fftn(m) | np.fft.ifftn(m) | np.fft.rfftn(m) | np.fft.irfftn(m) | np.fft.fftshift(x)
np.fft.ifftshift(x) | np.fft.hfft(z) | np.fft.ihfft(x) | np.fft.hfft(z.reshape(3, 4)) | np.fft.ihfft(m)
np.fft.rfft(x[:7]) | np.fft.rfft(m, 5, axis=0, norm="forward") | np.fft.irfft(z, norm="backward")
np.fft.irfft(z, 7) | np.fft.rfft2(m, norm="forward") | np.fft.irfft2(z.reshape(3, 4), (3, 5), axes=(1, 0))
np.fft.rfft(x, n=16) | np.fft.rfft(m, n=6, axis=0) | np.fft.irfft(z, n=8)
np.fft.rfftn(m[None], (3, 3), axes=(1, 2)) | np.fft.irfftn(z.reshape(2, 3, 2), norm="forward") | np.fft.hfft(z, 7)
"""

METHODS = """
x.sum(0, None, None, True) | m.sum(axis=0) | m.mean(axis=1, where=m > 0.4) | x.std(ddof=1) | x.var() | x.prod()
x.max(where=y > 1, initial=0.1) | m.min(axis=1) | m.cumsum(axis=0) | x.cumprod()
m.compress([True, False, True], axis=0) | m.transpose(1, 0) | m.T | m.mT | m.reshape(2, -1) | m.ravel() | m.flatten()
m[None].squeeze() | m.swapaxes(0, 1) | m.trace() | m.diagonal() | x.take([1, 2, 1]) | x.repeat(2) | x.clip(0.4, 0.7)
x.dot(y) | x.copy() | z.conj() | z.real | z.imag | x.argmax() * x | x.argsort() * x | (9 * x).round() * x
x.astype(float) | x.astype(complex)
x[::-2] | m[:, 1] | m[[2, 0, 2]] | x[x > 0.5] | m @ m.T | y @ x | x**2 | 2.0**x | x**y | y / x | -x
abs(x - 0.5) | x % 0.3 | divmod(2 * x, 0.7)[1] | x // 0.2 * x
m[None].transpose(-1, 0, 1) | m.T.flatten("A") | x.astype(int) * x | y[(9 * x).astype(int)] * x
"""

FAMILIES = {
    "Functions of entries": UFUNCS,
    "Sums, means, order": REDUCTIONS,
    "Shapes and choice": SHAPES,
    "Products, signals, numbers": NUMBERS,
    "numpy.linalg": LINALG,
    "numpy.fft": FFT,
    "Methods and operators": METHODS,
    "scipy.special": SPECIAL,
    "scipy.linalg": SCIPY_LINALG,
    "scipy.stats": STATS,
    "scipy.integrate, numpy.polynomial": INTEGRALS,
    "scipy.fft": SCIPY_FFT,
    "scipy.signal": SCIPY_SIGNAL,
    "scipy.ndimage": SCIPY_NDIMAGE,
    "scipy.spatial.distance": DISTANCES,
}


# What jax has no function for, or none with the same result: `engine="jax"` refuses it by name. `test_numpy_compiled`
# finds these, and no others.
NOT_IN_JAX = frozenset(
    {
        'linalg.svd(m, False, lapack_driver="gesvd")[0]',
        'np.nanpercentile(hole, 40, method="median_unbiased")',
        "np.gradient(x, edge_order=2)",
        "np.gradient(m, y[:3] ** 2, x[0], edge_order=2)[0]",
        "np.gradient(y, x, edge_order=2)",
        "np.nonzero(x)[0] * x",
        "np.partition(x, 4)",
        "np.partition(m, 1, axis=0)",
        'np.ravel(m.T, order="A")',
        'np.reshape(m.T, (2, 6), order="A")',
        'np.ravel(m.T, "K")',
        "np.real_if_close(z).real",
        "np.real(np.linalg.eig(s)[0])",
        "x[x > 0.5]",
        'm.T.flatten("A")',
        "y[(9 * x).astype(int)] * x",
        "special.betaincinv(2.0, 3.0, x)",
        "special.betainccinv(2.0, 3.0, x)",
        "special.erfi(x)",
        "special.eval_jacobi(3, 0.5, 0.7, x)",
        "special.exp1(x)",
        "special.expi(x)",
        "special.expn(3, x)",
        "special.gammainccinv(2.0, x)",
        "special.gammaincinv(2.0, x)",
        "special.hyp0f1(1.5, x)",
        "special.hyp2f1(0.5, 0.7, 1.5, x)",
        "special.hyperu(0.5, 1.5, x)",
        "special.iv(0.5, x)",
        "special.ive(0.5, x)",
        "special.j0(x)",
        "special.j1(x)",
        "special.jv(1.5, x)",
        "special.k0(x)",
        "special.k0e(x)",
        "special.k1(x)",
        "special.k1e(x)",
        "special.kn(2, x)",
        "special.kv(1.5, x)",
        "special.kve(1.5, x)",
        "special.modstruve(1.5, x)",
        "special.ndtri_exp(-x)",
        "special.stdtrit(4.0, x)",
        "special.struve(1.5, x)",
        "special.y0(x)",
        "special.y1(x)",
        "special.yv(1.5, x)",
        "special.yn(1, x)",
        "special.jv([0, 1, 2], np.linalg.norm(x[:3]))",
        "special.iv([[0], [1]], x[:3] @ m)",
        "special.expn(1, x)",
        "special.expn([0, 2], x[0])",
        "special.shichi(x)",
        "special.airy(x)",
        "special.airy(-9 * x)[0]",
        "special.hankel1(1.5, x)",
        "special.hankel2(0, 9 * z)",
        "special.spherical_jn(2, 3 * x)",
        "special.spherical_jn([[0], [1]], x, derivative=True)",
        "special.spherical_yn(1, -x)",
        "special.spherical_yn(0, 9 * x, True)",
        "special.spherical_in(1, x)",
        "special.spherical_in(2, z, derivative=True)",
        "special.spherical_kn(1, x)",
        "special.spherical_kn(0, x, derivative=True)",
        "special.ber(9 * x)",
        "special.bei(x)",
        "special.ker(x)",
        "special.kei(9 * x)",
        "special.berp(x)",
        "special.beip(x)",
        "special.kerp(x)",
        "special.keip(x)",
        'linalg.eigh_tridiagonal(x[:4], y[:3], select="i", select_range=(1, 2))[0]',
        'linalg.qr(m.T, mode="economic", pivoting=True)[0]',
        'linalg.qr(s, mode="r", pivoting=True)[0]',
        "np.real(linalg.eig(s)[0])",
        "np.abs(linalg.eig(m[:, :3])[1])",
        "stats.gamma.ppf(x, 2.0)",
        "stats.gamma.isf(x, 2.0)",
        "stats.chi2.ppf(x, 3.0)",
        "stats.chi2.isf(x, 3.0, 0.0, y)",
        "stats.beta.ppf(x, 2.0, 3.0)",
        "stats.beta.isf(x, 2.0, 3.0)",
        "stats.t.ppf(x, 4.0, y)",
        "stats.t.isf(x, 4.0)",
        "integrate.simpson(x[:7])",
        "integrate.simpson(m, dx=0.3)",
        "integrate.simpson(x[:5], x=y[:5] ** 2)",
        "integrate.simpson(x[:6], x=y[:6] ** 2)",
        "integrate.simpson(y, x=y + x / 9)",
        "integrate.simpson(m, axis=0)",
        "integrate.simpson(x[:2])",
        "integrate.simpson(m, x=np.cumsum(m, axis=1))",
        "integrate.simpson(y[:5], x=x[:5] + 2 * y[:5])",
        "integrate.cumulative_trapezoid(x, y)",
        "integrate.cumulative_trapezoid(m, axis=0, initial=0)",
        "integrate.cumulative_trapezoid(m * y[:4], x=m, initial=0)",
        "special.gammaincinv(3 * x, y / 2)",
        "special.gammainccinv(3 * x, y / 2)",
        "special.betainc(2 * x, 3 * x, y / 2)",
        "special.betaincc(9 * x, y, x)",
        "special.betaincinv(2 * x, 3 * x, y / 2)",
        "special.betainccinv(2 * x, y, x)",
        "special.fdtr(3 * x, 5 * x, y)",
        "special.fdtrc(3 * x, 5 * x, y)",
        "special.stdtr(4 * x, y - 1)",
        "special.stdtr(4 * x, 9 * y)",
        "special.stdtrit(4 * x, y / 2)",
        "stats.beta.logcdf(x, 2 * x, y)",
        "stats.betaprime.cdf(y, 3 * x, 2.0)",
        "stats.f.logsf(y, 5 * x, 4 * y)",
        "stats.geninvgauss.logpdf(y, 1.3, x)",
        "stats.ncx2.logpdf(y, 3.0, x)",
        "stats.norminvgauss.logpdf(y, 2 * x, x)",
        "stats.skellam.logpmf(np.arange(12) - 5, 3 * x, y)",
        "stats.t.logcdf(y - 2, 5 * x)",
        "stats.gamma.ppf(x, 2 * y)",
        "stats.t.ppf(x, 3 * y)",
        "stats.beta.isf(0.3, 2 * x, y)",
        "stats.invgamma.ppf(x, 2.0)",
        "stats.invgamma.isf(x, 2 * y)",
        "stats.maxwell.ppf(x)",
        "stats.maxwell.isf(x)",
        "stats.genpareto.ppf(x, y - 1)",
        "stats.genpareto.isf(0.01, x - 0.6)",
        "stats.genextreme.ppf(x, y - 1)",
        "stats.genextreme.isf(0.01, x - 0.6)",
    }
)


def calls(text: str) -> list[str]:
    """Return the expressions of a family."""
    return [call.strip() for line in text.strip().splitlines() for call in line.split(" | ")]


NEWER_OPTIONS = {"linalg.inv": "assume_a"}  # of scipy 1.17


def is_here(call: str, homes: Mapping[str, Any]) -> bool:
    """Return whether this numpy and this scipy have what an expression names: newer ones have more."""
    for dotted in re.findall(rf"\b(?:{'|'.join(homes)})(?:\.[a-zA-Z]\w*)+", call):
        home, _, rest = dotted.partition(".")
        try:
            function = operator.attrgetter(rest)(homes[home])
        except AttributeError:
            return False
        option = NEWER_OPTIONS.get(dotted, "")
        if option and option in call and option not in inspect.signature(function).parameters:
            return False
    return True


def name(call: str) -> str:
    """Return the name of the function that an expression is about: its first, but for what takes a part of it."""
    names = re.findall(r"(?:np|special|linalg|stats|integrate|distance|fft|signal|ndimage)\.[a-z_A-Z0-9.]+(?=\()", call)
    if not names:  # a method or an operator
        method = re.match(r"[xmz](?:\[None\])?\.(\w+)", call)
        return f"x.{method[1]}" if method else ""
    return str(names[1] if len(names) > 1 and names[0] in ("np.real", "np.imag") else names[0])
