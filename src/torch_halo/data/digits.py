"""scikit-learn's digits: 1,797 images of 8×8 pixels, no download."""

import torch

from torch_halo.data.sets import DataSet, cut


def digits(*, seed: int = 0) -> DataSet:
    """The digits, standardised, cut 60/20/20 into train, validation and test."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise ImportError("the digits come with scikit-learn: pip install 'torch-halo[demo]'") from error
    found = load_digits()
    images = torch.from_numpy(found.images).float()
    return cut((images - 4.9) / 6.0, torch.from_numpy(found.target), 10, seed=seed, validation=0.2, test=0.2)
