"""reweigh beside other libraries, on the same data: the same numbers? what CPU time? right?

    make bench-peers        or, in this folder's parent, python -m peers [--small] [--peers obp …]

Each peer has a module here (`scope_rl`, `obp`, …) with a `PEER`, which says how it is installed,
and `tasks(data)`, which gives its estimators as functions without arguments, ready to be timed.
These modules import nothing of reweigh: they may run under the peer's own interpreter. `ours` is
the same for reweigh. `worker` is the process in which tasks run, `talk` speaks with it, `data`
makes the logs, `measure` compares and `page` writes.
"""
