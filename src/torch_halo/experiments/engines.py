"""What runs jobs: processes on this machine, or a Ray cluster."""

import logging
import os
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from torch_halo.checks import extra, whole
from torch_halo.experiments.plan import Job
from torch_halo.experiments.store import Store
from torch_halo.experiments.work import do_encoded, encoded

PATIENCE = 120.0  # seconds that a job has to save itself


class Engine(Protocol):
    """Where jobs run."""

    width: int  # jobs that run beside each other

    def has_room(self) -> bool:
        """Whether another job can be started now."""

    def start(self, job: Job) -> None:
        """Start a job."""

    def ended(self, timeout: float) -> dict[str, str | None]:
        """The jobs that have ended, with what went wrong; waits for one, but not longer than `timeout` seconds."""

    def stop(self) -> None:
        """End all jobs, each saved."""


class Local:
    """Processes on this machine, each on one thread: together faster than one on all."""

    def __init__(self, jobs: int, store: Store, data_dir: Path | None) -> None:
        self.width = whole("jobs", jobs, at_least=1)
        self._store, self._data_dir = store, data_dir
        self._running: dict[str, tuple[Job, subprocess.Popen[str]]] = {}

    def has_room(self) -> bool:
        return len(self._running) < self.width

    def start(self, job: Job) -> None:
        log = self._store.log(job.config)
        log.parent.mkdir(parents=True, exist_ok=True)
        # A session of its own: Ctrl-C reaches this process alone, which then tells the others.
        with log.open("a") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "torch_halo.experiments.work"],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                start_new_session=True,
            )
        assert process.stdin is not None
        with suppress(BrokenPipeError):  # it has ended; its log says why
            process.stdin.write(encoded(job, self._store.path, self._data_dir, os.getpid()))
            process.stdin.close()
        self._running[job.name] = job, process

    def ended(self, timeout: float) -> dict[str, str | None]:
        until = time.monotonic() + timeout
        while not (found := self._ended()) and time.monotonic() < until:
            time.sleep(0.05)
        return found

    def _ended(self) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for name, (job, process) in list(self._running.items()):
            if process.poll() is not None:
                del self._running[name]
                found[name] = None if process.returncode == 0 else self._reason(job, process.returncode)
        return found

    def _reason(self, job: Job, code: int) -> str:
        lines = self._store.log(job.config).read_text().strip().splitlines()
        how = f"killed by signal {-code}" if code < 0 else f"ended with code {code}"
        return lines[-1] if lines and code > 0 else how

    def stop(self) -> None:
        for _, process in self._running.values():
            process.terminate()
        until = time.monotonic() + PATIENCE
        for _, process in self._running.values():
            try:
                process.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._running.clear()


class OnRay:
    """Tasks of a Ray cluster, one CPU each; its machines must share the folder of runs and the data."""

    def __init__(self, address: str | None, jobs: int | None, store: Store, data_dir: Path | None) -> None:
        with extra("ray", "--engine ray"):
            import ray
        self._ray: Any = ray
        self._store, self._data_dir = store, data_dir
        self._running: dict[str, Any] = {}
        _check_address(address)
        # Without an address, a cluster of this machine's own, for as long as this process lives.
        environment = {"env_vars": {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}}
        try:
            ray.init(
                address=address,
                runtime_env=environment,
                log_to_driver=False,
                logging_level=logging.ERROR,
                include_dashboard=False if address is None else None,
            )
        except (ConnectionError, ValueError) as error:
            raise ConnectionError(f"no Ray cluster at {address}: {str(error).splitlines()[0]}") from error
        found = self._ray.cluster_resources()
        kind = "GPU" if found.get("GPU", 0) >= 1 else "CPU"
        room = max(int(found.get(kind, 1)), 1)
        self.width = room if jobs is None else min(whole("jobs", jobs, at_least=1), room)
        # A process for each: the memory that it tells of is then its own.
        self._do = ray.remote(num_cpus=1, num_gpus=int(kind == "GPU"), max_calls=1, max_retries=0)(do_encoded)

    def has_room(self) -> bool:
        return len(self._running) < self.width

    def start(self, job: Job) -> None:
        self._running[job.name] = self._do.remote(encoded(job, self._store.path, self._data_dir))

    def ended(self, timeout: float) -> dict[str, str | None]:
        names = {ref: name for name, ref in self._running.items()}
        if not names:
            time.sleep(timeout)
            return {}
        ready, _ = self._ray.wait(list(names), num_returns=1, timeout=timeout)
        found: dict[str, str | None] = {}
        for ref in ready:
            del self._running[names[ref]]
            try:
                found[names[ref]] = self._ray.get(ref)
            except self._ray.exceptions.RayError as error:
                found[names[ref]] = str(error).strip().splitlines()[-1]
        return found

    def stop(self) -> None:
        for ref in self._running.values():
            self._ray.cancel(ref)  # an interrupt, upon which the run saves itself
        if self._running:
            self._ray.wait(list(self._running.values()), num_returns=len(self._running), timeout=PATIENCE)
        self._running.clear()
        self._ray.shutdown()


def _check_address(address: str | None) -> None:
    """Knock at the door first: Ray itself takes minutes to find that nobody is there."""
    host, _, port = (address or "").removeprefix("ray://").rpartition(":")
    if not port.isdecimal():  # none, or "auto"
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ConnectionError(f"no Ray cluster at {address}: {error}") from error
