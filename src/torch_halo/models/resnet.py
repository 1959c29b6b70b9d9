"""The residual network of the CIFAR experiments."""

import math
from collections.abc import Sequence
from typing import Annotated, cast

from torch import Tensor, nn
from torch.nn import functional as F

DEPTHS = (20, 32, 50, 56)


def resnet(
    input_shape: Sequence[int], classes: int, *, depth: Annotated[int, "layers: 20, 32, 50 or 56"] = 50
) -> nn.Module:
    """The CIFAR ResNet with 6n+2 layers: basic blocks, 16/32/64 channels, 1×1 convolutions where shapes change.

    He et al., "Deep residual learning for image recognition", 2016. The paper's "ResNet-50" is this
    one (n = 8), not ImageNet's: 758,554 parameters for 10 classes.
    """
    if depth not in DEPTHS:
        raise ValueError(f"resnet: depth must be one of {', '.join(map(str, DEPTHS))}; received {depth!r}")
    return ResNet(input_shape[0], classes, (depth - 2) // 6)


class ResNet(nn.Module):
    """`conv1`, `bn1`, `layer1` to `layer3` of n blocks each, `fc`."""

    def __init__(self, channels: int, classes: int, blocks: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = _stage(16, 16, blocks, stride=1)
        self.layer2 = _stage(16, 32, blocks, stride=2)
        self.layer3 = _stage(32, 64, blocks, stride=2)
        self.fc = nn.Linear(64, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_out = module.out_channels * math.prod(module.kernel_size)
                nn.init.normal_(module.weight, 0.0, math.sqrt(2 / fan_out))

    def forward(self, x: Tensor) -> Tensor:
        """Images to class scores."""
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return cast(Tensor, self.fc(x.mean((2, 3))))


class Block(nn.Module):
    """Two 3×3 convolutions with batch norm, and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The block's output, of `outputs` channels."""
        out = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(out + (x if self.downsample is None else self.downsample(x)))


def _stage(inputs: int, outputs: int, blocks: int, stride: int) -> nn.Sequential:
    rest = [Block(outputs, outputs, 1) for _ in range(blocks - 1)]
    return nn.Sequential(Block(inputs, outputs, stride), *rest)
