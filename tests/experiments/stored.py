"""Runs for tests: results made by hand, and an engine that works right here."""

import json

from torch_halo.experiments.work import do
from torch_halo.methods import method_of


class Here:
    """An engine without processes: a job is done when it is started."""

    width = 1

    def __init__(self, store, fails=()):
        self.store, self.fails = store, fails
        self.done, self._ended = [], {}

    def has_room(self):
        return not self._ended

    def start(self, job):
        self.done.append(job)
        if any(part in job.name for part in self.fails):
            self._ended[job.name] = "ValueError: it was made to fail"
        else:
            do(job, self.store.path, None)
            self._ended[job.name] = None

    def ended(self, timeout):
        found, self._ended = self._ended, {}
        return found

    def stop(self):
        pass


class Nothing:
    """Shows nothing, but remembers."""

    def __init__(self):
        self.states, self.ends = [], []

    def state(self, state):
        self.states.append(state)

    def ended(self, job, problem, state):
        self.ends.append((job.name, problem))


def finished(store, job, test, validation=None, own=None, recalibrated=None):
    """Write a run's result by hand: accuracies at the job's sparsities, by a function of the sparsity."""
    config, folder = job.config, store.path / job.config.name
    own = (config.method or {}).get("sparsity", 0.0) if own is None else own
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config.as_dict()))

    def figures(accuracy):
        return None if accuracy is None else {"loss": 0.1, "accuracy": accuracy}

    rows = [
        {"epoch": n + 1, "step": n + 1, "lr": 0.1, "train": figures(90.0 + n), "validation": None, "penalty": None}
        | {"test": figures(test(0.0)), "near_zero": 0.5, "sparsity": own, "coefficients": None, "seconds": 2.0}
        for n in range(config.training.epochs)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    levels = [
        {
            "asked": level,
            "weights": 1000,
            "zeros": round(1000 * max(level, own)),
            "sparsity": max(level, own),
            "layers": [],
            "validation": figures(validation(level) if validation else None),
            "test": figures(test(level)),
            "recalibrated": recalibrated and {"test": figures(recalibrated), "validation": figures(recalibrated)},
        }
        for level in job.levels
    ]
    result = {
        "name": config.name,
        "epochs": config.training.epochs,
        "seconds": 2.0 * config.training.epochs,
        "train": figures(99.0),
        "validation": figures(validation(0.0) if validation else None),
        "test": figures(test(0.0)),
        "sparsity": own,
        "memory": 10**8,
        "pruned": levels,
        "versions": {"torch-halo": "0.1.0", "torch": "2.13.0"},
    }
    (folder / "result.json").write_text(json.dumps(result))
    (folder / "model.safetensors").touch()
    assert method_of(config)
    return folder
