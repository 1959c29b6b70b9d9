"""A small transformer (torch.nn only) that reads a digit row by row; all but its head is made sparse.

python examples/transformer.py
"""

import torch
from torch import nn
from torch.nn import functional as F

import torch_halo as th
from torch_halo.data import load


class Reader(nn.Module):
    """Eight rows of eight pixels are eight tokens."""

    def __init__(self, width: int = 64, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.place = nn.Parameter(torch.randn(8, width) * 0.02)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.embed(images[:, 0]) + self.place).mean(1))


def main(epochs: int = 60) -> nn.Module:
    torch.manual_seed(0)
    data = load("digits").normalised()
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    penalty = th.HALO(xi=3e-4)
    th.Shrinkage(model, penalty, optimizer, select="!head")  # all but the head

    for _ in range(epochs):
        for index in torch.randperm(len(data.train.labels)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(data.train.inputs[index]), data.train.labels[index]).backward()
            optimizer.step()

    def accuracy() -> float:
        with torch.no_grad():
            return 100 * float((model(data.test.inputs).argmax(1) == data.test.labels).float().mean())

    print(f"trained: {accuracy():.1f} % on the test set")
    th.prune_(model, sparsity=0.95, select="!head")
    print(f"pruned:  {accuracy():.1f} %")
    print(th.sparsity(model))
    return model


if __name__ == "__main__":
    main()
