"""Pruning at initialisation: what each weight is worth before any training."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_halo.checks import number
from torch_halo.data import DataSet
from torch_halo.masks import Masks
from torch_halo.selection import Select, select_weights
from torch_halo.weights import Weight

TEMPERATURE = 200.0  # of GraSP's softmax, as its authors run it


def class_batch(data: DataSet, per_class: int = 10, *, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Normalised inputs and labels of `per_class` training samples of each class, at random by `seed`."""
    order = torch.randperm(len(data.train.labels), generator=torch.Generator().manual_seed(seed))
    labels = data.train.labels.cpu()[order]
    chosen = torch.cat([order[labels == label][:per_class] for label in range(data.classes)])
    chosen = chosen.to(data.train.labels.device)
    return data.normalise(data.train.inputs[chosen]), data.train.labels[chosen]


def snip(model: nn.Module, inputs: Tensor, labels: Tensor, *, select: Select = None) -> dict[str, Tensor]:
    """|θ ⊙ ∂L/∂θ|: how much the loss would change without a weight, to first order.

    Lee, Ajanthan, Torr, "SNIP: single-shot network pruning based on connection sensitivity", ICLR
    2019. A larger score is worth more.
    """
    weights = select_weights(model, select)
    gradients = _gradients(F.cross_entropy(model(inputs), labels), weights)
    return {w.name: (w.parameter.detach() * g).abs() for w, g in zip(weights, gradients, strict=True)}


def grasp(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, select: Select = None, temperature: float = TEMPERATURE
) -> dict[str, Tensor]:
    """θ ⊙ Hg, with the gradient g and the Hessian H of the loss at a softmax temperature.

    Wang, Zhang, Grosse, "Picking winning tickets before training by preserving gradient flow", ICLR
    2020: a weight whose loss would lower the gradient's norm is kept. Its authors' score is −θ ⊙ Hg,
    of which the largest are removed; here a larger score is worth more.
    """
    temperature = number("grasp: temperature", temperature, above=0)
    weights = select_weights(model, select)
    loss = F.cross_entropy(model(inputs) / temperature, labels)
    gradients = _gradients(loss, weights, graph=True)
    flow = torch.stack([(g.detach() * g).sum() for g in gradients]).sum()  # whose gradient is Hg
    products = _gradients(flow, weights)
    return {w.name: w.parameter.detach() * hg for w, hg in zip(weights, products, strict=True)}


def keep_largest(scores: Mapping[str, Tensor], sparsity: float) -> Masks:
    """Masks that cut exactly round(sparsity·N) of the N weights, those of the smallest scores, over all layers.

    Of equal scores the first are cut. A layer's best weight is kept, as long as that leaves enough.
    """
    sparsity = number("sparsity", sparsity, at_least=0, below=1)
    flat = torch.cat([score.flatten().double() for score in scores.values()])
    if not bool(flat.isfinite().all()):
        raise ValueError("the scores are not finite; lower the learning rate or look at the data")
    count = round(sparsity * len(flat))
    sizes = [score.numel() for score in scores.values()]
    if len(flat) - count >= sum(size > 0 for size in sizes):
        for part in flat.split(sizes):  # views: +inf is written into `flat`
            if len(part):
                part[part.argmax()] = torch.inf
    kept = torch.ones(len(flat), dtype=torch.bool, device=flat.device)
    kept[flat.argsort(stable=True)[:count]] = False
    parts = kept.split(sizes)
    return Masks({name: part.view(score.shape) for (name, score), part in zip(scores.items(), parts, strict=True)})


def _gradients(value: Tensor, weights: Sequence[Weight], *, graph: bool = False) -> list[Tensor]:
    """∂value/∂w for each weight, 0 where it has no part in it."""
    parameters = [weight.parameter for weight in weights]
    found = torch.autograd.grad(value, parameters, create_graph=graph, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for p, g in zip(parameters, found, strict=True)]
