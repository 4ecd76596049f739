"""The page `/dagad` on Dask's dashboard: what evaluations are doing, readable from across the room."""

from __future__ import annotations

import functools
import html
import math
from collections.abc import Callable, Mapping
from typing import Any

import dask
from bokeh.application import Application
from bokeh.application.handlers.function import FunctionHandler
from bokeh.document import Document
from bokeh.layouts import column, row
from bokeh.models import (
    ColumnDataSource,
    Div,
    FixedTicker,
    GlobalInlineStyleSheet,
    HoverTool,
    NumeralTickFormatter,
    Range1d,
)
from bokeh.plotting import figure
from dask.utils import format_bytes
from tornado.ioloop import IOLoop

from dagad_scheduler._types import Server
from dagad_scheduler.private_dashboard import (
    BOKEH_THEME,
    BokehTornado,
    DaskBokehTornado,
    create_hosts_allowlist,
    env,
)
from dagad_scheduler.watching.evaluations import CELLS, EXECUTORS, GRAPH, NAME, RESIDENT

LOOK_EVERY = 500  # milliseconds
SMOOTHED_OVER = 3  # seconds
COLORS = {"w": "#dfe3e8", "r": "#f2a32c", "v": "#62a8ea", "g": "#2e9d57", "f": "#d63b3b", "c": "#9b5fc0"}
COLORS_OF = {GRAPH: "#2f6fb3", RESIDENT: "#d9822b"}
NAMES_OF = {GRAPH: "tasks", RESIDENT: "hot loop"}
MOST_ROWS, IN_A_ROW, CELL_HEIGHT, MOST_HEIGHT = 10, 100, 20, 300

CSS = """
:host { font-family: Helvetica, Arial, sans-serif; color: #24292f; }
.cards { display: flex; flex-wrap: wrap; gap: 10px; }
.card { background: #fff; border: 1px solid #dfe3e8; border-radius: 6px; padding: 8px 14px; min-width: 88px; }
.card b { display: block; font-size: 23px; font-weight: 600; font-variant-numeric: tabular-nums; }
.card span { font-size: 12px; color: #57606a; }
.bad b { color: #d63b3b; }
h3 { margin: 14px 0 4px; font-size: 14px; }
table { border-collapse: collapse; width: 100%; background: #fff; font-size: 13px; }
th { text-align: left; color: #57606a; font-weight: normal; }
th, td { border-bottom: 1px solid #e7eaee; padding: 4px 8px; vertical-align: top; }
td:first-child { white-space: nowrap; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
td.n { white-space: nowrap; }
td.text { font-family: monospace; word-break: break-word; }
.none { color: #57606a; font-size: 13px; }
.bk-clearfix { width: 100%; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 480px), 1fr)); column-gap: 28px; }
.wide { overflow-x: auto; }
.legend { font-size: 12px; color: #57606a; }
.legend i { display: inline-block; width: 11px; height: 11px; margin: 0 4px 0 12px; border-radius: 2px; }
.legend span { white-space: nowrap; }
@media (max-width: 700px) {
  .card { padding: 4px 8px; min-width: 64px; }
  .card b { font-size: 17px; }
  td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 8em; }
  th, td { padding: 3px 5px; font-size: 12px; }
}
@media (prefers-color-scheme: dark) {
  :host { color: #d8dee6; color-scheme: dark; }
  .card, table { background: #161b22; }
  .card { border-color: #30363d; }
  .card span, th, .none, .legend { color: #9aa4b0; }
  th, td { border-color: #30363d; }
  .bad b { color: #f2706b; }
}
"""
PAGE_CSS = "@media (prefers-color-scheme: dark) { body { background: #0d1117; } }"  # what is around what we draw
INK, LINES = "#7d8793", "#8b949e"  # of charts, to be read on white and on black
LEAST_WIDTH = 300  # pixels of a chart; where there is no room for two, one is below the other
MOST_TICKS = 4


def bokeh_application_of(application: Any) -> Any:
    """Return what serves Dask's own pages; None if nothing does."""
    return next((one for one in application.applications if isinstance(one, BokehTornado)), None)


class serve(DaskBokehTornado):  # type: ignore[misc]  # untyped
    """Pages of ours beside those of Dask; lists both."""

    def __init__(self, pages: Mapping[str, Any], dasks: Any, scheduler: Any, variables: dict[str, Any]) -> None:
        extra = {"prefix": dasks.prefix + "/", **variables}
        made = {
            path: Application(FunctionHandler(functools.partial(page, scheduler, extra)))
            for path, page in pages.items()
        }
        options = dask.config.get("distributed.scheduler.dashboard.bokeh-application").copy()
        origins = create_hosts_allowlist(options.pop("allow_websocket_origin"), scheduler.http_server.port)
        super().__init__(
            made, prefix=dasks.prefix, use_index=False, extra_websocket_origins=origins, absolute_url="", **options
        )
        self._dasks = dasks
        self.initialize(IOLoop.current())
        self.start()

    @property
    def app_paths(self) -> set[str]:
        """The paths of all pages."""
        return {*super().app_paths, *self._dasks.app_paths}


def page(scheduler: Server, extra: dict[str, Any], doc: Document) -> None:
    """Make the page."""
    _fill(scheduler, doc)
    doc.title = "Dask: dagad"
    doc.template = env.get_template("simple.html")
    doc.template_variables.update(extra)


def plot(scheduler: Server, extra: dict[str, Any], doc: Document) -> None:
    """Make the same without Dask's navigation, for JupyterLab."""
    del extra
    _fill(scheduler, doc)
    doc.title = "Dask: dagad"


def _fill(scheduler: Server, doc: Document) -> None:
    view = View(lambda: scheduler.plugins.get(NAME))
    view.update()
    doc.add_root(view.root)
    doc.theme = BOKEH_THEME
    doc.add_periodic_callback(view.update, LOOK_EVERY)


class View:
    """What one browser sees; `plugin` returns whose board it is, None once that is gone."""

    def __init__(self, plugin: Callable[[], Any]) -> None:
        self._plugin = plugin
        self._looked = 0.0
        sheets = [CSS, GlobalInlineStyleSheet(css=PAGE_CSS)]
        self._cards, self._title, self._tables = (
            Div(sizing_mode="stretch_width", stylesheets=sheets) for _ in range(3)
        )
        self._rate, self._rates = _chart("Evaluations per second")
        self._latency, self._latencies = _chart(
            "Latency of an evaluation, ms", y_axis_type="log", y_range=Range1d(start=1, end=1000)
        )
        self._strip, self._cells = _strip()
        charts = row(self._rate, self._latency, sizing_mode="stretch_width", styles={"flex-wrap": "wrap"})
        parts = [self._cards, charts, self._title, self._strip, self._tables]
        self.root = column(*parts, sizing_mode="stretch_width", name="dagad")

    def update(self) -> None:
        """Show what is known now."""
        plugin = self._plugin()
        if plugin is None:
            self._cards.text = "<p class='none'>The scheduler has no plugin of dagad any more.</p>"
            return
        found = plugin.snapshot()
        _set(self._cards, "text", _cards(found))
        _set(self._tables, "text", _tables(found))
        self._show_slots(found["evaluations"])
        if found["time"] >= self._looked + 1.0:
            self._looked = found["time"]
            self._show_series(plugin.board.series(SMOOTHED_OVER), found["time"])

    def _show_series(self, series: list[dict[str, Any]], now: float) -> None:
        for executor in EXECUTORS:
            mine = [one for one in series if one["executor"] == executor]
            seconds = [one["time"] - now for one in mine]
            self._rates[executor].data = {"x": seconds, "y": [one["rate"] for one in mine]}
            latencies = [1e3 * one["latency"] if one["latency"] else float("nan") for one in mine]
            self._latencies[executor].data = {"x": seconds, "y": latencies}
        found = [1e3 * one["latency"] for one in series if one["latency"]]
        if found:
            least, most = (math.floor(math.log10(one)) for one in (min(found), max(found)))
            most = max(most + 1, least + 2)
            self._latency.y_range.start, self._latency.y_range.end = 10.0**least, 10.0**most
            decades = range(least, most + 1, -(-(most - least) // MOST_TICKS))
            ticks = [10.0**decade for decade in decades]
            if ticks != self._latency.yaxis[0].ticker.ticks:
                self._latency.yaxis[0].ticker.ticks = ticks

    def _show_slots(self, evaluations: list[dict[str, Any]]) -> None:
        if not evaluations:
            _set(self._title, "text", "<h3>Slots</h3><p class='none'>No evaluation so far.</p>")
            _set(self._strip, "visible", False)
            return
        one = evaluations[0]
        _set(self._title, "text", _title(one))
        cells = one["cells"]
        if cells == self._cells.tags[0]:
            return
        n_rows = -(-len(cells) // IN_A_ROW)
        self._cells.tags = [cells]
        self._cells.data = {
            "x": [number % IN_A_ROW + 0.5 for number in range(len(cells))],
            "y": [number // IN_A_ROW + 0.5 for number in range(len(cells))],
            "color": [COLORS[letter] for letter in cells],
            "number": list(range(len(cells))),
            "what": [CELLS[letter] for letter in cells],
        }
        self._strip.x_range.end = max(min(len(cells), IN_A_ROW), 1)
        self._strip.y_range.start = max(n_rows, 1)
        _set(self._strip, "height", min(12 + CELL_HEIGHT * n_rows, MOST_HEIGHT))
        _set(self._strip, "visible", bool(cells))


def _set(model: object, name: str, value: object) -> None:
    if getattr(model, name) != value:
        setattr(model, name, value)


def _chart(title: str, **options: Any) -> tuple[Any, dict[str, ColumnDataSource]]:
    styles = {"flex": f"1 1 {LEAST_WIDTH}px", "min-width": f"{LEAST_WIDTH}px"}
    plot = figure(
        title=title, height=190, tools="", toolbar_location=None, sizing_mode="stretch_width", styles=styles, **options
    )
    sources = {executor: ColumnDataSource({"x": [], "y": []}) for executor in EXECUTORS}
    for executor, source in sources.items():
        plot.line("x", "y", source=source, line_width=2, color=COLORS_OF[executor], legend_label=NAMES_OF[executor])
    if options:
        # Bokeh's own ticks of a logarithmic axis have labels within a decade too, which lie on top of each other.
        plot.yaxis.ticker = FixedTicker(ticks=[1.0, 10.0, 100.0, 1000.0])
        plot.yaxis.formatter = NumeralTickFormatter(format="0,0.[000]")
    else:
        plot.y_range.start = 0
    _on_any_ground(plot)
    plot.x_range = Range1d(-120, 0)
    plot.xaxis.axis_label = "seconds ago"
    plot.legend.location = "top_left"
    plot.legend.label_text_font_size, plot.legend.padding = "10px", 4
    plot.grid.grid_line_alpha = 0.25
    return plot, sources


def _on_any_ground(plot: figure) -> None:
    """Draw on whatever is behind, light or dark, in a color that is read on both."""
    plot.background_fill_color = plot.border_fill_color = plot.legend.background_fill_color = None
    plot.title.text_color = plot.axis.axis_label_text_color = plot.axis.major_label_text_color = INK
    plot.legend.label_text_color, plot.grid.grid_line_color = INK, LINES
    plot.axis.axis_line_color = plot.axis.major_tick_line_color = plot.axis.minor_tick_line_color = LINES
    plot.outline_line_color = None


def _strip() -> tuple[Any, ColumnDataSource]:
    source = ColumnDataSource({"x": [], "y": [], "color": [], "number": [], "what": []}, tags=[""])
    plot = figure(
        x_range=Range1d(0, IN_A_ROW),
        y_range=Range1d(1, 0),
        height=CELL_HEIGHT,
        tools="",
        toolbar_location=None,
        sizing_mode="stretch_width",
        outline_line_color=None,
        min_border=4,
        background_fill_color=None,
        border_fill_color=None,
    )
    plot.rect("x", "y", width=0.92, height=0.86, color="color", line_color=None, source=source)
    plot.axis.visible = plot.grid.visible = False
    plot.add_tools(HoverTool(tooltips="@number: @what"))
    return plot, source


# Text


def _cards(found: dict[str, Any]) -> str:
    executors = found["executors"].values()
    rate = sum(one["per_second"] for one in executors)
    busiest = max(executors, key=lambda one: one["per_second"])
    held = sum(one["linearizations"] for one in found["workers"].values())
    nbytes = sum(one["linearization_bytes"] for one in found["workers"].values())
    cards = [
        ("evaluations / s", f"{rate:.3g}", "rate"),
        ("latency, last 10 s", _seconds(busiest["latency"]), "latency"),
        ("evaluations", f"{sum(one['evaluations'] for one in executors):,}", "evaluations"),
        ("chunk values", f"{found['values']:,}", "values"),
        ("chunk gradients", f"{found['gradients']:,}", "gradients"),
        (f"linearizations, {format_bytes(nbytes)}", f"{held:,}", "linearizations"),
        ("computed again", f"{found['recomputed']:,}", "recomputed"),
        ("fell back to tasks", f"{found['fell_back']:,}", "fell_back"),
        ("chunks failed", f"{found['failed']:,}", "failed"),
    ]
    bad = {"failed"} if found["failed"] else set[str]()
    return (
        "<div class='cards'>"
        + "".join(
            f"<div class='card{' bad' * (name in bad)}' id='{name}'><b>{value}</b><span>{words}</span></div>"
            for words, value, name in cards
        )
        + "</div>"
    )


def _title(one: dict[str, Any]) -> str:
    what = "one cell for each chunk" if one["executor"] == RESIDENT else "one cell for each task of chunks"
    cells = CELLS.items()
    legend = " ".join(f"<span><i style='background:{COLORS[letter]}'></i>{word}</span>" for letter, word in cells)
    return (
        f"<h3>Slots of <span id='slots'>{html.escape(one['function'])}: {_filled(one)}</span></h3>"
        f"<div class='legend'>by {NAMES_OF[one['executor']]}, {what}:{legend}</div>"
    )


def _filled(one: dict[str, Any]) -> str:
    (values, of_values), (gradients, of_gradients) = one["values"], one["gradients"]
    said = f"values {values}/{of_values}"
    return said + (f", gradients {gradients}/{of_gradients}" if of_gradients else "")


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "none yet"
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _ago(seconds: float) -> str:
    return f"{max(seconds, 0.0):.0f} s ago" if seconds < 120 else f"{seconds / 60:.0f} min ago"


def _when(one: dict[str, Any], now: float) -> str:
    if one["awaits_gradient"]:
        return "awaits gradient"
    if one["is_running"]:
        return "running"
    return f"{'failed ' * bool(one['failed'])}{_ago(now - one['last'])}"


def _tables(found: dict[str, Any]) -> str:
    now = found["time"]
    evaluations = [
        [
            one["function"],
            NAMES_OF[one["executor"]],
            _when(one, now),
            f"{one['count']:,}",
            "/".join(map(str, one["values"])),
            "/".join(map(str, one["gradients"])) if one["gradients"][1] else "",
            _seconds(one["seconds"]),
        ]
        for one in _alike_together(found["evaluations"])[:MOST_ROWS]
    ]
    workers = [
        [
            address,
            f"{one['linearizations']:,}",
            format_bytes(one["linearization_bytes"]),
            f"{one['calls']:,}",
            f"{one['chunks']:,}",
            _seconds(one["seconds"]),
        ]
        for address, one in found["workers"].items()
    ]
    fallbacks = [[one["reason"], f"{one['count']:,}", _ago(now - one["last"])] for one in found["fallbacks"]]
    errors = [
        [f"{one['function']}, {one['where']}", one["error"], one["worker"], _ago(now - one["time"])]
        for one in found["errors"][:MOST_ROWS]
    ]
    left = [
        _table("Evaluations", "function|by|#last|#evaluations|#values|#gradients|#time of one", evaluations),
        _table("Why evaluations fell back to tasks", "reason|#how often|#last", fallbacks),
    ]
    right = [
        _table("Workers", "worker|#linearizations held|#bytes|#hot calls|#chunks in them|#compute time", workers),
        _table("Last errors", "where|error|worker|#when", errors),
    ]
    if found["departures"]:
        right.insert(1, _gone(found["departures"], now))
    return f"<div class='two'><div>{''.join(left)}</div><div>{''.join(right)}</div></div>"


def _gone(departures: list[dict[str, Any]], now: float) -> str:
    rows = [
        [
            one["worker"],
            "lost" if one["is_lost"] else "was closed",
            _ago(now - one["time"]),
            f"{one['recomputed']:,}",
        ]
        for one in departures[:MOST_ROWS]
    ]
    return _table("Workers that went", "worker|how|#when|#chunks computed again since", rows)


def _alike_together(evaluations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return evaluations with those of one function that are over in one row, with their mean time."""
    found: list[dict[str, Any]] = []
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for one in evaluations:
        row = rows.get((one["function"], one["executor"]))
        if row is None or one["is_running"]:
            found.append(dict(one))
            if not one["is_running"]:
                rows[one["function"], one["executor"]] = found[-1]
        else:
            count = row["count"] + one["count"]
            row["seconds"] = (row["seconds"] * row["count"] + one["seconds"] * one["count"]) / count
            row["count"] = count
    return found


def _table(title: str, heads: str, rows: list[list[str]]) -> str:
    """Return a table; what is a number has a # before its head."""
    if not rows:
        return f"<h3>{title}</h3><p class='none'>None.</p>"
    kinds = [" class='n'" if head.startswith("#") else "" for head in heads.split("|")]
    top = "".join(f"<th{kind}>{head.lstrip('#')}</th>" for kind, head in zip(kinds, heads.split("|"), strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}>{html.escape(cell)}</td>" for kind, cell in zip(kinds, cells, strict=True))
        + "</tr>"
        for cells in rows
    )
    return f"<h3>{title}</h3><div class='wide'><table><tr>{top}</tr>{body}</table></div>"
