"""Files from their publishers: resumed, checked, and there whole or not at all."""

import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from torch_halo.files import digest

Progress = Callable[[str, int, int], None]  # a file's name, bytes so far, bytes in all (0: unknown)
BLOCK = 2**20


class Remote(NamedTuple):
    """A file at its publisher's address, with its md5 there."""

    url: str
    md5: str

    @property
    def name(self) -> str:
        """The file's own name."""
        return self.url.rsplit("/", 1)[1]


def fetch(remote: Remote, folder: Path, progress: Progress) -> Path:
    """Download a file into a folder, going on where an earlier attempt stopped."""
    folder.mkdir(parents=True, exist_ok=True)
    target, part = folder / remote.name, folder / f"{remote.name}.part"
    if target.exists() and digest(target, "md5") == remote.md5:
        return target
    _download(remote, part, progress)
    found = digest(part, "md5")
    if found != remote.md5:
        part.unlink()  # nothing to go on from
        raise ValueError(f"{remote.url}: expected md5 {remote.md5}; found {found}; the download was thrown away")
    os.replace(part, target)
    return target


def _download(remote: Remote, part: Path, progress: Progress) -> None:
    done = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(remote.url, headers={"Range": f"bytes={done}-"} if done else {})
    try:
        answer = urllib.request.urlopen(request, timeout=30)
    except urllib.error.HTTPError as error:
        if error.code == 416:  # nothing is left to send: all of it is here
            return
        raise
    with answer:
        resumed = answer.status == 206
        done = done if resumed else 0
        total = done + int(answer.headers.get("Content-Length") or 0)
        with part.open("ab" if resumed else "wb") as file:
            while block := answer.read(BLOCK):
                file.write(block)
                done += len(block)
                progress(remote.name, done, total)
    if done < total:
        raise ConnectionError(f"{remote.url}: the connection ended after {done} of {total} bytes; try again to go on")


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar file; its folders appear whole, and the archive goes."""
    with tempfile.TemporaryDirectory(dir=folder, prefix=".unpacking") as scratch:
        try:
            with tarfile.open(archive) as tar:
                tar.extractall(scratch, filter="data")  # no absolute paths, no links out
        except (EOFError, tarfile.TarError, zlib.error) as error:
            raise ValueError(f"{archive}: expected a whole tar file; found a damaged one ({error})") from error
        for made in Path(scratch).iterdir():
            target = folder / made.name
            if target.exists():
                shutil.rmtree(target)
            os.replace(made, target)
    archive.unlink()
