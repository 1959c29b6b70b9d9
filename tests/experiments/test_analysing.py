"""What a run's network is looked at as."""

from pathlib import Path

import torch
from torch import nn

from torch_halo.data import load
from torch_halo.experiments.analysing import Case
from torch_halo.training.config import Config
from torch_halo.training.settings import Data, Training
from torch_halo.training.subject import Subject


def test_a_cut_network_has_batch_norm_statistics_of_its_own():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Linear(8, 10))
    data = load("digits")
    config = Config(data=Data("digits"), training=Training(epochs=1, batch_size=len(data.train.labels)))
    case = Case(Path("run"), Subject(config, network, data), 0.9)
    cut = case.pruned
    assert int((cut[1].weight == 0).sum() + (cut[3].weight == 0).sum()) == round(0.9 * (64 * 8 + 8 * 10))
    with torch.no_grad():
        outputs = cut[1](cut[0](data.normalise(data.train.inputs)))
    torch.testing.assert_close(cut[2].running_mean, outputs.mean(0))
    torch.testing.assert_close(cut[2].running_var, outputs.var(0))
    assert not cut.training
    assert torch.equal(network[2].running_mean, torch.zeros(8))  # the run's own is left alone
