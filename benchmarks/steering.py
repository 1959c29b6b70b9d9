"""What each part of the steering to a sparsity brings, on validation data.

    python benchmarks/steering.py --data-dir DIR -o results/steering.json [--sparsity 0.99] [--seeds 3]

LeNet-300-100 on 50,000 images of MNIST's training set, 30 epochs under a cosine, as `halo experiment
target` has it; the accuracy is that on the other 10,000 (no test image is looked at). What was
measured is written after each training, and not measured again.
"""

import argparse
import json
import math
import statistics
from pathlib import Path

import torch

import torch_halo as th
from torch_halo import target
from torch_halo.data import batches, load
from torch_halo.files import write_whole
from torch_halo.models import MODELS
from torch_halo.training.evaluation import evaluate

LATER = {"REACH": 0.75, "FREEZE": 0.8}
VARIANTS = {
    "as it is": {},
    "zeros never rest": {"REST": 1.0},
    "frozen later": LATER,
    "frozen later, zeros never rest": {**LATER, "REST": 1.0},
}
OWN = {name: getattr(target, name) for name in ("REST", "REACH", "FREEZE")}
EPOCHS, BATCH, LR = 30, 100, 0.1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sparsity", type=float, default=0.99)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    data = load("mnist", root=options.data_dir, validation=0.1667)
    found = json.loads(options.out.read_text()) if options.out.exists() else []
    for seed in range(options.seeds):
        for name in VARIANTS:
            told = {"variant": name, "sparsity": options.sparsity, "seed": seed}
            if not any(told.items() <= row.items() for row in found):
                found.append({**told, "validation": accuracy(data, VARIANTS[name], options.sparsity, seed)})
                write_whole(options.out, json.dumps(found, indent=1) + "\n")
    for name in VARIANTS:
        own = [row["validation"] for row in found if (row["variant"], row["sparsity"]) == (name, options.sparsity)]
        print(f"{name:32}{statistics.fmean(own):.2f}  {own}")


def accuracy(data, changes, sparsity, seed):
    """Train once with these constants in place of the library's."""
    for name, value in {**OWN, **changes}.items():
        setattr(target, name, value)
    torch.manual_seed(seed)
    model = MODELS["lenet-300-100"](data.input_shape, data.classes)
    optimizer = torch.optim.SGD(model.parameters(), LR, momentum=0.9, weight_decay=5e-4)
    total = EPOCHS * -(-len(data.train.labels) // BATCH)
    th.Shrinkage(model, th.HALO(), optimizer, target_sparsity=sparsity, total_steps=total)
    step = 0
    for epoch in range(EPOCHS):
        for inputs, labels, _ in batches(data, data.train, BATCH, seed=seed, epoch=epoch):
            optimizer.param_groups[0]["lr"] = LR * 0.5 * (1 + math.cos(math.pi * step / total))
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            step += 1
    return round(evaluate(model, data, data.validation).accuracy, 2)


if __name__ == "__main__":
    main()
