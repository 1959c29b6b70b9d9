"""Files that appear whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file under a temporary name, flush it to the disk, and rename it."""
    data = content.encode() if isinstance(content, str) else content
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())  # mkstemp's own mode is for its owner alone
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def check_writable(path: Path) -> None:
    """Raise if a file cannot be written there: better before the work than after it."""
    if path.is_dir():
        raise IsADirectoryError(f"{path} is a directory; a file is needed")
    if not os.access(path.parent, os.W_OK):
        raise OSError(f"cannot write {path}: {path.parent} is not a writable directory")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
