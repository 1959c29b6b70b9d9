"""Data sets as tensors in memory."""

from torch_halo.data.digits import digits
from torch_halo.data.sets import DataSet, Split

DATASETS = {"digits": digits}

__all__ = ["DATASETS", "DataSet", "Split", "digits"]
