"""What the training loop costs: ratios, interleaved in one run, medians.

    python benchmarks/loop.py [--rounds 21] [--threads 2]

1. Our loop against a minimal one written by hand, on the same tensors: LeNet-300-100, batch 100.
2. Our input pipeline (gather, shift, mirror, normalise, a batch at a time) against torch's
   DataLoader with transforms image by image, on data of CIFAR's size, and the epoch around each:
   vgg16 of width 1/4, batch 64.
3. bfloat16 autocast against float32, the same network.
"""

import argparse
import statistics
import time
from itertools import islice

import torch
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from torch_halo.data import DataSet, Split, batches
from torch_halo.models import lenet_300_100
from torch_halo.training.config import Config
from torch_halo.training.fabric import launch
from torch_halo.training.loop import Unwatched, train_steps
from torch_halo.training.optimizers import SGD
from torch_halo.training.session import initial_network, start
from torch_halo.training.settings import Compute, Model, Training


def made(name, count, shape, mean, std, is_augmented):
    """Random images of a data set's size: what they show does not matter here."""
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randint(0, 256, (count, *shape), dtype=torch.uint8, generator=generator)
    split = Split(inputs, torch.randint(0, 10, (count,), generator=generator))
    empty = Split(inputs[:0], split.labels[:0])
    return DataSet(name, split, empty, empty, 10, mean, std, is_augmented, torch.zeros(count, dtype=torch.bool))


MNIST = ("mnist", (1, 28, 28), (33.3,), (78.6,), False)
CIFAR = ("cifar10", (3, 32, 32), (125.3, 123.0, 113.9), (63.0, 62.1, 66.7), True)


def ours(data, model, batch, compute=None, lr=0.01):
    config = Config(
        model=model, optimizer=SGD(lr=lr), training=Training(batch_size=batch), compute=compute or Compute()
    )
    session = start(config, launch(config.compute), data, initial_network(config, data), None)

    def steps(count):
        session.progress.position = 0
        train_steps(session, Unwatched(), islice(session.batches(), count))

    return steps


def by_hand(data, batch):
    torch.manual_seed(0)
    model = lenet_300_100((1, 28, 28), 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    inputs, labels = data.train

    def steps(count):
        order = torch.randperm(len(labels))
        for index in order.split(batch)[:count]:
            x, y = (inputs[index].float() - 33.3) / 78.6, labels[index]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()

    return steps


class Transformed(Dataset):
    """Each image for itself, as torchvision's transforms do it: pad, crop, flip, to float, normalise."""

    def __init__(self, data):
        self.inputs, self.labels = data.train
        self.mean, self.std = (torch.tensor(x).view(-1, 1, 1) for x in (data.mean, data.std))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, i):
        image = F.pad(self.inputs[i], (4, 4, 4, 4))
        top, left = torch.randint(0, 9, (2,)).tolist()
        image = image[:, top : top + 32, left : left + 32]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        return image.float().sub_(self.mean).div_(self.std), self.labels[i]


def loaded(data, batch):
    loader = DataLoader(Transformed(data), batch, shuffle=True)
    return lambda count: [None for _ in islice(loader, count)]


def piped(data, batch):
    def steps(count):
        for _ in islice(batches(data, data.train, batch, seed=0, epoch=0), count):
            pass

    return steps


def loader_epoch(data, batch, model):
    """Our loop fed by the DataLoader."""
    config = Config(model=model, optimizer=SGD(lr=0.01), training=Training(batch_size=batch))
    session = start(config, launch(config.compute), data, initial_network(config, data), None)
    loader = DataLoader(Transformed(data), batch, shuffle=True)

    def steps(count):
        session.progress.position = 0
        train_steps(session, Unwatched(), ((x, y, None) for x, y in islice(loader, count)))

    return steps


def compare(title, ways, count, rounds):
    times = {name: [] for name in ways}
    for steps in ways.values():
        steps(2)
    for _ in range(rounds):
        for name, steps in ways.items():
            began = time.perf_counter()
            steps(count)
            times[name].append((time.perf_counter() - began) / count)
    print(title)
    first = next(iter(ways))
    for name, found in times.items():
        ratio = statistics.median(a / b for a, b in zip(found, times[first], strict=True))
        print(f"  {name:36} {1e3 * statistics.median(found):8.2f} ms a batch   {ratio:6.3f}×")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"{options.threads} threads, torch {torch.__version__}, medians of {options.rounds} rounds")
    mnist = made(MNIST[0], 60_000, *MNIST[1:])
    compare(
        "LeNet-300-100, batch 100",
        {"by hand": by_hand(mnist, 100), "torch-halo": ours(mnist, Model("lenet-300-100"), 100)},
        100,
        options.rounds,
    )
    cifar, vgg = made(CIFAR[0], 50_000, *CIFAR[1:]), Model("vgg16", {"width": 0.25})
    few = max(options.rounds // 3, 1)
    ways = {"DataLoader, image by image": loaded(cifar, 64), "torch-halo": piped(cifar, 64)}
    compare("the input pipeline, an epoch of CIFAR's size, batch 64", ways, 50_000 // 64, few)
    ways = {"fed by the DataLoader": loader_epoch(cifar, 64, vgg), "torch-halo": ours(cifar, vgg, 64)}
    compare("training vgg16 of width 1/4, batch 64", ways, 5, 2 * options.rounds)
    mixed = Compute(precision="bf16-mixed")
    ways = {"float32": ours(cifar, vgg, 64), "--precision bf16-mixed": ours(cifar, vgg, 64, mixed)}
    compare("the same in bfloat16", ways, 3, few)


if __name__ == "__main__":
    main()
