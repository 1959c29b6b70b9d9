import os
import stat

import pytest

from torch_halo import cli
from torch_halo.files import check_writable, write_whole


def test_data_list_says_what_is_here(tmp_path, capsys):
    assert cli.main(["data", "list", "--data-dir", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["digits", "mnist", "fashion-mnist", "cifar10", "cifar100"]
    assert lines[0].endswith("with scikit-learn")
    assert lines[1].endswith("60,000 + 10,000 images   not here; halo data fetch gets it")


def test_data_fetch(tmp_path, capsys):
    assert cli.main(["data", "fetch", "digits", "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith("digits: ")
    assert cli.main(["data", "fetch", "minst", "--data-dir", str(tmp_path)]) == 1
    assert "halo: unknown data set 'minst'; known: digits, mnist" in capsys.readouterr().err


def test_files_appear_whole(tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_whole(path, "first")
    assert stat.S_IMODE(path.stat().st_mode) & 0o600 == 0o600

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"second")
    assert path.read_text() == "first"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    with pytest.raises(OSError, match="is a directory; a file is needed"):
        check_writable(tmp_path)
