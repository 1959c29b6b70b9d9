"""What the penalty costs: step times relative to plain SGD, interleaved in one run.

    python benchmarks/overhead.py [--rounds 11] [--threads 2]

For VGG-16 (batch 64) and LeNet-300-100 (batch 100): HALO through autograd as a user would write it,
and HALO by torch-halo. Medians; the machine's noise hits all rows alike because they take turns.
"""

import argparse
import statistics
import time

import torch
from torch.nn import functional as F

import torch_halo as th
from torch_halo.models import lenet_300_100, vgg16

XI = 1e-6
CASES = {
    "vgg16, batch 64": (vgg16, (3, 32, 32), 64, 1),
    "lenet-300-100, batch 100": (lenet_300_100, (1, 28, 28), 100, 50),
}


def plain(model, optimizer, x, y):
    optimizer.zero_grad()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


class Plain:
    def __init__(self, make, shape):
        self.model = make(shape, 10)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)

    def step(self, x, y):
        plain(self.model, self.optimizer, x, y)


class L1(Plain):
    def __init__(self, make, shape):
        super().__init__(make, shape)
        th.Shrinkage(self.model, th.L1(XI), self.optimizer)


class Ours(Plain):
    def __init__(self, make, shape):
        super().__init__(make, shape)
        th.Shrinkage(self.model, th.HALO(XI), self.optimizer)


class Autograd(Plain):
    """λ as parameters with an optimizer of their own, the penalty as a part of the loss."""

    def __init__(self, make, shape):
        super().__init__(make, shape)
        self.weights = [p for p in self.model.parameters() if p.ndim > 1]
        self.lam = [torch.ones_like(p, requires_grad=True) for p in self.weights]
        self.second = torch.optim.SGD(self.lam, lr=0.01, momentum=0.9, weight_decay=5e-4)

    def step(self, x, y):
        self.optimizer.zero_grad()
        self.second.zero_grad()
        penalty = sum((w.abs() / lam**2).sum() + lam.abs().sum() for w, lam in zip(self.weights, self.lam, strict=True))
        (F.cross_entropy(self.model(x), y) + XI * penalty).backward()
        self.optimizer.step()
        self.second.step()


ROWS = {"plain SGD": Plain, "L1, torch-halo": L1, "HALO, torch-halo": Ours, "HALO, autograd": Autograd}


def measure(make, shape, batch, steps, rounds):
    torch.manual_seed(0)
    x, y = torch.randn(batch, *shape), torch.randint(0, 10, (batch,))
    runs = {name: row(make, shape) for name, row in ROWS.items()}
    times = {name: [] for name in ROWS}
    for i in range(rounds + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            for _ in range(steps):
                run.step(x, y)
            if i:  # the first round warms up
                times[name].append((time.perf_counter() - start) / steps)
    return times


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=11, help="turns that each row takes")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="torch's threads")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.threads} threads, {options.rounds} rounds")
    for name, (make, shape, batch, steps) in CASES.items():
        times = measure(make, shape, batch, steps, options.rounds)
        base = times["plain SGD"]
        print(f"\n{name}")
        for row, found in times.items():
            ratio = statistics.median(found) / statistics.median(base)
            print(f"  {row:18} {1000 * statistics.median(found):9.2f} ms  {ratio:5.2f}x")


if __name__ == "__main__":
    main()
