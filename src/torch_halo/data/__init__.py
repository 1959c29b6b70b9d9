"""Data sets as tensors in memory."""

from collections.abc import Callable

from torch_halo.checks import Table
from torch_halo.data.digits import digits
from torch_halo.data.sets import DataSet, Split

DATASETS: Table[Callable[..., DataSet]] = Table("data set", {"digits": digits})

__all__ = ["DATASETS", "DataSet", "Split", "digits"]
