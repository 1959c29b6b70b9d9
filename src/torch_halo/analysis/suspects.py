"""Training samples whose label may be wrong: those that a network which shrinks does not learn by heart."""

import csv
import io
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_halo.analysis.modes import looked_at
from torch_halo.analysis.ranks import Array, auroc, precision_at
from torch_halo.data import DataSet

BATCH = 1000
COLUMNS = ("index", "given label", "likely label", "score")


@dataclass(frozen=True)
class Suspects:
    """All training samples, the most suspicious first: place in the training set, labels, and a score.

    A likely label of −1 is one that nobody has asked for: there was a history, and no network.
    """

    index: Array
    given: Array
    likely: Array
    score: Array

    def found(self, flipped: Tensor | Array) -> dict[str, float]:
        """How well flips that are known were found: AUROC, and precision at the number of flips."""
        is_flipped = np.asarray(flipped.cpu() if isinstance(flipped, Tensor) else flipped, dtype=bool)[self.index]
        count = int(is_flipped.sum())
        if not count:
            raise ValueError("no flips are known: the samples can be ranked, but not the ranking be judged")
        return {"auroc": auroc(self.score, is_flipped), "precision": precision_at(self.score, is_flipped, count)}

    def csv(self, count: int | None = None) -> str:
        """The first `count` of them, all if it is None, as a table with a header."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in list(zip(self.index, self.given, self.likely, self.score, strict=True))[:count]:
            writer.writerow([*map(int, row[:3]), f"{row[3]:.6g}"])
        return text.getvalue()


def suspects(
    model_or_history: nn.Module | Array | Tensor,
    data: DataSet | tuple[Tensor, Tensor],
    *,
    model: nn.Module | None = None,
) -> Suspects:
    """Training samples by how likely their label is wrong.

    The score is the loss of each sample: of a network that has been trained with HALO; or, better,
    the mean over a history, which is an array (epochs, samples) of losses while it was trained
    (`halo train --sample-losses`), for which `model` tells the likely labels. `data` is a data set
    or a pair of inputs, as the network takes them, and labels.
    """
    inputs, labels = _training_set(data)
    given = labels.cpu().numpy()
    network = model_or_history if isinstance(model_or_history, nn.Module) else model
    losses, likely = (None, np.full(len(given), -1)) if network is None else _asked(network, data, inputs, labels)
    if losses is None or not isinstance(model_or_history, nn.Module):
        history = model_or_history.detach().cpu() if isinstance(model_or_history, Tensor) else model_or_history
        score = _mean_loss(np.asarray(history, dtype=np.float64), len(given))
    else:
        score = losses
    order = np.argsort(-score, kind="stable")
    return Suspects(order, given[order], likely[order], score[order])


def _training_set(data: DataSet | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    inputs, labels = data.train if isinstance(data, DataSet) else data
    if len(inputs) != len(labels):
        raise ValueError(f"as many inputs as labels are needed; received {len(inputs)} and {len(labels)}")
    if not len(labels):
        raise ValueError("there are no samples to rank")
    return inputs, labels


def _asked(
    network: nn.Module, data: DataSet | tuple[Tensor, Tensor], inputs: Tensor, labels: Tensor
) -> tuple[Array, Array]:
    """Each sample's loss under a network, and the label that this would give it."""
    like = next(network.parameters(), torch.zeros(()))
    found = []
    with looked_at(network):
        for start in range(0, len(labels), BATCH):
            x, y = (part[start : start + BATCH].to(like.device) for part in (inputs, labels))
            scores = network(data.normalise(x).to(like.dtype) if isinstance(data, DataSet) else x).float()
            found.append((F.cross_entropy(scores, y, reduction="none"), scores.argmax(1)))
    losses, likely = (torch.cat(part).cpu().numpy() for part in zip(*found, strict=True))
    if np.isnan(losses).any():
        raise ValueError(f"the network's losses are NaN for {int(np.isnan(losses).sum())} samples")
    return losses, likely


def _mean_loss(history: Array, samples: int) -> Array:
    """Over the epochs in which a sample was seen."""
    if history.ndim != 2 or history.shape[1] != samples or not len(history):
        raise ValueError(f"a history has losses of shape (epochs, {samples}); received {history.shape}")
    seen = ~np.isnan(history)
    if not seen.any(0).all():
        raise ValueError(f"{int((~seen.any(0)).sum())} samples have no loss in any epoch")
    found: Array = np.where(seen, history, 0).sum(0, dtype=np.float64) / seen.sum(0)
    return found
