"""Kill a run again and again, and see whether it ends as if nothing had happened.

    python benchmarks/kills.py [--kills 20] [--devices 2 --strategy ddp]

A run with HALO on scikit-learn's digits saves after every step and is killed (SIGKILL) at random
moments, also while it saves, and started again each time. At the end its weights, metrics (but for
the seconds) and samples' losses must be bitwise those of a run that nobody disturbed.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMAND = [sys.executable, "-m", "torch_halo", "train", "--penalty", "halo", "--xi", "1e-4", "--sparsity", "0.9"]
SETTINGS = ["--validation", "0.1", "--label-noise", "0.1", "--sample-losses", "--save-every", "0"]


def begin(folder, extra):
    command = [*COMMAND, *SETTINGS, *extra, "--out", str(folder)]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)


def kill(process):
    os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
    process.wait()


def outcome(folder):
    """All that must be the same."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    for row in [*rows, result]:
        del row["seconds"]
    del result["memory"]
    files = {path.name: path.read_bytes() for path in [*folder.glob("*.safetensors"), *folder.glob("losses/*")]}
    return rows, result, files


def undisturbed(folder, extra):
    process = begin(folder, extra)
    error = process.communicate()[1]
    assert process.returncode == 0, error.decode()
    return outcome(folder)


def version(folder):
    """What tells one checkpoint from the next."""
    path = folder / "checkpoint" / "last.pt"
    return path.stat().st_ino if path.exists() else 0


def disturbed(folder, extra, kills, seed):
    """Kill it at random moments soon after its first save; returns how many kills fell into a save."""
    moments, during = random.Random(seed), 0
    for number in range(kills):
        before, process = version(folder), begin(folder, extra)
        while version(folder) == before and process.poll() is None:
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.3))
        assert process.poll() is None, f"it ended before kill {number + 1}: {process.stderr.read().decode()}"
        kill(process)
        unfinished = list(folder.glob("checkpoint/.*"))
        during += bool(unfinished)
        print(f"kill {number + 1}: {'while saving' if unfinished else 'between saves'}", flush=True)
    return during


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options, extra = parser.parse_known_args()
    extra += ["--epochs", str(options.epochs)]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        expected = undisturbed(folder / "undisturbed", extra)
        during = disturbed(folder / "killed", extra, options.kills, options.seed)
        found = undisturbed(folder / "killed", extra)
        assert found == expected, "the runs differ"
        assert [path.name for path in (folder / "killed").rglob(".*")] == [".lock"], "a file was left behind"
    print(f"{options.kills} kills, {during} of them while saving: bitwise the same weights, metrics and losses")


if __name__ == "__main__":
    main()
