import csv
import io

import numpy as np
import pytest
import torch
from torch import nn

import torch_halo as th
from torch_halo.data import load


class Knows(nn.Module):
    """Tells what the inputs say."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x):
        return self.scale * nn.functional.one_hot(x.long(), 4).float()


def noisy():
    truth = torch.arange(40) % 4
    flipped = torch.arange(40) % 5 == 0
    return truth, torch.where(flipped, (truth + 1) % 4, truth), flipped


def test_a_network_that_knows_finds_all():
    truth, given, flipped = noisy()
    found = th.suspects(Knows(), (truth, given))
    assert found.found(flipped) == {"auroc": 1.0, "precision": 1.0}
    assert set(found.index[:8]) == set(flipped.nonzero().flatten().tolist())
    np.testing.assert_array_equal(found.likely, truth[found.index])
    np.testing.assert_array_equal(found.given, given[found.index])
    rows = list(csv.DictReader(io.StringIO(found.csv(3))))
    assert len(rows) == 3
    assert rows[0].keys() == {"index", "given label", "likely label", "score"}
    assert int(rows[0]["index"]) == found.index[0]


def test_a_history_counts_over_all_epochs():
    _, given, flipped = noisy()
    losses = np.where(flipped, [[2.0], [1.5], [0.1]], [[1.0], [0.2], [0.2]])
    losses[0, 3] = np.nan  # not seen in the first epoch
    found = th.suspects(losses, (given, given))
    assert found.found(flipped)["auroc"] == 1.0
    assert (found.likely == -1).all()
    assert found.score[-1] == pytest.approx(0.2)
    assert found.index[-1] == 3
    assert (th.suspects(losses, (given, given), model=Knows()).likely == given[found.index].numpy()).all()


def test_a_data_set_is_normalised_for_the_network():
    data = load("digits", label_noise=0.2)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    found = th.suspects(model, data)
    with torch.no_grad():
        losses = nn.functional.cross_entropy(
            model(data.normalise(data.train.inputs)), data.train.labels, reduction="none"
        )
    np.testing.assert_allclose(found.score, losses.sort(descending=True).values, rtol=1e-5)
    assert 0.3 < found.found(data.flipped)["auroc"] < 0.7  # it has learned nothing


def test_what_cannot_be_ranked_or_judged():
    truth, given, _ = noisy()
    with pytest.raises(ValueError, match="no flips are known"):
        th.suspects(Knows(), (truth, given)).found(torch.zeros(40))
    with pytest.raises(ValueError, match=r"of shape \(epochs, 40\); received \(3, 39\)"):
        th.suspects(np.ones((3, 39)), (truth, given))
    with pytest.raises(ValueError, match="40 samples have no loss in any epoch"):
        th.suspects(np.full((3, 40), np.nan), (truth, given))
    with pytest.raises(ValueError, match="no samples to rank"):
        th.suspects(Knows(), (truth[:0], given[:0]))
    broken = Knows()
    broken.scale.data.fill_(torch.nan)
    with pytest.raises(ValueError, match="losses are NaN for 40 samples"):
        th.suspects(broken, (truth, given))
    with pytest.raises(ValueError, match="as many inputs as labels are needed; received 39 and 40"):
        th.suspects(Knows(), (truth[:-1], given))
