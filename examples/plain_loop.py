"""A plain training loop, with the two lines that make its network sparse.

python examples/plain_loop.py
"""

import torch
from torch.nn import functional as F

import torch_halo as th
from torch_halo.data import load
from torch_halo.models import lenet_300_100


def accuracy(model: torch.nn.Module, split) -> float:
    with torch.no_grad():
        return 100 * float((model(split.inputs).argmax(1) == split.labels).float().mean())


def main(epochs: int = 100) -> torch.nn.Module:
    torch.manual_seed(0)
    data = load("digits").normalised()
    model = lenet_300_100(data.input_shape, data.classes)
    optimizer = torch.optim.AdamW(model.parameters())

    penalty = th.HALO(xi=2e-4)
    th.Shrinkage(model, penalty, optimizer)  # from now on optimizer.step() also shrinks

    for _ in range(epochs):
        for index in torch.randperm(len(data.train.labels)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(data.train.inputs[index]), data.train.labels[index]).backward()
            optimizer.step()

    print(f"trained: {accuracy(model, data.test):.1f} % on the test set")
    th.prune_(model, sparsity=0.95)
    print(f"pruned:  {accuracy(model, data.test):.1f} %")
    print(th.sparsity(model))
    return model


if __name__ == "__main__":
    main()
