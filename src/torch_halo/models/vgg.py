"""The VGG-like network of the CIFAR experiments."""

import math
from collections.abc import Sequence
from typing import Annotated, cast

from torch import Tensor, nn

from torch_halo.checks import number

PLAN = (64, 64, "pool", 128, 128, "pool", 256, 256, 256, "pool", 512, 512, 512, "pool", 512, 512, 512)


def vgg16(
    input_shape: Sequence[int], classes: int, *, width: Annotated[float, "multiplies the channels"] = 1.0
) -> nn.Module:
    """VGG-16 with batch norm for 32×32 images: 13 convolutions (with biases), 2×2 average pool, one linear layer.

    As in Liu et al., "Rethinking the value of network pruning", 2019, which the paper follows:
    14,728,266 parameters for 10 classes. `width` multiplies the channels.
    """
    width = number("vgg16: width", width, above=0)
    if tuple(input_shape[1:]) != (32, 32):
        raise ValueError(f"vgg16 needs images of 32×32 pixels; received {tuple(input_shape)}")
    return VGG(input_shape[0], classes, [n if isinstance(n, str) else max(1, round(n * width)) for n in PLAN])


class VGG(nn.Module):
    """`features`, then `classifier`."""

    def __init__(self, channels: int, classes: int, plan: Sequence[int | str]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for item in plan:
            if isinstance(item, str):
                layers.append(nn.MaxPool2d(2))
                continue
            layers += [nn.Conv2d(channels, item, 3, padding=1), nn.BatchNorm2d(item), nn.ReLU(inplace=True)]
            channels = item
        self.features = nn.Sequential(*layers, nn.AvgPool2d(2))
        self.classifier = nn.Linear(channels, classes)
        self._initialise()

    def forward(self, x: Tensor) -> Tensor:
        """Images to class scores."""
        return cast(Tensor, self.classifier(self.features(x).flatten(1)))

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                fan_in = module.in_channels * math.prod(module.kernel_size)
                nn.init.normal_(module.weight, 0.0, math.sqrt(2 / fan_in))
                nn.init.zeros_(module.bias)  # type: ignore[arg-type]
        nn.init.normal_(self.classifier.weight, 0.0, 0.01)
        nn.init.zeros_(self.classifier.bias)
