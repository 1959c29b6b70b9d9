"""Files that appear whole or not at all, and folders that one process at a time works in."""

import hashlib
import json
import math
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """A file to write under a temporary name; it is flushed to the disk and renamed at the end.

    Until then, and if anything goes wrong, the file that was there before stays.
    """
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp's own mode is for its owner alone
        os.replace(name, path)
    finally:
        with suppress(FileNotFoundError):  # it was renamed
            os.unlink(name)
    _flush_folder(path.parent)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file that appears whole or not at all."""
    with whole_file(path) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def write_json(path: Path, data: Any) -> None:
    """Write data as JSON, whole or not at all, with null for what is no number: JSON has no NaN."""
    write_whole(path, json.dumps(_finite(data), ensure_ascii=False) + "\n")


def _finite(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _finite(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data


def remove_unfinished(folder: Path, names: Iterable[str]) -> None:
    """Remove what a killed process left of writing files of these names (or patterns) in a folder."""
    for name in names:
        for left in folder.glob(f".{name}.????????"):  # as mkstemp names them
            left.unlink()


def check_writable(path: Path) -> None:
    """Raise if a file cannot be written there: better before the work than after it."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; a file is needed")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise OSError(f"cannot write {path}: {path.parent} is not a writable directory") from error


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """Let one process at a time work in a folder (where the system has file locks).

    Another one waits, or is refused with BlockingIOError. The lock goes when its process does.
    """
    try:
        import fcntl
    except ImportError:
        yield
        return
    with (folder / ".lock").open("w") as file:  # closing it gives the lock back
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BlockingIOError(f"another process is at work in {folder}; wait for it, or stop it") from error
        yield


def digest(path: Path, kind: str = "sha256") -> str:
    """A file's checksum."""
    with path.open("rb") as file:
        found = hashlib.new(kind, usedforsecurity=False)
        while block := file.read(2**20):
            found.update(block)
    return found.hexdigest()


def _flush_folder(folder: Path) -> None:
    # So that the renaming itself survives a power cut; not every system can open a folder.
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
