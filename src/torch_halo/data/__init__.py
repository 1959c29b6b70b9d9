"""Data sets as tensors of bytes in memory, batched and augmented on the device."""

from torch_halo.data.batches import batches
from torch_halo.data.download import Progress
from torch_halo.data.sets import DataSet, Split
from torch_halo.data.sources import DATASETS, data_root, find, get, load

__all__ = ["DATASETS", "DataSet", "Progress", "Split", "batches", "data_root", "find", "get", "load"]
