"""Programs of xarray's, by kind: a name, and an expression of `x`, whose page in the reference is made of these.

`x` is a field of 4 latitudes and 12 months, `w` a variable of the latitudes, `hole` the field with some values missing,
`ds` a dataset of the field and its square. Each is computed on dask arrays and, for its differences, in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import xarray

KINDS = {
    "arithmetic": """
+, -, *, / | 2.0 * x - x / (3.0 + x) + 1.0
** | (x + 2.0) ** 1.5
with a variable of fewer dimensions | x * w + x.isel(date=0)
numpy's functions | np.exp(x) * np.sin(x)
comparisons, as weights | x * (x > 0.1)
where | x.where(x > 0.0, 0.3 * x)
xr.where | xr.where(x > 0.0, x**2, -x)
clip | x.clip(-0.5, 0.5)
fillna | hole.fillna(2.0)
fillna, by another array | hole.fillna(x.mean("date"))
isnull, notnull, isin, as weights | hole.fillna(0.0) * hole.notnull()
round | x.round() * x
astype | x.astype("float64")
real, imag, conj | (x * (1.0 + 2.0j)).conj().imag
xr.apply_ufunc, parallelized | xr.apply_ufunc(cubed, x, **of_floats)
xr.apply_ufunc, with core dimensions | xr.apply_ufunc(spread, x.chunk(date=-1), input_core_dims=[["date"]], **of_floats)
xr.apply_ufunc, allowed | xr.apply_ufunc(cubed, x, dask="allowed")
map_blocks | x.map_blocks(doubled, template=x)
""",
    "reductions": """
sum | x.sum("date")
mean | x.mean()
prod | (1.0 + x).prod("lat")
max | x.max("date")
min | x.min("lat")
std | x.std("date")
var | x.var(["lat", "date"], ddof=1)
median | x.chunk(date=-1).median("date")
quantile | x.chunk(date=-1).quantile([0.2, 0.7], "date")
count, as a weight | x * hole.count()
argmax, as an index | x.isel(date=x.argmax("date").compute())
cumsum | x.cumsum("date")
cumprod | (1.0 + x).cumprod("date")
sum of what has gaps | hole.sum("date")
mean of what has gaps | hole.mean("date")
std of what has gaps | hole.std("date")
reduce | x.reduce(np.mean, dim="lat")
dot | x.dot(x * w, dim="date")
xr.dot | xr.dot(x, w, dim="lat")
xr.cov | xr.cov(x, x**2, dim="date")
xr.corr | xr.corr(x, x**2, dim="date")
weighted(...).sum | x.weighted(w).sum("lat")
weighted(...).mean | x.weighted(w).mean()
weighted(...).var | x.weighted(w).var("lat")
weighted(...).std | x.weighted(w).std("lat")
weighted(...).quantile | x.chunk(lat=-1).weighted(w).quantile(0.5, dim="lat")
""",
    "windows and groups": """
rolling(...).mean | x.rolling(date=3, center=True).mean()
rolling(...).sum | x.rolling(date=3, min_periods=1).sum()
rolling(...).max | x.rolling(date=3).max()
rolling(...).var | x.rolling(date=4).var()
rolling(...).median | x.rolling(date=3).median()
rolling(...).construct | x.rolling(date=3).construct("window", fill_value=0.0)
rolling, two dimensions | x.rolling(date=3, lat=2).mean()
coarsen(...).mean | x.coarsen(date=3).mean()
coarsen(...).max | x.coarsen(date=4, lat=2).max()
coarsen(...).construct | x.coarsen(date=6).construct(date=("year", "month"))
resample(...).mean | x.resample(date="QS").mean()
resample(...).sum | x.resample(date="QS").sum()
resample(...).interpolate | x.chunk(date=-1).resample(date="15D").interpolate("linear")
groupby(...).mean | x.groupby("date.season").mean()
groupby(...).sum | x.groupby("date.season").sum()
groupby(...).max | x.groupby("date.season").max()
groupby, anomalies | x.groupby("date.season") - x.groupby("date.season").mean()
groupby(...).map | x.groupby("date.season").map(lambda part: part - part.mean())
groupby_bins | x.groupby_bins("lat", [-60.0, 0.0, 60.0]).mean()
""",
    "choosing and moving": """
isel | x.isel(date=slice(2, 9, 2), lat=1)
isel, points | x.isel(lat=xr.DataArray([0, 2], dims="p"), date=xr.DataArray([5, 7], dims="p"))
sel | x.sel(lat=slice(-40.0, 40.0))
sel, nearest | x.sel(lat=13.0, method="nearest")
loc, [] | x.loc[:, "2001-03":"2001-06"] + x[0]
drop_sel, drop_isel | x.drop_isel(date=[0, 3])
head, tail, thin | x.head(date=3).sum() + x.thin(date=5)
dropna | x.shift(date=2).dropna("date")
query | ds.query(lat="lat > 0")["t"]
shift | x.shift(date=2)
shift, with a filling | x.shift(date=2, fill_value=0.0)
roll | x.roll(date=5)
diff | x.diff("date")
pad | x.pad(lat=1, constant_values=0.0)
pad, reflect | x.pad(lat=2, mode="reflect")
sortby | x.sortby("lat", ascending=False)
reindex | x.reindex(lat=[-60.0, 20.0, 55.0], fill_value=0.0)
reindex, nearest | x.reindex(lat=[-50.0, 0.0, 50.0], method="nearest")
reindex_like | x.reindex_like(x.isel(date=slice(2, 5)))
interpolate_na | hole.chunk(date=-1).interpolate_na("date")
""",
    "calculus and fits": """
differentiate | x.differentiate("lat")
integrate | x.integrate("lat")
cumulative_integrate | x.cumulative_integrate("lat")
interp, linear | x.interp(lat=[-10.0, 33.0])
interp, cubic | x.interp(lat=[-10.0, 33.0], method="cubic")
interp_like | x.interp_like(x.isel(lat=slice(1, 3)))
polyfit | x.polyfit("lat", 1)["polyfit_coefficients"]
xr.polyval | xr.polyval(x.lat / 60.0, x.isel(date=slice(0, 3)).rename(date="degree").assign_coords(degree=[0, 1, 2]))
curvefit | x.chunk(lat=-1).curvefit("lat", line)["curvefit_coefficients"]
xr.cross | xr.cross(x[:, :3].chunk(date=-1), x[:, 3:6].assign_coords(date=x.date[:3]).chunk(date=-1), dim="date")
""",
    "shapes and joins": """
transpose, T | x.T + x.transpose("date", "lat")
expand_dims, squeeze | x.expand_dims("member").squeeze()
stack, unstack | x.stack(place=("lat", "date")).unstack("place")
to_stacked_array | ds.to_stacked_array("z", ["date"])
coarsen and reshape | x.coarsen(date=3).construct(date=("quarter", "month")).stack(k=("quarter", "month"))
broadcast | xr.broadcast(w * x.isel(date=0, drop=True), x)[0]
broadcast_like | x.isel(date=0, drop=True).broadcast_like(x)
xr.concat | xr.concat([x.isel(date=slice(0, 5)), x.isel(date=slice(7, None))], "date")
xr.concat, new dimension | xr.concat([x, x**2], "member")
xr.merge | xr.merge([x.rename("a"), (x**2).rename("b")])["b"]
xr.combine_by_coords | xr.combine_by_coords([ds.isel(date=slice(0, 5)), ds.isel(date=slice(5, None))])["t"]
xr.align | sum(xr.align(x.isel(lat=slice(0, 3)), x.isel(lat=slice(1, 4))))
combine_first | hole.combine_first(x**2)
rename, swap_dims, assign_coords | x.rename(lat="y").assign_coords(y=[0, 1, 2, 3])
Dataset arithmetic | (2.0 * ds + ds**2)["s"]
Dataset.map | ds.map(np.tanh)["s"]
Dataset.sum, mean | ds.mean("lat")["s"]
assign, update | ds.assign(u=lambda d: d.t * d.s)["u"]
to_dataarray | ds.to_dataarray()
to_dataset | x.to_dataset("lat")[60.0]
chunk | x.chunk(lat=1, date=5)
unify_chunks | xr.unify_chunks(x, x.chunk(date=4))[1]
""",
}


def cubed(a: Any) -> Any:
    return a**3


def spread(a: Any) -> Any:
    return np.max(a, axis=-1) - np.min(a, axis=-1)


def doubled(block: Any) -> Any:
    return 2.0 * block


def line(x: Any, a: Any, b: Any) -> Any:
    return a + b * x


def field(values: Any) -> Any:
    """Return a field in memory."""
    dates = np.array([f"2001-{month:02d}-01" for month in range(1, 13)], dtype="datetime64[ns]")
    return xarray.DataArray(values, {"lat": [-60.0, -20.0, 20.0, 60.0], "date": dates}, ("lat", "date"), name="t")


def programs() -> dict[str, dict[str, Callable[[Any], Any]]]:
    """Return the programs, by kind and name, as functions of a field."""
    return {kind: dict(map(_program, text.strip().splitlines())) for kind, text in KINDS.items()}


def _program(text: str) -> tuple[str, Callable[[Any], Any]]:
    name, _, expression = text.partition(" | ")
    code = compile(expression, f"<{name}>", "eval")

    def run(x: Any) -> Any:
        missing = np.zeros((4, 12), bool)
        missing[1, [3, 4, 9]] = missing[3, 6] = True
        names = {
            "x": x,
            "xr": xarray,
            "np": np,
            "w": np.cos(np.deg2rad(x.lat)),
            "hole": x.where(xarray.DataArray(~missing, dims=("lat", "date"))),
            "ds": xarray.Dataset({"t": x, "s": x**2}),
            "of_floats": {"dask": "parallelized", "output_dtypes": [float]},
        }
        return eval(code, names | {made.__name__: made for made in (cubed, spread, doubled, line)})

    return name, run


def total(result: Any) -> Any:
    """Return one number in which every entry of a result counts that is there."""
    weights = np.cos(np.arange(1.0, 1.0 + result.size)).reshape(result.shape)
    return (result.fillna(0.0) * weights).sum()
