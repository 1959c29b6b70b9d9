"""What the analyses of large things cost: memory of spectra by the number of images, seconds of an overlap.

    python benchmarks/analyses.py -o results/analyses.json [--images 1000 50000]

Spectra are of VGG-16 of a quarter of the width, over all pixels of random images, which are made batch by
batch; memory is the most that the process has ever held, so that the rising numbers of images come in one
process. The overlap is of two VGG-16 of full width, cut to 95 %. Medians of five, after one that warms up.
"""

import argparse
import json
import resource
import statistics
import time
from pathlib import Path

import torch

from torch_halo import prune_
from torch_halo.analysis import overlap, spectrum
from torch_halo.files import write_whole
from torch_halo.models import MODELS

SHAPE, BATCH, ROUNDS = (3, 32, 32), 100, 5


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--images", type=int, nargs="+", default=[1000, 50_000])
    options = parser.parse_args()
    if any(count % BATCH for count in options.images):
        parser.error(f"--images are multiples of {BATCH}")
    found = {"threads": torch.get_num_threads(), "spectrum": spectra(sorted(options.images)), "overlap": overlaps()}
    write_whole(options.out, json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def spectra(counts):
    """Seconds and peak memory by the number of images."""
    torch.manual_seed(0)
    network, found = MODELS["vgg16"](SHAPE, 10, width=0.25), []
    for count in counts:
        began = time.perf_counter()
        layers = spectrum(network, (torch.randn(BATCH, *SHAPE) for _ in range(count // BATCH)))
        seconds, memory = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        assert layers[0].samples == count * 32 * 32
        found.append({"images": count, "seconds": round(seconds, 1), "megabytes": round(memory / 1024)})
        print(found[-1], flush=True)
    return found


def overlaps():
    """Seconds of comparing two networks' zeros."""
    first, second = MODELS["vgg16"](SHAPE, 10), MODELS["vgg16"](SHAPE, 10)
    weights = sum(
        len(mask.flatten()) for network in (first, second) for mask in prune_(network, sparsity=0.95).values()
    )
    times = []
    for _ in range(ROUNDS + 1):
        began = time.perf_counter()
        assert overlap(first, second).weights == weights // 2
        times.append(time.perf_counter() - began)
    return {"weights": weights // 2, "seconds": round(statistics.median(times[1:]), 3)}


if __name__ == "__main__":
    main()
