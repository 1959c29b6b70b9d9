"""Wrong labels found by cleanlab's confident learning, to stand beside `halo experiment label-noise`.

    pip install -c constraints.txt '.[cleanlab]'
    python benchmarks/suspects.py --data-dir DIR -o results/cleanlab.json [--epochs 30] [--seeds 3] [--folds 5]
        [--weight-decay 1e-4]

The same data, flips, network and optimizer as that experiment's dense network, unless another weight
decay is named. As cleanlab's authors advise, probabilities are those of networks that did not see the
sample: the training set is cut into folds, and each is judged by a network trained on the others. What
was measured is written after each seed, and not measured again.
"""

import argparse
import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from cleanlab.filter import find_label_issues
from cleanlab.rank import get_label_quality_scores

from torch_halo.analysis.ranks import auroc, precision_at
from torch_halo.data import Split
from torch_halo.experiments.spec import Spec
from torch_halo.files import write_whole
from torch_halo.methods import METHODS, method_of
from torch_halo.training.fabric import launch
from torch_halo.training.loop import Unwatched, train
from torch_halo.training.session import initial_network, load_data, start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--noise", type=float, default=0.4)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--weight-decay", type=float)
    options = parser.parse_args()
    found = json.loads(options.out.read_text()) if options.out.exists() else []
    spec = Spec("label-noise", label_noise=(options.noise,), epochs=options.epochs)
    for subject, seed in product(spec.subjects(), range(options.seeds)):
        config = decayed(METHODS["dense"]().config(spec.setup(subject, seed=seed), 0.95), options.weight_decay)
        told = {
            "data": subject.name,
            "seed": seed,
            "epochs": options.epochs,
            "folds": options.folds,
            "weight_decay": config.optimizer.weight_decay,
        }
        if not any(each.items() >= told.items() for each in found):
            found.append(told | judged(config, options))
            write_whole(options.out, json.dumps(found, indent=1) + "\n")
            print(found[-1], flush=True)


def decayed(config, weight_decay):
    """With another weight decay, if one is named."""
    return (
        config
        if weight_decay is None
        else replace(config, optimizer=replace(config.optimizer, weight_decay=weight_decay))
    )


def judged(config, options):
    """How well cleanlab finds the flips, with networks of one seed."""
    data = load_data(config.data, options.data_dir)
    labels, flipped = data.train.labels.numpy(), data.flipped.numpy()
    probabilities = out_of_sample(config, data, options.folds)
    quality = get_label_quality_scores(labels, probabilities, method="self_confidence")
    chosen = find_label_issues(labels, probabilities)
    return {
        "auroc": auroc(-quality, flipped),
        "precision": precision_at(-quality, flipped, int(flipped.sum())),
        "chosen": int(chosen.sum()),  # by confident learning, which sets its own number
        "chosen_precision": float(flipped[chosen].mean()),
        "chosen_recall": float(chosen[flipped].mean()),
    }


def out_of_sample(config, data, folds):
    """The class probabilities of each training sample under a network that has not seen it."""
    generator = torch.Generator().manual_seed(config.training.seed)
    place = torch.randperm(len(data.train.labels), generator=generator) % folds
    found = np.zeros((len(place), data.classes))
    for fold in range(folds):
        rest, own = place != fold, place == fold
        part = replace(data, train=Split(*(x[rest] for x in data.train)), flipped=data.flipped[rest])
        begin = method_of(config).begin
        session = start(
            config,
            launch(config.compute),
            part,
            initial_network(config, part),
            lambda network, data, begin=begin: begin(network, data, config=config, before=None),
        )
        train(session, Unwatched())
        session.module.eval()
        with torch.no_grad():
            scores = session.module(data.normalise(data.train.inputs[own]))
        found[own.numpy()] = scores.softmax(1).double().numpy()
    return found / found.sum(1, keepdims=True)


if __name__ == "__main__":
    main()
