"""Ctrl-C and SIGTERM as a wish, which the loop fulfils after its step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Stopped(Exception):
    """The training was asked to stop, and everything is saved."""

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.signum = signum


class Wish:
    """The signal that arrived, if any."""

    def __init__(self) -> None:
        self.signum: int | None = None


@contextmanager
def stop_signals() -> Iterator[Wish]:
    """Note SIGINT and SIGTERM instead of dying of them; a second one is obeyed at once."""
    wish = Wish()
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield wish
        return
    before = {signum: signal.getsignal(signum) for signum in (signal.SIGINT, signal.SIGTERM)}

    def note(signum: int, frame: FrameType | None) -> None:
        if wish.signum is not None:
            signal.signal(signum, signal.SIG_DFL if signum == signal.SIGTERM else signal.default_int_handler)
            signal.raise_signal(signum)
        wish.signum = signum

    for signum in before:
        signal.signal(signum, note)
    try:
        yield wish
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
