"""How far a long computation is: loops tell it, and whoever looks on hears it.

The command line looks on with `watching`; loops whose rounds take long run through `each`. Nobody
need look on, and no function has to pass a listener along, which is why the listener is a context
variable. A loop within another one moves that one's share.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Made = TypeVar("Made")
Listener = Callable[[str, float], None]  # what is done, and the share of it that is
Report = Callable[[int, int], None]  # the rows that are read, of how many

ASK_EVERY = 0.2  # seconds between two questions to what runs elsewhere

_listener: ContextVar[Listener | None] = ContextVar("reweigh_progress", default=None)


@contextmanager
def watching(listener: Listener | None) -> Iterator[None]:
    """Tell this listener of the loops inside."""
    before = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(before)


def each(
    what: str, items: Iterable[Item], do: Callable[[Item], Made], at_most: int | None = None
) -> list[Made]:
    """[do(item) for item in items], and the listener is told how far that is. `at_most` is for
    items that are made on the way, and cannot be counted."""
    listener = _listener.get()
    if listener is None:
        return [do(item) for item in items]
    n = at_most if at_most is not None else len(items) if isinstance(items, Sized) else 1
    found = []
    for k, item in enumerate(items):
        with stage(k, n, what):
            found.append(do(item))
    return found


@contextmanager
def stage(k: int, n: int, what: str = "") -> Iterator[None]:
    """The k-th of n rounds, of a loop or of a whole command: loops inside move its share."""
    listener = _listener.get()
    if listener is None:
        yield
        return

    def inside(_: str, share: float) -> None:
        listener(what, min((k + share) / n, 1.0))

    inside("", 0.0)
    with watching(inside):
        yield
    inside("", 1.0)


def tell(share: float, what: str = "") -> None:
    """How far something is that is no loop; 0 when it begins."""
    listener = _listener.get()
    if listener is not None:
        listener(what, share)


@contextmanager
def asking(share: Callable[[], float]) -> Iterator[None]:
    """While something runs that does not come back before it is done, ask it how far it is.

    `share` is called by another thread, which ends with this block, however that ends. Where it
    cannot tell, it gives a number that is not above 0.
    """
    listener = _listener.get()
    if listener is None:
        yield
        return
    over = threading.Event()

    def ask() -> None:
        most = 0.0
        while not over.wait(ASK_EVERY):
            now = min(share(), 1.0)
            if now > most:
                most = now
                listener("", now)

    asker = threading.Thread(target=ask, name="reweigh-progress", daemon=True)
    asker.start()
    try:
        yield
    finally:
        over.set()
        asker.join()
