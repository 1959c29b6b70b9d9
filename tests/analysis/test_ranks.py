import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import roc_auc_score

from torch_halo.analysis.ranks import auroc, precision_at, rank_correlation, ranks


@pytest.mark.parametrize("seed", range(3))
def test_they_are_those_of_others(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 20, 200).astype(float), rng.normal(size=200)
    positive = rng.random(200) < 0.3
    np.testing.assert_allclose(ranks(x), stats.rankdata(x))
    assert rank_correlation(x, y + 0.1 * x) == pytest.approx(stats.spearmanr(x, y + 0.1 * x).statistic)
    assert auroc(x, positive) == pytest.approx(roc_auc_score(positive, x))


def test_what_cannot_be_said():
    assert np.isnan(rank_correlation(np.ones(3), np.arange(3.0)))
    assert np.isnan(rank_correlation(np.array([1, np.nan, 2]), np.arange(3.0)))
    assert ranks(np.zeros(0)).shape == (0,)
    assert np.isnan(auroc(np.arange(3.0), np.ones(3, bool)))
    assert np.isnan(precision_at(np.arange(3.0), np.ones(3, bool), 0))


def test_precision_counts_the_highest():
    assert precision_at(np.array([0.1, 0.9, 0.5, 0.8]), np.array([True, True, False, False]), 2) == 0.5
