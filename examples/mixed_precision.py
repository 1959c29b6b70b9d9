"""Mixed precision with a loss scaler, gradient accumulation and clipping: the two lines stay the same.

    python examples/mixed_precision.py

On a GPU, replace "cpu" by "cuda" and bfloat16 by float16.
"""

import torch
from torch.nn import functional as F

import torch_halo as th
from torch_halo.data import load
from torch_halo.models import lenet_300_100

DEVICE, DTYPE, ACCUMULATE = "cpu", torch.bfloat16, 2


def main(epochs: int = 60) -> torch.nn.Module:
    torch.manual_seed(0)
    data = load("digits").normalised()
    model = lenet_300_100(data.input_shape, data.classes).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    scaler = torch.amp.GradScaler(DEVICE)

    penalty = th.HALO(xi=3e-4)
    th.Shrinkage(model, penalty, optimizer)

    for _ in range(epochs):
        for step, index in enumerate(torch.randperm(len(data.train.labels)).split(32), 1):
            inputs, labels = data.train.inputs[index].to(DEVICE), data.train.labels[index].to(DEVICE)
            with torch.autocast(DEVICE, DTYPE):
                loss = F.cross_entropy(model(inputs), labels) / ACCUMULATE
            scaler.scale(loss).backward()
            if step % ACCUMULATE == 0:
                scaler.unscale_(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                scaler.step(optimizer)  # the penalty acts here, once, neither scaled nor clipped
                scaler.update()
                optimizer.zero_grad()

    masks = th.prune_(model, sparsity=0.95)
    with torch.no_grad():
        right = model(data.test.inputs.to(DEVICE)).argmax(1).cpu() == data.test.labels
    print(f"{masks.sparsity:.0%} of the weights are zero; {100 * float(right.float().mean()):.1f} % on the test set")
    return model


if __name__ == "__main__":
    main()
