"""Standard errors of a fit of a pytree: those of statsmodels, on every scheduler, and refusals of what has none."""

from __future__ import annotations

import itertools
from typing import Any

import autograd.numpy as anp
import numpy as np
import pytest
from scipy.special import gammaln

import dagad
from dagad.interop._standard_errors import ScoresOfRows
from dagad.interop.scipy import FlatFunction, minimize, standard_errors
from support.tiers import optional

NAMES = ["const", "lncoins", "idp", "lpi", "fmde", "physlm", "disea", "hlthg", "hlthf", "hlthp"]
COVARIANCES = ["nonrobust", "HC0", "HC1", "cluster"]


def of_counts(rows: Any, p: Any) -> Any:
    """Return minus the log-likelihood of each row: negative binomial."""
    x, y = rows
    size = np.exp(-p["log_alpha"])
    eta = x @ p["beta"] + p["log_alpha"]
    return gammaln(size) + gammaln(y + 1.0) - gammaln(y + size) - y * eta + (y + size) * np.logaddexp(0.0, eta)


def summed(losses: Any) -> Any:
    return lambda rows, p: np.sum(losses(rows, p))


@pytest.mark.whole("twenty thousand rows of a real data set, fitted twice")
@pytest.mark.needs("statsmodels")
def test_standard_errors_of_doctor_visits_are_those_of_statsmodels() -> None:
    sm: Any = optional("statsmodels.api")
    frame = sm.datasets.randhie.load_pandas().data.assign(const=1.0)
    x, y = frame[NAMES].to_numpy(), frame["mdvis"].to_numpy(dtype=float)
    scales = np.append(1.0, x[:, 1:].std(axis=0))
    shards = dagad.shard((x / scales, y), grainsize=4000, scheduler="threads")

    def loss(p: Any) -> Any:
        return dagad.reduce_sum(summed(of_counts), shards, p) / len(y)

    fit = minimize(loss, {"beta": np.zeros(10), "log_alpha": 0.0}, method="trust-exact", tol=1e-12)
    start = np.append(fit.x["beta"] / scales, np.exp(fit.x["log_alpha"]))
    groups = np.arange(len(y)) // 7

    def ours(**how: Any) -> Any:
        found = standard_errors(loss, fit.x, mean_over=len(y), **how)
        return np.append(found.tree["beta"] / scales, found.of(lambda p: np.exp(p["log_alpha"])))

    def theirs(**how: Any) -> Any:
        found = sm.NegativeBinomial(y, x).fit(
            start_params=start, method="newton", maxiter=100, disp=0, tol=1e-14, **how
        )
        return found.bse

    rows = {"losses": of_counts, "rows": shards}
    np.testing.assert_allclose(ours(), theirs(), rtol=1e-6)
    np.testing.assert_allclose(ours(cov_type="HC0", **rows), theirs(cov_type="HC0"), rtol=1e-6)
    for correct in (True, False):
        named = ours(cov_type="cluster", **rows, groups=[f"family {g}" for g in groups], use_correction=correct)
        right = theirs(cov_type="cluster", cov_kwds={"groups": groups, "use_correction": correct})
        np.testing.assert_allclose(named, right, rtol=1e-6)


RANDOM = np.random.default_rng(4)
X = np.column_stack([np.ones(120), RANDOM.standard_normal((120, 2))])
Y = RANDOM.poisson(np.exp(X @ [0.5, 0.3, -0.2] + 0.4 * RANDOM.standard_normal(120))).astype(float)
GROUPS = RANDOM.integers(20, size=120)


def of_line(rows: Any, p: Any) -> Any:
    x, y = rows
    return (y - x[:, 0] * p[1] - x[:, 1:] @ p[0]) ** 2


@pytest.mark.needs("statsmodels")
@pytest.mark.parametrize("cov_type", ["HC0", "HC1", "cluster"])
def test_sandwiches_of_sums_of_squares_are_those_of_a_linear_regression(cov_type: str) -> None:
    sm: Any = optional("statsmodels.api")

    def loss(p: Any) -> Any:
        return dagad.reduce_sum(summed(of_line), (X, Y), p, grainsize=50)

    fit = minimize(loss, (np.zeros(2), 0.0), tol=1e-10)
    groups = GROUPS if cov_type == "cluster" else None
    found = standard_errors(loss, fit.x, cov_type=cov_type, losses=of_line, rows=(X, Y), groups=groups, grainsize=50)
    theirs = sm.OLS(Y, X).fit(cov_type=cov_type, cov_kwds={} if groups is None else {"groups": groups})
    np.testing.assert_allclose([found.tree[1], *found.tree[0]], theirs.bse, rtol=1e-6)
    order = [1, 2, 0]  # as `names` says: the slopes come first
    np.testing.assert_allclose(found.covariance, theirs.cov_params()[np.ix_(order, order)], rtol=1e-6)
    assert found.names == ["x[0][0]", "x[0][1]", "x[1]"]


def by_hand(at: Any, cov_type: str) -> Any:
    """Return the covariance of a Poisson regression."""
    rates = np.exp(X @ at)
    bread = np.linalg.inv(X.T @ (X * rates[:, None]))
    scores = X * (rates - Y)[:, None]
    if cov_type == "nonrobust":
        return bread
    if cov_type == "cluster":
        scores = np.stack([scores[group == GROUPS].sum(axis=0) for group in np.unique(GROUPS)])
    n, n_groups = len(Y), len(np.unique(GROUPS))
    times = {"HC0": 1.0, "HC1": n / (n - 3), "cluster": n_groups / (n_groups - 1) * (n - 1) / (n - 3)}[cov_type]
    return times * bread @ scores.T @ scores @ bread


def of_poisson(rows: Any, p: Any) -> Any:
    x, y = rows
    eta = x[:, :2] @ p["first"] + x[:, 2] * p["last"]
    return np.exp(eta) - y * eta


@pytest.mark.parametrize("cov_type", COVARIANCES)
def test_covariances_are_the_same_on_every_scheduler(cov_type: str, scheduler: Any) -> None:
    def found_on(where: Any) -> Any:
        shards = dagad.shard((X, Y), grainsize=40, scheduler=where)

        def loss(p: Any) -> Any:
            return dagad.reduce_sum(summed(of_poisson), shards, p)

        fit = minimize(loss, {"first": np.zeros(2), "last": 0.0}, method="trust-exact", tol=1e-12)
        how: dict[str, Any] = {} if cov_type == "nonrobust" else {"losses": of_poisson, "rows": shards}
        return fit, standard_errors(
            loss, fit.x, cov_type=cov_type, groups=GROUPS if cov_type == "cluster" else None, **how
        )

    fit, found = found_on(scheduler)
    np.testing.assert_allclose(found.covariance, by_hand(fit.x_flat, cov_type), rtol=1e-9)
    np.testing.assert_array_equal(found.flat, np.sqrt(np.diag(found.covariance)))
    np.testing.assert_array_equal(found.tree["first"], found.flat[:2])
    assert found.covariance.tobytes() == found_on("sync")[1].covariance.tobytes()
    assert found.names == FlatFunction(lambda p: 0.0, fit.x).names == ["first[0]", "first[1]", "last"]


def test_rows_may_be_tables_and_lists() -> None:
    pandas: Any = optional("pandas")
    items = [np.array([1.0, 2.0]), np.array([3.0]), np.array([2.0, 2.0, 5.0])]
    totals, counts = (np.array([f(item) for item in items], float) for f in (np.sum, len))
    table = pandas.DataFrame({"total": totals, "count": counts})

    def of_items(items: Any, rate: Any) -> Any:
        return np.stack([rate * len(item) - np.log(rate) * np.sum(item) for item in items])

    def of_table(rows: Any, rate: Any) -> Any:
        return rate * rows["count"] - np.log(rate) * rows["total"]

    rate, found = totals.sum() / counts.sum(), []
    for losses, rows in ((of_items, items), (of_table, table)):
        for groups in (None, ["a", "b", "a"]):

            def loss(rate: Any, losses: Any = losses, rows: Any = rows) -> Any:
                return dagad.reduce_sum(summed(losses), rows, rate, grainsize=2)

            cov_type = "HC0" if groups is None else "cluster"
            how: dict[str, Any] = {"losses": losses, "rows": rows, "groups": groups, "grainsize": 2}
            how |= {} if groups is None else {"use_correction": False}
            found.append(standard_errors(loss, rate, cov_type=cov_type, **how).tree)
    residuals = totals - rate * counts
    ends = [np.sum(residuals**2), np.sum(np.array([residuals[0] + residuals[2], residuals[1]]) ** 2)]
    np.testing.assert_allclose(found, 2 * [np.sqrt(end) / counts.sum() for end in ends], rtol=1e-10)


RATE = Y.mean()
FORMS: dict[str, Any] = {  # of the same groups
    "tuples": lambda names: [(name % 4, name // 4) for name in names],
    "tuples of words and numbers": lambda names: [("ward", int(name)) for name in names],
    "a list": lambda names: names.tolist(),
    "whole numbers and others": lambda names: [int(name) if name % 2 else float(name) for name in names],
    "words": lambda names: [f"{name:02d}" for name in names],
    "an array of objects": lambda names: names.astype(object),
    "dates": lambda names: np.datetime64("2020-01-01") + names,
    "a masked array without a mask": lambda names: np.ma.array(names),
    "a column": lambda names: optional("pandas").Series(names, index=names + 7),
    "a column of words": lambda names: optional("pandas").Series([f"{name:02d}" for name in names]),
    "a nullable column": lambda names: optional("pandas").Series(names, dtype="Int64"),
    "categories": lambda names: optional("pandas").Categorical(names),
    "a column of categories": lambda names: optional("pandas").Series([f"{n:02d}" for n in names], dtype="category"),
}


def of_rate(rows: Any, rate: Any) -> Any:
    return rate - rows * np.log(rate)


def clustered_rate(groups: Any) -> Any:
    return standard_errors(
        lambda rate: np.sum(of_rate(Y, rate)), RATE, cov_type="cluster", losses=of_rate, rows=Y, groups=groups
    ).tree


@pytest.mark.parametrize("form", FORMS)
def test_groups_may_have_names_of_any_kind(form: str) -> None:
    np.testing.assert_allclose(clustered_rate(FORMS[form](GROUPS)), clustered_rate(GROUPS), rtol=1e-14)


MISSING: dict[str, Any] = {
    "None beside words": [None, *"abcdefghijk"],
    "None beside numbers": [*range(11), None],
    "nan in a list": [np.nan, *range(11)],
    "nan in an array": [np.nan, *np.arange(11.0)],
    "nan beside words": [*"abcdefghijk", np.nan],
    "in a tuple": [("a", None), *[("a", "b")] * 11],
    "no time": np.array(["NaT", *["2020-01-01"] * 11], dtype="datetime64[D]"),
    "a mask": np.ma.array(np.arange(12), mask=np.arange(12) == 3),
    "a masked entry": [np.ma.masked, *range(11)],
    "a column": lambda: optional("pandas").Series([None, *range(11)]),
    "a nullable column": lambda: optional("pandas").Series([None, *range(11)], dtype="Int64"),
    "a column of words": lambda: optional("pandas").Series([None, *"abcdefghijk"], dtype="string"),
    "categories": lambda: optional("pandas").Categorical([None, *"abcdefghijk"]),
}


@pytest.mark.parametrize("form", MISSING)
def test_groups_with_missing_values_are_refused_whatever_holds_them(form: str) -> None:
    groups = MISSING[form]() if callable(MISSING[form]) else MISSING[form]
    with pytest.raises(dagad.StructureError, match=r"In `groups` there are missing values\. Give each row a group"):
        clustered(groups)()


def quadratic(p: Any) -> Any:
    return 8.0 * anp.sum((p["a"] - 1.0) ** 2) + 0.5 * p["b"] ** 2


AT = {"a": np.ones(2), "b": 0.0}


def test_a_function_of_the_estimates_has_the_error_of_the_delta_method() -> None:
    found = standard_errors(quadratic, AT)
    assert repr(found) == "<StandardErrors, nonrobust: a[0] 0.25, a[1] 0.25, b 1>"
    assert found.of(lambda p: 3.0 * p["a"][0] - 4.0 * p["a"][1]) == 1.25
    both = found.of(lambda p: {"square": p["a"] ** 2, "sum": [p["b"] + p["a"][0]]})
    np.testing.assert_allclose(both["square"], [0.5, 0.5])
    np.testing.assert_allclose(both["sum"], [np.sqrt(1.0 + 0.25**2)])
    assert found.of(lambda p: 2.0) == 0.0
    many = found.of(lambda p: {"list": [p["a"][1], (np.float32(1.0), None)], "matrix": np.outer(p["a"], p["a"])})
    np.testing.assert_allclose(many["list"][0], 0.25)
    assert many["list"][1] == (0.0, None)
    np.testing.assert_allclose(many["matrix"], [[0.5, np.sqrt(0.125)], [np.sqrt(0.125), 0.5]])


@pytest.mark.parametrize(
    ("fun", "said"),
    [
        (lambda p: 3, "`<lambda>` returned an int, which has no standard error. Return real floating-point numbers"),
        (lambda p: {"n": [p["b"], 3]}, r"returned an int at `\['n'\]\[1\]`, .*leave out the rest"),
        (lambda p: p["b"] + 1j, "complex.*of a complex one two, its parts"),
        (lambda p: [p["b"], "b"], r"returned a str at `\[1\]`.*leave out the rest"),
        (lambda p: p["a"] > 0.0, r"an array of shape \(2,\) and dtype bool.*leave out the rest"),
        (lambda p: None, "returned None, which holds no numbers. Return real floating-point numbers"),
    ],
)
def test_the_delta_method_refuses_what_is_no_real_number(fun: Any, said: str) -> None:
    with pytest.raises(dagad.NotDifferentiableError, match=said):
        standard_errors(quadratic, AT).of(fun)


def test_the_error_of_a_mean_is_that_of_its_sum() -> None:
    mean = standard_errors(lambda p: quadratic(p) / 100.0, AT, mean_over=100)
    np.testing.assert_allclose(mean.flat, standard_errors(quadratic, AT).flat, rtol=1e-14)


ONES = np.ones(12)


def of_ones(rows: Any, p: Any) -> Any:
    return rows * (p["a"] - 2.0) ** 2 + 1.0


def sum_of_ones(p: Any) -> Any:
    return dagad.reduce_sum(summed(of_ones), ONES, p)


def asked(fun: Any = sum_of_ones, at: Any = None, **how: Any) -> Any:
    return lambda: standard_errors(fun, {"a": 2.0} if at is None else at, **how)


def asked_of_rows(fun: Any = sum_of_ones, losses: Any = of_ones, cov_type: str = "HC0", **how: Any) -> Any:
    return asked(fun, cov_type=cov_type, losses=losses, rows=ONES, **how)


def clustered(groups: Any) -> Any:
    return asked_of_rows(cov_type="cluster", groups=groups)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (asked(cov_type="HC3"), "`cov_type` is 'HC3'.*'HC2' and 'HC3' are of linear models"),
        (asked(losses=of_ones, rows=ONES), "`cov_type='nonrobust'` would read none of them. Say `cov_type='HC0'`"),
        (asked(groups=np.arange(12)), "for the sandwich.*'cluster' where there are groups"),
        (asked(cov_type="HC1"), "`cov_type='HC1'` needs the score of each row. Give `losses`.* and `rows`"),
        (asked(cov_type="cluster", losses=of_ones, rows=ONES), "`groups` go with `cov_type='cluster'`. Give both"),
        (asked_of_rows(groups=np.arange(12)), "`groups` go with `cov_type='cluster'`.*or neither"),
        (
            clustered(np.arange(11)),
            r"`groups` are an array of shape \(11,\).*there are 12 rows. Give the group of each",
        ),
        (
            clustered(["a", 1, *range(10)]),
            r"can't be put in order.* is of `int`, `str`\. Make all of them words, `\[str",
        ),
        (clustered([("a", 1), (1, "a")] * 6), r"can't be put in order.* is of `tuple`\. Make all of them words"),
        (clustered([[1, 2]] * 12), "hold what is no name, such as a list. Give each row a word, a number, or a tuple"),
        (clustered([*"abcdefghijkl", "m"]), r"of shape \(13,\).*there are 12 rows\. Give the group of each"),
        (asked(use_correction=False), "and `cov_type` is 'nonrobust'. Leave it at True"),
        (asked_of_rows(use_correction=False), "leaves out what 'cluster' is multiplied by, and `cov_type` is 'HC0'"),
        (asked_of_rows(cov_type="HC1", use_correction=False), r"'HC1'\. Leave it at True; 'HC1' without .* is 'HC0'"),
        (clustered(np.zeros(12)), "`groups` are one group.*Give two groups or more"),
        (asked_of_rows(losses=summed(of_ones)), r"returned a float64. Return an array with one axis, the loss of each"),
        (
            asked_of_rows(losses=lambda rows, p: anp.stack([p["a"] ** 2, p["a"]]), grainsize=12),
            "returned 2 losses of 12 rows. Return one for each row.*`cov_type='cluster'`",
        ),
        (
            asked_of_rows(lambda p: sum_of_ones(p) / 12),
            "is the mean of `losses` over 12 rows. Say so, `mean_over=12`",
        ),
        *[
            (asked_of_rows(lambda p: sum_of_ones(p) / 12, mean_over=n), "over 12 rows. Say so, `mean_over=12`")
            for n in (1, 11, 144)
        ],
        *[
            (asked_of_rows(mean_over=wrong), f"`mean_over` is {wrong}. Say over how many rows")
            for wrong in (0, -12, 12.0, True)
        ],
        (asked_of_rows(mean_over=12), "`sum_of_ones` is the sum of `losses`, and no mean. Leave out `mean_over=12`"),
        (
            asked(lambda p: -sum_of_ones(p)),
            "`<lambda>` has a maximum here. Give minus the log-likelihood",
        ),
        (
            asked(lambda p: p["a"] ** 2 - p["b"] ** 2, {"a": 0.0, "b": 0.0}),
            r"no minimum here in `b`: its second derivative is -2\. Fit on.*or leave out a parameter",
        ),
        (
            asked(lambda p: (p["a"] + p["b"]) ** 2 + p["c"] ** 2, {"a": 0.0, "b": 0.0, "c": 0.0}),
            "no minimum of its own in `a`, `b`: together they can change.*Leave one of them out",
        ),
        (
            asked(lambda p: (p["a"] + 2.0 * p["b"]) ** 2 + 3.0 * p["a"] * p["b"], {"a": 0.0, "b": 0.0}),
            "no minimum of its own in `a`, `b`.*or it falls",
        ),
        (asked(lambda p: p["a"] ** 2.5, {"a": 0.0}), "no minimum here in `a`: its second derivative is 0"),
        (asked(at=minimize(lambda p: p["a"] ** 2, {"a": 1.0})), r"all that an optimizer returned\. Give .*`x\.x`"),
        (asked(at={"a": 2}), "is an int, which is no real floating-point number"),
    ],
)
def test_standard_errors_of_no_minimum_or_without_scores_are_refused_with_the_remedy(wrong: Any, said: str) -> None:
    with pytest.raises(dagad.DagadError, match=said):
        wrong()


@pytest.mark.filterwarnings("ignore:.*nan")  # of the gradient, by a warning of its own
def test_a_hessian_that_is_not_finite_is_refused() -> None:
    with np.errstate(all="ignore"), pytest.raises(dagad.NonFiniteError, match=r"not finite in `a`.*variance of 0"):
        standard_errors(lambda p: p["a"] ** 1.5, {"a": 0.0})


def test_few_rows_are_refused_where_a_correction_would_divide_by_zero() -> None:
    rows = np.array([1.0])

    def losses(rows: Any, p: Any) -> Any:
        return (rows - p) ** 2

    def loss(p: Any) -> Any:
        return dagad.reduce_sum(summed(losses), rows, p)

    with pytest.raises(dagad.ArgumentsError, match=r"where n is 1 and k is 1\. Say 'HC0'"):
        standard_errors(loss, 1.0, cov_type="HC1", losses=losses, rows=rows)


def test_a_point_that_is_no_minimum_yet_gets_a_warning() -> None:
    with pytest.warns(dagad.DagadWarning, match=r"still falls: .* 2 standard errors away in `b`.*smaller `tol`"):
        standard_errors(quadratic, AT | {"b": 2.0})
    standard_errors(quadratic, AT | {"b": 0.05})


def test_a_mean_over_others_than_the_rows_is_taken_where_it_fits() -> None:
    right = standard_errors(sum_of_ones, {"a": 2.0}).flat
    for fun, mean_over in ((sum_of_ones, 1), (lambda p: sum_of_ones(p) / 12, 12), (lambda p: sum_of_ones(p) / 4, 4)):
        np.testing.assert_allclose(standard_errors(fun, {"a": 2.0}, mean_over=mean_over).flat, right, rtol=1e-14)
        found = standard_errors(fun, {"a": 2.0}, mean_over=mean_over, cov_type="HC0", losses=of_ones, rows=ONES)
        assert found.tree["a"] == 0.0  # all rows are alike


def test_a_sum_of_one_row_is_no_mean_over_others() -> None:
    row = np.array([1.0])

    def losses(rows: Any, p: Any) -> Any:
        return (rows - p) ** 2 + 1.0

    def loss(p: Any) -> Any:
        return dagad.reduce_sum(summed(losses), row, p)

    with pytest.raises(dagad.ArgumentsError, match=r"is the sum of `losses`, and no mean\. Leave out `mean_over=5`"):
        standard_errors(loss, 1.0, cov_type="HC0", losses=losses, rows=row, mean_over=5)
    assert standard_errors(loss, 1.0, cov_type="HC0", losses=losses, rows=row, mean_over=1).tree == 0.0


AROUND = np.arange(10.0)


def of_squares(rows: Any, p: Any) -> Any:
    return 0.5 * (rows - p["m"]) ** 2 / p["v"] + 0.5 * np.log(p["v"])


def penalized(p: Any, weight: float = 0.01) -> Any:
    return np.sum(of_squares(AROUND, p)) + weight * ((p["m"] - 4.5) ** 2 + (p["v"] - 8.25) ** 2 + 1.0)


BEST = {"m": 4.5, "v": 8.25}


@pytest.mark.parametrize(
    ("fun", "losses", "mean_over", "times"),
    [
        (penalized, lambda rows, p: 2.0 * of_squares(rows, p), None, "2"),
        (penalized, lambda rows, p: 0.1 * of_squares(rows, p), None, "0.1"),
        (penalized, lambda rows, p: (rows - p["m"]) ** 2 + 0.0 * p["v"], None, "[0-9.]+"),
        (penalized, lambda rows, p: -of_squares(rows, p), None, "-"),
        (lambda p: penalized(p) / 10, of_squares, None, "[89]"),
        (lambda p: penalized(p) / 10, of_squares, 100, "0.0"),
        (lambda p: penalized(p, 10.0), of_squares, None, "0.0"),
    ],
)
def test_losses_that_are_curved_otherwise_than_what_was_minimized_get_a_warning(
    fun: Any, losses: Any, mean_over: Any, times: str
) -> None:
    how: dict[str, Any] = {"cov_type": "HC0", "rows": AROUND, "grainsize": 4, "mean_over": mean_over}
    said = (
        rf"seems not to be what `\w+|<lambda>` sums up.* is {times}.* times that of .*Return the same loss of each row"
    )
    with pytest.warns(dagad.DagadWarning, match=said):
        standard_errors(fun, BEST, losses=losses, **how)


def test_a_prior_and_constants_that_losses_leave_out_get_no_warning() -> None:
    def without_constants(rows: Any, p: Any) -> Any:
        return of_squares(rows, p) - 3.0

    for fun, mean_over in ((penalized, None), (lambda p: penalized(p) / 10, 10), (lambda p: penalized(p, 0.02), None)):
        for losses in (of_squares, without_constants):
            standard_errors(fun, BEST, cov_type="HC1", losses=losses, rows=AROUND, mean_over=mean_over, grainsize=4)


def test_no_scores_of_rows_leave_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes: list[dict[str, Any]] = []

    class Seen(ScoresOfRows):
        def __call__(self, rows: Any, p: Any) -> Any:
            found = super().__call__(rows, p)
            shapes.append({"n_rows": len(rows)} | {name: np.shape(part) for name, part in found.items()})
            return found

    monkeypatch.setattr("dagad.interop._standard_errors.ScoresOfRows", Seen)
    found = standard_errors(
        lambda p: np.sum(of_squares(AROUND, p)),
        BEST,
        cov_type="HC0",
        losses=of_squares,
        rows=AROUND,
        grainsize=4,
        scheduler="sync",
    )
    np.testing.assert_allclose(found.tree["m"], np.sqrt(np.sum((AROUND - 4.5) ** 2)) / 10, rtol=1e-14)
    assert shapes == 3 * [{"n_rows": (), "outer": (2, 2), "loss": ()}]  # whatever the number of rows


def test_scores_have_the_columns_of_the_vector() -> None:
    p = {"b": np.full((1, 2), 0.5), "a": 2.0}

    def losses(rows: Any, p: Any) -> Any:
        return rows * p["a"] ** 2 + p["b"][0, 0] - 3.0 * rows * p["b"][0, 1]

    scores = np.stack([4.0 * AROUND[:4], np.ones(4), -3.0 * AROUND[:4]], axis=1)
    found = ScoresOfRows(losses)(AROUND[:4], p)
    np.testing.assert_allclose(found["outer"], scores.T @ scores, rtol=1e-14)
    assert found["n_rows"] == 4.0


@pytest.mark.parametrize("x0", list(itertools.chain([2.0, np.ones((2, 2))], [{"b": [1.0, np.ones(1)], "a": (2.0,)}])))
def test_numbers_of_a_vector_have_names(x0: Any) -> None:
    names = FlatFunction(lambda p: 0.0, x0).names
    right = {1: ["x"], 4: [f"x[{i}, {j}]" for i in range(2) for j in range(2)], 3: ["a[0]", "b[0]", "b[1][0]"]}
    assert names == right[len(names)]
