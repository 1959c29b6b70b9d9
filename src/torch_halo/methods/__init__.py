"""Ways to a sparse network (so far: the rules that they are made of)."""

from torch_halo.methods.densities import DENSITIES, kept_counts
from torch_halo.methods.gradual import cosine_fraction, cubic, drop_and_grow
from torch_halo.methods.scores import class_batch, grasp, keep_largest, snip
from torch_halo.methods.thresholds import masked_by_threshold, soft_threshold_by

__all__ = [
    "DENSITIES",
    "class_batch",
    "cosine_fraction",
    "cubic",
    "drop_and_grow",
    "grasp",
    "keep_largest",
    "kept_counts",
    "masked_by_threshold",
    "snip",
    "soft_threshold_by",
]
