"""What dagad takes from distributed's dashboard that is not in its documentation; imported where there is bokeh."""

from bokeh.server.tornado import BokehTornado as BokehTornado
from bokeh.server.util import create_hosts_allowlist as create_hosts_allowlist

from dagad_scheduler.releases import taken_from

with taken_from("distributed"):
    from distributed.dashboard.components.scheduler import BOKEH_THEME as BOKEH_THEME, env as env
    from distributed.dashboard.core import (  # type: ignore[attr-defined]  # made twice
        DaskBokehTornado as DaskBokehTornado,
    )
    from distributed.dashboard.scheduler import template_variables as template_variables
