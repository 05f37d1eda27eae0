"""Waiting for what runs in a library, so that Ctrl-C is heard meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

Made = TypeVar("Made")

STOPPING = 5.0  # seconds for what was stopped to come back


def heard_meanwhile(work: Callable[[], Made], stop: Callable[[], None]) -> Made:
    """`work()`, done by another thread while this one waits: Python hears signals only in its main
    thread, and only between two of its own instructions. `stop` ends the work early."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    over = threading.Event()
    made: list[Made] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            made.append(work())
        except BaseException as error:
            failed.append(error)
        finally:
            over.set()

    threading.Thread(target=run, name="reweigh-query", daemon=True).start()
    try:
        over.wait()
    except BaseException:
        stop()
        over.wait(STOPPING)
        raise
    if failed:
        raise failed[0]
    return made[0]
