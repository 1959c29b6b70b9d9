"""When weights became small: the share under the final threshold, epoch by epoch."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from torch_halo.analysis.ranks import Array
from torch_halo.figures import MAGNITUDES


def history(epochs: Sequence[Mapping[str, Any]], threshold: float) -> Array:
    """The share of the weights under a magnitude after each epoch, of a run's metrics.

    Between the magnitudes at which they were counted it is interpolated.
    """
    if not epochs:
        raise ValueError("there are no metrics: not one epoch is done")
    if any(len(row.get("magnitudes") or ()) != len(MAGNITUDES) for row in epochs):
        raise ValueError("the metrics' magnitudes are missing: the run was trained by an older version; train it again")
    place = np.log(max(threshold, MAGNITUDES[0]))
    return np.array([np.interp(place, np.log(MAGNITUDES), row["magnitudes"]) for row in epochs])
