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
np.quantile(x, 1)
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
np.apply_along_axis(np.sort, 0, m) | np.clip(x, 0.4, 0.7) | np.clip(x, x[0], None) | np.full_like(x, x[0])
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

SPECIAL = """
special.softmax(x) | special.softmax(m, axis=1) | special.log_softmax(x) | special.log_softmax(m, axis=0)
special.beta(x, y) | special.betaln(x, y) | special.betainc(2.0, 3.0, x) | special.betaincc(2.0, 3.0, x)
special.betaincinv(2.0, 3.0, x) | special.betainccinv(2.0, 3.0, x) | special.binom(5 * x, y) | special.boxcox(x, y)
special.boxcox(y, x - x[0]) | special.boxcox1p(x, y) | special.inv_boxcox(x, y) | special.inv_boxcox1p(x, y)
special.bdtr(2, 5, x) | special.bdtrc(2, 5, x) | special.cbrt(x) | special.chdtr(3.0, x) | special.chdtrc(3.0, x)
special.cosm1(x) | special.cosdg(9 * x) | special.sindg(9 * x) | special.tandg(9 * x) | special.cotdg(9 * x)
special.dawsn(x) | special.digamma(x) | special.entr(x) | special.erf(x) | special.erfc(x) | special.erfcinv(x)
special.erfcx(x) | special.erfi(x) | special.erfinv(x) | special.eval_chebyt(4, x) | special.eval_chebyu(3, x)
special.eval_gegenbauer(3, 0.7, x) | special.eval_genlaguerre(3, 0.7, x) | special.eval_hermite(4, x)
special.eval_hermitenorm(1, x) | special.eval_jacobi(3, 0.5, 0.7, x) | special.eval_laguerre(4, x)
special.eval_legendre(np.arange(12), x) | special.exp1(x) | special.exp10(x) | special.exp2(x) | special.expi(x)
special.expit(x) | special.expm1(x) | special.expn(3, x) | special.exprel(x) | special.exprel(x - x[0])
special.fdtr(3.0, 5.0, x) | special.fdtrc(3.0, 5.0, x) | special.gamma(x) | special.gammainc(2.0, x)
special.gammaincc(2.0, x) | special.gammainccinv(2.0, x) | special.gammaincinv(2.0, x) | special.gammaln(x)
special.gdtr(x, 2.0, y) | special.gdtr(1.5, 2.0, x) | special.gdtrc(x, 2.0, y) | special.huber(x, y)
special.huber(y, 3 * x) | special.hyp0f1(1.5, x) | special.hyp1f1(0.5, 1.5, x) | special.hyp2f1(0.5, 0.7, 1.5, x)
special.hyperu(0.5, 1.5, x) | special.i0(x) | special.i0e(x) | special.i1(x) | special.i1e(x) | special.iv(0.5, x)
special.ive(0.5, x) | special.j0(x) | special.j1(x) | special.jv(1.5, x) | special.k0(x) | special.k0e(x)
special.k1(x) | special.k1e(x) | special.kn(2, x) | special.kv(1.5, x) | special.kve(1.5, x) | special.kl_div(x, y)
special.kl_div(y, x) | special.log1p(x) | special.log_expit(x) | special.log_ndtr(-9 * x) | special.loggamma(x)
special.logit(x) | special.modstruve(1.5, x) | special.ndtr(x) | special.ndtri(x) | special.ndtri_exp(-x)
special.owens_t(x, y) | special.owens_t(y, x) | special.pdtr(3, x) | special.pdtrc(3, x) | special.poch(x, y)
special.poch(y, x) | special.powm1(x, y) | special.powm1(y, x) | special.pseudo_huber(x, y)
special.pseudo_huber(y, x) | special.psi(x) | special.rel_entr(x, y) | special.rel_entr(y, x) | special.rgamma(x)
special.stdtr(4.0, x) | special.stdtrit(4.0, x) | special.struve(1.5, x) | special.wrightomega(x)
special.xlog1py(x, y) | special.xlog1py(y, x) | special.xlogy(x, y) | special.xlogy(y, x) | special.y0(x)
special.y1(x) | special.yv(1.5, x)
special.yn(1, x) | special.jv([0, 1, 2], np.linalg.norm(x[:3])) | special.iv([[0], [1]], x[:3] @ m)
special.polygamma([1, 2, 3], np.linalg.norm(x[:3])) | special.expn(1, x) | special.expn([0, 2], x[0])
special.gammainc(3 * x, y) | special.gammaincc(3 * x, 3 * y) | special.gammaincinv(3 * x, y / 2)
special.gammainccinv(3 * x, y / 2) | special.betainc(2 * x, 3 * x, y / 2) | special.betaincc(9 * x, y, x)
special.betaincinv(2 * x, 3 * x, y / 2) | special.betainccinv(2 * x, y, x) | special.chdtr(3 * x, y)
special.chdtrc(3 * x, 3 * y) | special.gdtr(1.5, 3 * x, y) | special.gdtrc(1.5, 3 * x, y) | special.stdtr(4 * x, y - 1)
special.stdtr(4 * x, 9 * y) | special.stdtrit(4 * x, y / 2) | special.fdtr(3 * x, 5 * x, y)
special.fdtrc(3 * x, 5 * x, y)
special.softmax(x[0])
special.fresnel(x) | special.sici(9 * x) | special.shichi(x) | special.airy(x) | special.airy(-9 * x)[0]
special.spence(3 * x) | special.wofz(9 * z) | special.wofz(x) | special.voigt_profile(9 * x, y, x)
special.voigt_profile(x, x, 0.1) | special.voigt_profile(5.0, y / 9, x) | special.zeta(2.5, x) | special.lambertw(x)
special.lambertw(-x / 3, -1) | special.lambertw(z, 2) | special.ellipk(x) | special.ellipk(-9 * x) | special.ellipkm1(x)
special.ellipe(x) | special.ellipkinc(9 * x, x[0]) | special.ellipkinc(1.5, x) | special.ellipeinc(9 * x, x[0])
special.ellipeinc(1.5, x) | special.elliprf(x, y, 0.1) | special.elliprd(y, x, x) | special.elliprc(x, y)
special.elliprc(y, -x) | special.agm(x, y) | special.kolmogorov(2 * x) | special.factorial(4 * x) | special.diric(x, 5)
special.diric(x - x[0], 4) | special.round(5 * x) * x | special.hankel1(1.5, x) | special.hankel2(0, 9 * z)
special.spherical_jn(2, 3 * x) | special.spherical_jn([[0], [1]], x, derivative=True) | special.spherical_yn(1, -x)
special.spherical_yn(0, 9 * x, True) | special.spherical_in(1, x) | special.spherical_in(2, z, derivative=True)
special.spherical_kn(1, x) | special.spherical_kn(0, x, derivative=True) | special.ber(9 * x) | special.bei(x)
special.ker(x) | special.kei(9 * x) | special.berp(x) | special.beip(x) | special.kerp(x) | special.keip(x)
special.nbdtr(3, 4, x) | special.nbdtrc(3, 4, x) | special.gammasgn(x) * x
special.wrightomega(9 * x - 5) | special.exprel(90 * x - 50) | special.inv_boxcox(x - x[0], y)
special.eval_hermite(np.arange(12) % 4, x) | special.stdtr([0.7, 3.0, 99.0], 9 * x[:3] - 5)
"""

SCIPY_LINALG = """
linalg.solve(s, x[:3]) | linalg.solve(s, m, assume_a="pos") | linalg.inv(s)
linalg.inv(m[:, :3] + 3 * s, assume_a="sym") | linalg.det(s) | linalg.cholesky(s) | linalg.cholesky(s, lower=True)
linalg.cho_factor(s)[0] | linalg.cho_solve(linalg.cho_factor(s), x[:3])
linalg.cho_solve((linalg.cholesky(s, lower=True), True), m) | linalg.solve_triangular(s, x[:3], lower=True)
linalg.solve_triangular(s, m, trans=1) | linalg.solve_triangular(s, x[:3], unit_diagonal=True)
linalg.solve_banded((1, 1), m[:, :3] + 2 * y[:3, None], x[:3])
linalg.solveh_banded(m[:2] + [[3.0], [0.0]], x[:4], lower=True) | linalg.eigh(s)[0]
linalg.eigh(s)[1] * np.sign(linalg.eigh(s)[1][0]) | linalg.eigh(s, eigvals_only=True) | linalg.eigvalsh(s)
linalg.svd(m, False)[1] | linalg.svd(s)[0] | linalg.svdvals(m) | linalg.qr(m.T, mode="economic")[0] | linalg.qr(s)[1]
linalg.qr(m.T, mode="economic", pivoting=True)[0] | linalg.qr(s, mode="r", pivoting=True)[0]
linalg.lu(s + m[:, :3])[1] | linalg.lu(s - m[:, :3])[2]
linalg.pinv(m) | linalg.norm(m) | linalg.norm(x, 1) | linalg.norm(m, axis=1) | linalg.polar(s + m[:, :3])[0]
linalg.lstsq(m.T, x[:4])[0] | linalg.lstsq(m.T, x[:4])[1] | linalg.solve_sylvester(s, s, m[:, :3])
linalg.solve_continuous_lyapunov(s, s) | linalg.solve_discrete_lyapunov(s / 9, s) | linalg.toeplitz(x[:4])
linalg.toeplitz(x[:3], x[:4]) | linalg.hankel(x[:3]) | linalg.circulant(x[:4]) | linalg.convolution_matrix(x[:3], 4)
linalg.block_diag(m, s) | linalg.khatri_rao(m, m) | linalg.solve_toeplitz(x[:4] + 4 * (y[:4] < 0.51), y[:4])
linalg.solve_circulant(x[:4] + 4 * (y[:4] < 0.51), y[:4]) | linalg.matmul_toeplitz(x[:4], m.T) | linalg.expm(s)
linalg.logm(s) | linalg.sqrtm(s) | linalg.sinm(s) | linalg.cosm(s) | linalg.tanm(s / 9) | linalg.sinhm(s)
linalg.coshm(s) | linalg.tanhm(s) | linalg.solve_toeplitz((x[:4] + 4 * (y[:4] < 0.51), x[4:8]), y[:4])
linalg.solve_toeplitz((y[:4], x[4:8]), x[:4]) | linalg.matmul_toeplitz((x[:4], x[4:8]), m.T)
linalg.matmul_toeplitz((x[:4], y[:4]), x=m.T) | linalg.solve_sylvester(s, np.eye(3), np.ones((3, 3)))
linalg.svd(m, False, lapack_driver="gesvd")[0] | linalg.expm(np.stack([s, 2 * s]))
linalg.lu_factor(s - m[:, :3])[0] | linalg.lu_solve(linalg.lu_factor(s - m[:, :3]), x[:3])
linalg.lu_solve(linalg.lu_factor(np.vander(y[:3])), m) | linalg.lu_solve(linalg.lu_factor(s - m[:, :3]), m, trans=1)
linalg.solve_banded((1, 1), m[:, :3] + 2 * y[:3, None], y[:3]) | linalg.solve_banded((1, 0), y.reshape(3, 4)[:2], x[:4])
linalg.solve_banded((1, 1), m[:, :3] + 2 * y[:3, None], m) | linalg.solve_banded((0, 1), m[:2] + [[0.0], [2.0]], m.T)
linalg.solve_banded((1, 1), y[:9].reshape(3, 3) + [[0], [4], [0]], s)
linalg.solveh_banded(m[:2] + [[0.0], [3.0]], m.T) | linalg.cholesky_banded(m[:2] + [[0.0], [3.0]])
linalg.cholesky_banded(m[:2] + [[3.0], [0.0]], lower=True) | linalg.cho_solve_banded((m[:2], False), x[:4])
linalg.cho_solve_banded((m[:2], True), m.T) | linalg.eigh(s, np.eye(3) + m[:, :3])[0]
linalg.eigh(m[:, :3], s, lower=False, eigvals_only=True) | linalg.eigh(m[:, :3], s)[1] ** 2
linalg.eigh(m[:, :3], s, type=2)[1] ** 2 | linalg.eigh(m[:, :3], s, type=3)[1] ** 2 | linalg.eigvalsh(m[:, :3], s)
linalg.eigvalsh(s, subset_by_index=[0, 1]) | linalg.eigh(s, subset_by_index=[1, 2])[1] ** 2
linalg.eigvalsh(s, np.eye(3) + m[:, :3], type=2) | linalg.eigh_tridiagonal(x[:4], x[4:7])[0]
linalg.eigh_tridiagonal(x[:4], x[4:7])[1] ** 2
linalg.eigvalsh_tridiagonal(x[:4], y[:3], select="i", select_range=(1, 2))
linalg.eigh_tridiagonal(x[:4], y[:3], select="i", select_range=(1, 2))[0] | linalg.eigvalsh_tridiagonal(y[:4], x[:3])
linalg.eig_banded(m, lower=True)[1] ** 2 | linalg.eigvals_banded(m) | np.real(linalg.eigvals(s))
linalg.eigvals(m[:, :3] - s) | np.real(linalg.eig(s)[0]) | np.abs(linalg.eig(m[:, :3])[1]) | linalg.pinvh(s)
linalg.pinvh(m[:, :3] + 3 * s, lower=False) | linalg.pinvh(np.outer(x[:3], x[:3])) | linalg.polar(m)[1]
linalg.polar(m.T, side="left")[1] | linalg.polar(m.T)[0] | linalg.orthogonal_procrustes(m.T, m.T**2)[0]
linalg.orthogonal_procrustes(m.T, np.sin(9 * y**2).reshape(4, 3))[1]
linalg.solve_continuous_are(m[:, :3], m[:, 1:3], s, s[:2, :2]) | linalg.solve_continuous_are(s, np.eye(3), np.eye(3), s)
linalg.solve_discrete_are(m[:, :3], m[:, 1:3], s, s[:2, :2]) | linalg.solve_discrete_are(s / 2, np.eye(3), np.eye(3), s)
linalg.expm_frechet(s, m[:, :3])[1] | linalg.expm_frechet(m[:, :3], s, compute_expm=False)
linalg.fractional_matrix_power(s, 0.3) | linalg.fractional_matrix_power(s, -1.5) | linalg.fractional_matrix_power(s, 2)
linalg.fractional_matrix_power(s, x[0]) | linalg.companion(x[:5]) | linalg.fiedler_companion(x[:6])
linalg.fiedler(x[:4]) | linalg.leslie(x[:4], x[4:7]) | linalg.subspace_angles(m.T[:, :2], m.T[:, :2] ** 2 - 0.2)
linalg.subspace_angles(m.T[:, :1], np.sin(9 * y**2).reshape(4, 3)[:, :2])
linalg.subspace_angles(m.T[:, :2], (m + 0.1 * m**2).T[:, :2])
"""

STATS = """
stats.norm.logpdf(y, x, x**2) | stats.norm.logpdf(x) | stats.uniform.cdf(1.8 * x)
stats.beta.cdf(4 * x - 1, 2.0, 3.0) | stats.pareto.sf(2 * x, 3.0) | stats.expon.pdf(x - 0.5, scale=x)
stats.weibull_min.cdf(x - 0.5, 2.0) | stats.poisson.pmf(np.arange(12) - 2, x) | stats.norm.pdf(y, loc=x, scale=2.0)
stats.norm.cdf(y, x) | stats.norm.logcdf(-9 * x) | stats.norm.sf(x, 0.0, y) | stats.norm.logsf(y, scale=x)
stats.expon.logpdf(y, scale=x) | stats.expon(scale=x).logpdf(y) | stats.expon.cdf(x)
stats.laplace.logpdf(y, x - 1, x) | stats.logistic.logpdf(y, x, x) | stats.logistic.cdf(x, y)
stats.cauchy.logpdf(y, x, x) | stats.cauchy.sf(x) | stats.gumbel_r.logpdf(y, x, x) | stats.gumbel_r.logsf(x)
stats.gumbel_l.logpdf(x) | stats.halfnorm.logpdf(x, scale=y) | stats.halfcauchy.logpdf(x) | stats.rayleigh.logpdf(x)
stats.uniform.logpdf(0.2, 0.0, x) | stats.uniform.cdf(0.2, 0.0, x) | stats.t.logpdf(y, 5 * x, x, 2.0)
stats.t.cdf(x, 4.0) | stats.gamma.logpdf(y, 3 * x, scale=x) | stats.gamma.cdf(x, 2.0) | stats.gamma.logsf(x, 2.0)
stats.invgamma.logpdf(y, 3 * x) | stats.chi2.logpdf(y, 3 * x) | stats.chi2.sf(x, 3.0) | stats.beta.logpdf(x, 2 * x, y)
stats.beta.cdf(x, 2.0, 3.0) | stats.lognorm.logpdf(y, x) | stats.lognorm.logcdf(y, x)
stats.weibull_min.logpdf(y, 2 * x) | stats.weibull_min.sf(y, 2 * x) | stats.pareto.logpdf(1 + x, 2 * x)
stats.pareto.cdf(1 + x, 2 * x) | stats.skewnorm.logpdf(y, x) | stats.invgauss.logpdf(y, x)
stats.poisson.logpmf(np.arange(12), 9 * x) | stats.poisson.pmf(np.arange(12), 9 * x)
stats.bernoulli.logpmf(np.arange(12) % 2, x) | stats.binom.logpmf(np.arange(12), 12, x)
stats.geom.logpmf(np.arange(12) + 1, x) | stats.nbinom.logpmf(np.arange(12), 9 * x, x) | stats.nbinom.pmf(3, 2.5, x)
stats.pareto.logpdf([1.0, 2.0], 3 * x[:2]) | stats.expon.logpdf([0.0, 1.0], 0.0, x[:2])
stats.expon.pdf([0.0, 1.0], scale=x[:2]) | stats.uniform.cdf([0.0, 0.2, 5.0], 0.0, x[:3])
stats.binom.pmf([-1.0, 2.0, 3.0, 20.0], 12, x[:4]) | stats.poisson.pmf([-1.0, 2.0, 3.0, 2.5], x[:4])
stats.geom.pmf([-1.0, 2.0, 0.0, 5.0], x[:4]) | stats.bernoulli.pmf([-1.0, 2.0, 0.0, 1.0], x[:4])
stats.halfnorm.logpdf([0.0, 1.0], scale=x[:2]) | stats.f.logpdf(y, 9 * x, 4 * x) | stats.f.logsf(y, 3.0, 4.0, 0.0, x)
stats.f.cdf(x, 3.0, 4.0) | stats.fisk.logpdf(y, 3 * x) | stats.fisk.logsf(y, 3 * x) | stats.fisk.cdf(y, 2 * x, 0.0, y)
stats.gennorm.logpdf(y, 3 * x) | stats.exponnorm.logpdf(y, x) | stats.vonmises.logpdf(y, 3 * x)
stats.genpareto.logpdf(y, x - 0.6) | stats.genpareto.sf(y, x) | stats.genpareto.cdf(y, 0.2 - x, 0.0, 2.0)
stats.genextreme.logpdf(y, x - 0.6) | stats.genextreme.cdf(y, x - 0.6) | stats.genextreme.logsf(y, x, x)
stats.truncnorm.logpdf(y, -x, 3.0) | stats.truncnorm.pdf(y, 0.1, np.inf, 0.1, x)
stats.betabinom.logpmf(np.arange(12), 11, 3 * x, y) | stats.betabinom.pmf([-1.0, 2.0, 2.5, 20.0], 12, x[:4], y[:4])
stats.norm.ppf(x, y) | stats.norm.isf(0.2, x, y) | stats.norm(x, y).ppf(0.3) | stats.expon.ppf([0.0, 0.3], x[:2], y[:2])
stats.expon.isf(x) | stats.laplace.ppf(x) | stats.laplace.isf(x, scale=y) | stats.logistic.ppf(x, y)
stats.logistic.isf(x) | stats.cauchy.ppf(x) | stats.cauchy.isf(x) | stats.gumbel_r.ppf(x) | stats.gumbel_r.isf(x)
stats.gumbel_l.ppf(x) | stats.gumbel_l.isf(x) | stats.halfnorm.ppf(x) | stats.halfnorm.isf(x) | stats.rayleigh.ppf(x)
stats.rayleigh.isf(x) | stats.uniform.ppf(x, y, x) | stats.uniform.isf(x) | stats.lognorm.ppf(x, y)
stats.lognorm.isf(0.3, x) | stats.weibull_min.ppf(x, 2 * y) | stats.weibull_min.isf(0.2, 2 * x)
stats.pareto.ppf(x, 2 * y) | stats.pareto.isf(0.2, 2 * x) | stats.gamma.ppf(x, 2.0) | stats.gamma.isf(x, 2.0)
stats.chi2.ppf(x, 3.0) | stats.chi2.isf(x, 3.0, 0.0, y) | stats.beta.ppf(x, 2.0, 3.0) | stats.beta.isf(x, 2.0, 3.0)
stats.t.ppf(x, 4.0, y) | stats.t.isf(x, 4.0)
stats.multivariate_normal.logpdf(m.T, x[:3], s) | stats.multivariate_normal(x[:3], s).pdf(m.T)
stats.multivariate_normal.logpdf(y, x[0], x[1]) | stats.multivariate_normal.logpdf(x[:3], [0, 0, 0], [x[0], x[1], 2.0])
stats.multivariate_normal.pdf(m[:2].T, [x[0], 1.0], [[2 + x[0], x[1]], [x[1], 3.0]])
stats.multivariate_normal(y[:3], np.eye(3)).logpdf(m.T) | stats.multivariate_normal.logpdf(y[:3], None, s)
stats.dirichlet.logpdf([0.2, 0.3, 0.5], 4 * x[:3]) | stats.dirichlet.pdf(x[:2] / 3, y[:3])
stats.dirichlet(4 * x[:3]).pdf([0.2, 0.3]) | stats.multinomial.logpmf([[1, 2, 3], [0, 0, 6]], 6, x[:3] / np.sum(x[:3]))
stats.multinomial.pmf([[2, 1], [1, 1]], 3, [x[0], 1.0 - x[0]])
stats.multinomial(3, x[:3] / np.sum(x[:3])).pmf([[1, 1, 1], [3, 1, -1]])
stats.alpha.logpdf(y, x) | stats.anglit.logpdf(x - 0.6) | stats.arcsine.logpdf(x) | stats.argus.logpdf(x, 2 * y)
stats.betaprime.logpdf(y, 3 * x, 2 * y) | stats.bradford.logpdf(x, y) | stats.burr.logpdf(y, 2 * x, 3 * x)
stats.burr12.logpdf(y, 2 * x, 3 * x) | stats.chi.logpdf(y, 4 * x) | stats.cosine.logpdf(2 * x, x)
stats.crystalball.logpdf(y - 2, x, 1 + x) | stats.dgamma.logpdf(y, 2 * x) | stats.dweibull.logpdf(y, 2 * x)
stats.erlang.logpdf(y, 3, 0.0, x) | stats.exponpow.logpdf(x, 2 * y) | stats.exponweib.logpdf(y, 2 * x, 3 * x)
stats.fatiguelife.logpdf(y, x) | stats.foldcauchy.logpdf(y, x) | stats.foldnorm.logpdf(y, x)
stats.gengamma.logpdf(y, 2 * x, 3 * x) | stats.genexpon.logpdf(x, x, y, 2 * x) | stats.geninvgauss.logpdf(y, 1.3, x)
stats.genlogistic.logpdf(y, x) | stats.gibrat.logpdf(x) | stats.gompertz.logpdf(y, x) | stats.halfgennorm.logpdf(y, x)
stats.halflogistic.logpdf(x) | stats.hypsecant.logpdf(9 * x) | stats.invweibull.logpdf(y, 2 * x)
stats.johnsonsb.logpdf(x, 0.3 - x, 2 * x) | stats.johnsonsu.logpdf(y, 0.3 - x, 2 * x) | stats.kappa3.logpdf(y, x)
stats.laplace_asymmetric.logpdf(y - 1, 2 * x) | stats.levy.logpdf(y, 0.0, x) | stats.levy_l.logpdf(-x)
stats.loggamma.logpdf(y - 1, 2 * x) | stats.loglaplace.logpdf(y, 3 * x) | stats.loguniform.logpdf(y, x / 9, 2 + x)
stats.lomax.logpdf(y, 2 * x) | stats.maxwell.logpdf(y, 0.0, x) | stats.mielke.logpdf(y, 2 * x, 3 * x)
stats.moyal.logpdf(y, x) | stats.nakagami.logpdf(y, x) | stats.ncx2.logpdf(y, 3.0, x) | stats.powerlaw.logpdf(x, y)
stats.norminvgauss.logpdf(y, 2 * x, x) | stats.powerlognorm.logpdf(y, 2 * x, x) | stats.powernorm.logpdf(y, 2 * x)
stats.rdist.logpdf(x, 4 * y) | stats.recipinvgauss.logpdf(y, x) | stats.rel_breitwigner.logpdf(y, x)
stats.rice.logpdf(y, x, 0.0, x) | stats.semicircular.logpdf(x) | stats.skewcauchy.logpdf(y - 1, x - 0.5)
stats.triang.logpdf(y / 2, x) | stats.truncexpon.logpdf(x, y + x) | stats.truncpareto.logpdf(y + 1, 2 * x, 3 + x)
stats.wald.logpdf(y, 0.0, x) | stats.weibull_max.logpdf(-y, 2 * x) | stats.wrapcauchy.logpdf(y, x)
stats.vonmises_line.logpdf(y, 3 * x) | stats.wrapcauchy.pdf(2 * x, 0.3) | stats.reciprocal.pdf(y, x / 9, 2.0)
stats.betanbinom.logpmf(np.arange(12), 5, 3 * x, y) | stats.boltzmann.logpmf(np.arange(12) % 8, x, 9)
stats.dlaplace.logpmf(np.arange(12) - 5, x) | stats.logser.logpmf(np.arange(12) + 1, x)
stats.planck.logpmf(np.arange(12), x) | stats.skellam.logpmf(np.arange(12) - 5, 3 * x, y)
stats.yulesimon.logpmf(np.arange(12) + 1, 3 * x) | stats.laplace.logcdf(y - 1, x - 0.5, x) | stats.laplace.sf(x)
stats.laplace_asymmetric.cdf(y - 1, 2 * x) | stats.gumbel_l.cdf(x, y) | stats.gumbel_l.logsf(x) | stats.halfnorm.cdf(x)
stats.halfnorm.logsf(9 * x) | stats.halfcauchy.logcdf(x) | stats.halfcauchy.sf(x) | stats.halflogistic.cdf(x)
stats.halflogistic.logsf(x) | stats.hypsecant.cdf(x) | stats.hypsecant.logsf(x) | stats.rayleigh.cdf(x)
stats.rayleigh.logsf(y, 0.0, x) | stats.maxwell.cdf(x) | stats.maxwell.logsf(y, 0.0, x) | stats.chi.cdf(y, 3 * x)
stats.erlang.sf(y, 3, 0.0, x) | stats.invgamma.cdf(y, 2 * x) | stats.invgamma.logsf(y, 2.0, 0.0, x)
stats.loggamma.sf(y - 1, 2 * x) | stats.gengamma.logsf(y, 2.0, 2 * x) | stats.gengamma.cdf(y, 3 * x, -1.5)
stats.nakagami.logsf(y, 2 * x) | stats.invgauss.cdf(y, x) | stats.invgauss.logsf(y, x) | stats.wald.sf(x)
stats.gompertz.cdf(y, x) | stats.gompertz.logsf(y, x) | stats.weibull_max.logcdf(-y, 2 * x)
stats.weibull_max.sf(-y, 2 * x) | stats.invweibull.cdf(y, 2 * x) | stats.invweibull.logsf(y, 2 * x)
stats.exponweib.logcdf(y, 2 * x, 3 * x) | stats.exponweib.logsf(y, 2 * x, 3 * x) | stats.exponpow.logsf(x, 2 * y)
stats.burr.logcdf(y, 2 * x, 3 * x) | stats.burr.sf(y, 2 * x, 3 * x) | stats.burr12.cdf(y, 2 * x, 3 * x)
stats.burr12.logsf(y, 2 * x, 3 * x) | stats.lomax.cdf(y, 2 * x) | stats.lomax.logsf(y, 2 * x)
stats.genlogistic.logcdf(y, x) | stats.genlogistic.sf(y, x) | stats.powerlaw.logsf(x, y) | stats.powernorm.logsf(y, x)
stats.truncexpon.cdf(x, y + x) | stats.truncexpon.logsf(x, y + x) | stats.truncnorm.logcdf(y, -x, 2 + x)
stats.truncnorm.sf(y, -x, 2 + x) | stats.levy.cdf(y, 0.0, x) | stats.levy.logsf(x) | stats.moyal.cdf(y, x)
stats.moyal.logsf(x) | stats.fatiguelife.cdf(y, x) | stats.gibrat.sf(x) | stats.johnsonsu.cdf(y, 0.3 - x, 2 * x)
stats.johnsonsb.logsf(x, 0.3 - x, 2 * x) | stats.foldnorm.cdf(y, x) | stats.foldnorm.logsf(y, x)
stats.betaprime.cdf(y, 3 * x, 2.0) | stats.betaprime.logsf(y, 3.0, 2.0, 0.0, x) | stats.loguniform.cdf(y, x / 9, 2 + x)
stats.bernoulli.cdf(np.arange(12) % 3 - 1, x) | stats.binom.cdf(np.arange(12) - 2, 7, x) | stats.binom.logsf(3, 7, x)
stats.boltzmann.cdf(np.arange(12) - 1, x, 9) | stats.geom.logsf(np.arange(12) + 1, x) | stats.geom.cdf(2, x)
stats.nbinom.cdf(np.arange(12), 4 * y, x) | stats.nbinom.logsf(3, 2.5, x) | stats.planck.sf(2.5, x)
stats.poisson.cdf(np.arange(12) - 2, 9 * x) | stats.poisson.logsf(3, 9 * x) | stats.yulesimon.logsf(3, 3 * x)
stats.gamma.logsf(y, 3 * x) | stats.t.logcdf(y - 2, 5 * x) | stats.beta.logcdf(x, 2 * x, y) | stats.chi2.sf(y, 3 * x)
stats.f.logsf(y, 5 * x, 4 * y) | stats.gamma.ppf(x, 2 * y) | stats.t.ppf(x, 3 * y) | stats.beta.isf(0.3, 2 * x, y)
stats.halfcauchy.ppf(x) | stats.halfcauchy.isf(x) | stats.invgamma.ppf(x, 2.0) | stats.invgamma.isf(x, 2 * y)
stats.maxwell.ppf(x) | stats.maxwell.isf(x) | stats.fisk.ppf(x, 2 * y) | stats.fisk.isf(0.2, 2 * x)
stats.lomax.ppf(x, 2 * y) | stats.lomax.isf(0.2, 2 * x) | stats.gompertz.ppf(x, y) | stats.gompertz.isf(0.2, x)
stats.weibull_max.ppf(x, 2 * y) | stats.weibull_max.isf(0.2, 2 * x) | stats.invweibull.ppf(x, 2 * y)
stats.invweibull.isf(0.2, 2 * x) | stats.powerlaw.ppf(x, y) | stats.powerlaw.isf(0.2, x)
stats.burr12.ppf(x, 2 * y, 3 * x) | stats.burr12.isf(0.2, 2 * x, y) | stats.johnsonsu.ppf(x, y, 2 * x)
stats.johnsonsu.isf(0.2, x, 2 * x) | stats.genpareto.ppf(x, y - 1) | stats.genpareto.isf(0.01, x - 0.6)
stats.genextreme.ppf(x, y - 1) | stats.genextreme.isf(0.01, x - 0.6)
stats.moment(x, 3) | stats.moment(m, 2, axis=1) | stats.moment(x, 2, center=0.5) | stats.skew(x) | stats.skew(m, axis=1)
stats.skew(m, bias=False) | stats.kurtosis(x) | stats.kurtosis(m, axis=1, fisher=False) | stats.kurtosis(x, bias=False)
stats.gmean(x) | stats.gmean(m, axis=1) | stats.gmean(x, weights=y * x) | stats.hmean(x) | stats.hmean(m, axis=None)
stats.zscore(x) | stats.zscore(m, axis=1, ddof=1) | stats.zscore(m, axis=None) | stats.sem(x) | stats.sem(m, axis=1)
stats.variation(x) | stats.variation(m, axis=1, ddof=1) | stats.entropy(x) | stats.entropy(x, y)
stats.entropy(y, x, 2) | stats.entropy(m, axis=1) | stats.boxcox_llf(x[0], y) | stats.boxcox_llf(0.3, x)
stats.gaussian_kde(y)(x)
stats.gaussian_kde(np.stack([y, np.cos(9 * y)])).logpdf(x.reshape(2, 6))
stats.gaussian_kde(y, 0.3, weights=y).logpdf(x)
stats.gaussian_kde(y).pdf(x[0]) | stats.gaussian_kde(np.stack([y, np.cos(9 * y)])).evaluate(x[:2])
"""

INTEGRALS = """
integrate.trapezoid(m, dx=0.5) | integrate.trapezoid(y, x) | integrate.simpson(x[:7]) | integrate.simpson(m, dx=0.3)
integrate.simpson(x[:5], x=y[:5] ** 2) | integrate.simpson(x[:6], x=y[:6] ** 2) | integrate.simpson(y, x=y + x / 9)
integrate.simpson(m, axis=0) | integrate.simpson(x[:2]) | integrate.simpson(m, x=np.cumsum(m, axis=1))
integrate.simpson(y[:5], x=x[:5] + 2 * y[:5]) | integrate.cumulative_trapezoid(x, y)
integrate.cumulative_trapezoid(m, axis=0, initial=0) | integrate.cumulative_trapezoid(m * y[:4], x=m, initial=0)
np.polynomial.polynomial.polyval(x, [1.0, 2.0, 3.0]) | np.polynomial.polynomial.polyval(2.0, x[:3])
np.polynomial.polynomial.polyval(y, m) | np.polynomial.polynomial.polyval(x[:4], m, tensor=False)
np.polynomial.polynomial.polyval(x, x[:4])
np.polynomial.polynomial.polyvalfromroots(x[:4], x[4:7]) | np.polynomial.polynomial.polyvalfromroots(x[:3], m.T)
np.polynomial.chebyshev.chebval(x, m) | np.polynomial.legendre.legval(x[:4], m) | np.polynomial.hermite.hermval(y, x)
np.polynomial.hermite_e.hermeval(x[:4], m, tensor=False) | np.polynomial.laguerre.lagval(x, y[:5])
np.polynomial.chebyshev.chebval(x, x[:2]) | np.polynomial.legendre.legval(x, y[:1])
np.polynomial.hermite.hermval(x, m) | np.polynomial.chebyshev.chebgrid2d(x[:3], x[3:5], m)
"""

DISTANCES = """
distance.cdist(m, m) | distance.cdist(m, 2 * m - 0.5, "euclidean", w=x[:4]) | np.exp(-distance.cdist(m, m))
distance.cdist(m, y.reshape(3, 4), "sqeuclidean") | distance.cdist(m, 2 * m, "sqeuclidean", w=y[:4])
distance.cdist(m, m, "cityblock") | distance.cdist(m, 2 * m, "cityblock", w=x[:4])
distance.cdist(m, m, metric="chebyshev") | distance.cdist(m, 2 * m, "chebyshev", w=[1.0, 0.0, 2.0, 1.0])
distance.cdist(m, m, "minkowski") | distance.cdist(m, 2 * m, "minkowski", p=3, w=x[:4])
distance.cdist(m, m, "minkowski", p=1.5) | distance.cdist(m, m, "minkowski", p=4) | distance.cdist(m, m, "m", p=np.inf)
distance.cdist(m, y.reshape(3, 4), "cosine") | distance.cdist(m, y.reshape(3, 4), "correlation")
distance.cdist(m, y.reshape(3, 4), "mahalanobis", VI=m.T @ m + np.eye(4)) | distance.cdist(m.T, 2 * m.T, "mahalanobis")
distance.cdist(m, m, "seuclidean", V=x[:4]) | distance.cdist(m, y.reshape(3, 4), "seuclidean")
distance.cdist(y.reshape(3, 4), m) | np.exp(-0.5 * distance.cdist(m, m) ** 2) | distance.pdist(m) ** 2
distance.pdist(m) | distance.pdist(m, "sqeuclidean") | distance.pdist(m.T, metric="cityblock")
distance.pdist(m, "chebyshev") | distance.pdist(m, "minkowski", p=3) | distance.pdist(m, "cosine")
distance.pdist(m, "correlation") | distance.pdist(m.T, "mahalanobis")
distance.pdist(m, "mahalanobis", VI=m.T @ m + np.eye(4))
distance.pdist(m, "seuclidean") | distance.squareform(x[:6]) | distance.squareform(distance.pdist(m))
distance.squareform(s - s * np.eye(3)) | distance.squareform(s, checks=False) | distance.euclidean(x, y)
distance.euclidean(x, y, w=x) | distance.sqeuclidean(x, y) | distance.sqeuclidean(x, y, x) | distance.cosine(x, y)
distance.cosine(x, y, w=x) | distance.correlation(x, y) | distance.correlation(x, y, w=x) | distance.cityblock(x, y)
distance.cityblock(x, y, w=x) | distance.chebyshev(x, y) | distance.chebyshev(x, y, w=y) | distance.minkowski(x, y)
distance.minkowski(x, y, p=3) | distance.minkowski(x, y, 1.5, x) | distance.minkowski(x, y, p=1)
distance.mahalanobis(x[:3], y[:3], s + np.eye(3)) | distance.correlation(x, y, centered=False)
"""

SCIPY_FFT = """
fft.fft(x) | fft.ifft(z) | fft.rfft(x) | fft.irfft(z) | fft.hfft(z) | fft.ihfft(x) | fft.fft2(m) | fft.ifft2(m)
fft.rfft2(m) | fft.irfft2(m) | fft.hfft2(z.reshape(3, 4)) | fft.ihfft2(m) | fft.fftn(m) | fft.ifftn(z.reshape(3, 4))
fft.rfftn(m) | fft.irfftn(m) | fft.hfftn(z.reshape(3, 4)) | fft.ihfftn(m) | fft.fft(m, 5, axis=0, norm="ortho")
fft.ifft(m, 3, norm="forward") | fft.rfft(x[:7], norm="ortho") | fft.rfft(m, 9, 0) | fft.irfft(x, 7)
fft.irfft(z.reshape(3, 4), axis=0, norm="forward") | fft.hfft(x, 9, norm="ortho") | fft.ihfft(m, 5, 0, "forward")
fft.fft2(m, (4, 2), norm="ortho") | fft.fftn(m[None], (2, -1)) | fft.fftn(m, axes=1) | fft.rfftn(m, s=(5, 3))
fft.irfftn(z.reshape(3, 4), (3, 5), axes=(1, 0)) | fft.hfftn(z.reshape(3, 4), (2, 7), norm="forward")
fft.ihfftn(m, axes=(0,), norm="ortho") | fft.irfft2(z.reshape(3, 4), norm="forward") | fft.fftshift(m)
fft.ifftshift(x) | fft.dct(x, 1) | fft.dct(x, 2) | fft.dct(x, 3) | fft.dct(x, 4) | fft.dct(x[:5], 2, norm="ortho")
fft.dct(m, 3, 5, 0, "forward") | fft.idct(x, 1) | fft.idct(x, 2) | fft.idct(x, 3) | fft.idct(x, 4)
fft.idct(x[:5], 2, norm="ortho") | fft.idct(m, 3, 5, 0, "forward") | fft.dst(x, 1) | fft.dst(x, 2) | fft.dst(x, 3)
fft.dst(x, 4) | fft.dst(x[:5], 2, norm="ortho") | fft.dst(m, 3, 5, 0, "forward") | fft.idst(x, 1) | fft.idst(x, 2)
fft.idst(x, 3) | fft.idst(x, 4) | fft.idst(x[:5], 2, norm="ortho") | fft.idst(m, 3, 5, 0, "forward") | fft.dct(z)
fft.idst(z, norm="ortho") | fft.dct(x, orthogonalize=True) | fft.dst(x, 3, orthogonalize=True)
fft.dct(x, 1, norm="ortho", orthogonalize=False) | fft.idct(x, 2, orthogonalize=True) | fft.dst(x, 2, norm="ortho")
fft.dctn(m) | fft.dctn(m, 3, (2, 5), norm="ortho") | fft.idctn(m, axes=0) | fft.dstn(m, 1)
fft.idstn(m, norm="ortho") | fft.idstn(m, 4, s=3, axes=1, norm="forward") | fft.dctn(z.reshape(3, 4), norm="forward")
"""

SCIPY_SIGNAL = """
signal.convolve(x, y[:5]) | signal.convolve(x, x[:4], "same") | signal.convolve(y[:4], x, mode="valid")
signal.convolve(m, m[:2, :3], "valid", "fft") | signal.convolve(m, s, mode="same", method="direct")
signal.convolve(z, x) | signal.convolve(m[None], x.reshape(2, 3, 2)) | signal.fftconvolve(x, y[:5])
signal.fftconvolve(m, s[:1], "same", axes=1) | signal.fftconvolve(m, m[:, :2], "valid", axes=[-1])
signal.fftconvolve(z, z) | signal.oaconvolve(x, x[:3]) | signal.oaconvolve(m, y[None, :3], mode="same")
signal.correlate(x, y[:4]) | signal.correlate(x[:4], x, "valid") | signal.correlate(z, z[:4], "same")
signal.correlate(m, s, method="fft") | signal.convolve2d(m, m[:2, :3]) | signal.convolve2d(m, s, "same", "symm")
signal.convolve2d(m, m, "full", boundary="wrap") | signal.convolve2d(m[:2], m, "valid")
signal.convolve2d(m, s, "same", "fill", 1.5) | signal.correlate2d(m, m[:2, :2], mode="same", boundary="symm")
signal.correlate2d(z.reshape(3, 4), z.reshape(3, 4)[:2]) | signal.correlate2d(m[:2], m, mode="valid")
signal.lfilter([0.2, 0.3], [1.0, -0.5, 0.1], x) | signal.lfilter(x[:3], x[3:6] + [2.0, 0, 0], y)
signal.lfilter(x[:3], 1.5, m) | signal.lfilter(x[:2], [2.0, 0.3, 0.2], m, axis=0, zi=m[:2])[0]
signal.lfilter([0.3, 0.1], x[:2] + [1.5, 0], y, zi=x[:1])[1] | signal.lfilter(x[:3], x[:2] + [1, 0], z)
signal.lfilter(x[:4], [2.0], x, zi=y[:3])[1] | signal.lfilter([0.5], x[:2] + [1, 0], m)
signal.filtfilt([0.2, 0.3], [1.0, -0.5], x) | signal.filtfilt(x[:2], x[2:4] + [2, 0], m, axis=0, padlen=1)
signal.filtfilt([0.3, 0.2], [1.0, -0.2], x, padtype="even", padlen=4)
signal.filtfilt([0.3, 0.2], [1.0, -0.2], m, padtype=None)
signal.filtfilt([0.3, 0.2], [1.0, -0.2, 0.1], x, padtype="constant") | signal.detrend(x) | signal.detrend(m, axis=0)
signal.sosfilt([[0.2, 0.1, 0, 1, -0.3, 0.1], [0.4, 0.1, 0.3, 1, 0.2, 0.1]], x)
signal.sosfilt(np.concatenate([x[:3], [1.0], x[3:5] / 3])[None], m, zi=m[None, :, :2])[0]
signal.sosfilt([[1, 0.5, 0, 1, 0.2, 0]], m, 0) | signal.sosfilt([[1, 0.5, 0, 1, 0.2, 0]], x, zi=x[None, :2])[1]
signal.detrend(m, type="constant") | signal.detrend(x, bp=[5]) | signal.savgol_filter(x, 5, 2)
signal.savgol_filter(x, 4, 1, mode="nearest") | signal.savgol_filter(m, 3, 1, 1, 0.5)
signal.savgol_filter(x, 5, 3, mode="wrap") | signal.savgol_filter(m.T, 4, 2, axis=0)
signal.savgol_filter(x, 5, 2, mode="mirror") | signal.savgol_filter(x, 5, 2, mode="constant", cval=1.5)
signal.hilbert(x) | signal.hilbert(m, 5, axis=0) | np.abs(signal.hilbert(x))
"""

SCIPY_NDIMAGE = """
ndimage.correlate1d(x, y[:4]) | ndimage.correlate1d(m, x[:3], axis=0, mode="mirror")
ndimage.correlate1d(z, x[:3], mode="wrap", origin=1)
ndimage.correlate1d(x, [1.0, 2.0, -1.0], mode="constant", cval=1.5) | ndimage.correlate1d(x, z[:3], mode="nearest")
ndimage.convolve1d(x, y[:4]) | ndimage.convolve1d(m, x[:3], 0, mode="nearest")
ndimage.convolve1d(y, z[:2], mode="grid-wrap") | ndimage.gaussian_filter1d(x, 1.2)
ndimage.gaussian_filter1d(m, 0.8, axis=0, order=1, mode="wrap")
ndimage.gaussian_filter1d(x, 1.1, order=2, radius=3, mode="constant", cval=0.4) | ndimage.gaussian_filter(m, 1.1)
ndimage.gaussian_filter(m, [0.7, 1.1], order=[1, 0], mode=["wrap", "nearest"])
ndimage.gaussian_filter(z, 0.9, mode="mirror") | ndimage.uniform_filter1d(x, 4)
ndimage.uniform_filter1d(m, 3, axis=0, mode="constant", cval=2.0, origin=-1) | ndimage.uniform_filter(m)
ndimage.uniform_filter(m, (2, 3), mode="wrap", origin=(0, 1)) | ndimage.correlate(m, s)
ndimage.correlate(m, x[:6].reshape(2, 3), mode="wrap", origin=(-1, 1))
ndimage.correlate(x, x[:3], mode="constant", cval=1.0) | ndimage.correlate(m, z[:6].reshape(2, 3))
ndimage.convolve(m, s, mode="nearest") | ndimage.convolve(m, m[:2], mode="mirror", origin=(0, -1))
ndimage.convolve(m[None], s[None], mode="grid-constant", cval=0.5) | ndimage.map_coordinates(m, 3 * m[:2], order=1)
ndimage.map_coordinates(x, [5 * x[::-1]], order=1, mode="nearest")
ndimage.map_coordinates(y, 20 * x[None] - 9, order=1, mode="mirror")
ndimage.map_coordinates(m, 9 * m[:2] - 4, order=1, mode="reflect")
ndimage.map_coordinates(z, 20 * x[None] - 9, order=1, mode="grid-wrap")
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
