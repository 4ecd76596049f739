"""What annotations call distributed's objects, which is imported late: words for readers, as to mypy all are `Any`.

==========  ===============================================================
`Client`    a `distributed.Client`
`Comm`      a connection of distributed's to a worker, or to whoever calls
`Server`    distributed's scheduler, or a worker, on which something runs
`Worker`    a worker of distributed's, where it runs
==========  ===============================================================
"""

from __future__ import annotations

from typing import Any, TypeAlias

Client: TypeAlias = Any
Comm: TypeAlias = Any
Server: TypeAlias = Any
Worker: TypeAlias = Any
