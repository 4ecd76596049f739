"""Hot loops: what answers on a worker, and how a client calls it."""
