"""When weights became small: the share under the final threshold, epoch by epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_halo.analysis.ranks import Array
from torch_halo.figures import MAGNITUDES


def history(epochs: Sequence[Mapping[str, Any]], sparsity: float) -> Array:
    """After each epoch, the share of the weights under the magnitude below which in the end `sparsity` of them are.

    Of a run's metrics; between the magnitudes at which weights were counted it is interpolated.
    """
    if not epochs:
        raise ValueError("there are no metrics: not one epoch is done")
    if any(len(row.get("magnitudes") or ()) != len(MAGNITUDES) for row in epochs):
        raise ValueError("the metrics' magnitudes are missing: the run was trained by an older version; train it again")
    places = np.log(MAGNITUDES)
    threshold = np.interp(sparsity, epochs[-1]["magnitudes"], places)
    return np.array([np.interp(threshold, places, row["magnitudes"]) for row in epochs])
