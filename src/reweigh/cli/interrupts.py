"""Ctrl-C and requests to end: the command ends soon, says so, and exits with 130."""

from __future__ import annotations

import functools
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from reweigh.cli import progress

INTERRUPTED = 130
GRACE = 2.0  # seconds in which the main thread may come out of what it is doing, and clean up
SIGNALS = (signal.SIGINT, signal.SIGTERM)
_kept: list[str] = []
_heard: list[int] = []  # the signal that ends the command


class Interrupted(Exception):
    """A KeyboardInterrupt that Typer lets through; one of its own it turns into the code 130."""


def let_through(command: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(command)
    def run(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except KeyboardInterrupt as error:
            raise Interrupted from error

    return run


def listen(say: Callable[[str], None]) -> None:
    """From now on SIGINT and SIGTERM raise KeyboardInterrupt in the main thread, once.

    Python hears a signal only between two of its own instructions, and a compiled loop or a
    library may not come back for minutes. So a second thread is woken by the signal itself: where
    the process is still there after the grace time, that thread ends it. A signal that is ignored
    from the start (nohup) stays ignored.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not _heard:  # again and again must not disturb the cleaning up
            _heard.append(number)
            raise KeyboardInterrupt

    def watch(reader: int) -> None:
        while True:
            if set(os.read(reader, 1)) & set(SIGNALS):
                time.sleep(GRACE)
                end_now(say)

    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, interrupt)
    threading.Thread(target=watch, args=(reader,), name="reweigh-signals", daemon=True).start()
    told = sys.unraisablehook

    def quiet(what: Any) -> None:
        """Raised within a library's callback an interrupt is lost; the watching thread is not."""
        if not issubclass(what.exc_type, KeyboardInterrupt):
            told(what)

    sys.unraisablehook = quiet


def heard() -> bool:
    """Whether the command is to end: a library may turn the interrupt into an error of its own, as
    a module does whose import it breaks off."""
    return bool(_heard)


def end_now(say: Callable[[str], None]) -> None:
    """End this process and those that it started, from any thread, whatever they are doing."""
    for worker in multiprocessing.active_children():
        with suppress(OSError, ValueError):
            worker.kill()
    say(interrupted_text())
    os._exit(INTERRUPTED)


def forget() -> None:
    """Another command begins."""
    progress.forget()
    _kept.clear()


@contextmanager
def keeping(what: str) -> Iterator[None]:
    """Say this of an interruption inside."""
    _kept.append(what)
    try:
        yield
    except KeyboardInterrupt:
        raise  # it is said outside
    except BaseException:
        _kept.clear()
        raise
    _kept.clear()


def interrupted_text() -> str:
    """One sentence: what was under way, and what is there now."""
    while_doing = f" while {progress.doing()}" if progress.doing() else ""
    return f"Interrupted{while_doing}; {_kept[-1] if _kept else 'no file was left half-written'}"
