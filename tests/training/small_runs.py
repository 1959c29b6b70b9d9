"""Short runs on the digits, and what they leave."""

from dataclasses import replace

from kills import outcome

import torch_halo as th
from torch_halo.training.config import Config
from torch_halo.training.runs import Inputs, run
from torch_halo.training.settings import Data, Pruning, Shrinking, Training

__all__ = ["SMALL", "Silent", "changed", "outcome", "ran"]
SMALL = Config(
    data=Data("digits", validation=0.1, label_noise=0.1),
    penalty=th.HALO(1e-4),
    shrinking=Shrinking(coefficient_weight_decay=0.05),
    training=Training(epochs=3, batch_size=64, sample_losses=True),
    pruning=Pruning((0.9, 0.5)),
)


class Silent:
    """A display that shows nothing; `at` maps steps to what is done after them."""

    def __init__(self, at=None):
        self.at, self.begins, self.rows = at or {}, [], []

    def began(self, config, folder, epoch, position):
        self.begins.append((epoch, position))

    def stepped(self, session):
        self.session = session
        if session.step in self.at:
            self.at.pop(session.step)()

    def epoch_done(self, row, epochs):
        self.rows.append(row)


def ran(folder, config=SMALL, display=None, **options):
    display = display or Silent()
    files = {key: options.pop(key) for key in ("weights", "masks") if key in options}
    run(config, folder, display, Inputs(**files), **{"save_every": 60, **options})
    return display


def changed(**parts):
    return replace(SMALL, **parts)
