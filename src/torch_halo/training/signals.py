"""Ctrl-C and SIGTERM as a wish, which the loop fulfils after its step."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE = 1.0  # seconds


class Stopped(Exception):
    """The training was asked to stop, and everything is saved."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


class Wish:
    """The signal that arrived, if any."""

    def __init__(self) -> None:
        self.signum: int | None = None
        self.since = 0.0


@contextmanager
def stop_signals() -> Iterator[Wish]:
    """Note SIGINT and SIGTERM instead of dying of them; one that comes again later is obeyed at once."""
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield wish
        return
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}

    def note(signum: int, frame: FrameType | None) -> None:
        # Not if it comes at the same time: `timeout` tells a process and then its group.
        if wish.signum is not None and time.monotonic() - wish.since > PATIENCE:
            signal.signal(signum, signal.SIG_DFL if signum == signal.SIGTERM else signal.default_int_handler)
            signal.raise_signal(signum)
        if wish.signum is None:
            wish.signum, wish.since = signum, time.monotonic()

    for signum in before:
        signal.signal(signum, note)
    try:
        yield wish
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
