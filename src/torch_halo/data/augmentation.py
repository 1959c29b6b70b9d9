"""Images shifted and mirrored, many at a time."""

import torch
from torch import Tensor
from torch.nn import functional as F

SHIFT = 4  # pixels


class Shifts:
    """For each image of an epoch, how it is shifted and whether it is mirrored.

    An image is padded by 4 black pixels and cut out again at its shift, from (0, 0) to (8, 8); where
    `flips` says so, the outcome is mirrored.
    """

    def __init__(self, flips: Tensor, shifts: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
        channels, height, width = shape
        rows, columns = height + 2 * SHIFT, width + 2 * SHIFT
        # Mirrored first and cut out then, a shift counts from the other side.
        left = torch.where(flips, 2 * SHIFT - shifts[:, 1], shifts[:, 1])
        self._corner = (shifts[:, 0] * columns + left).to(device)
        self._flips = flips.long().to(device)
        self._pixels = channels * rows * columns
        lines = torch.arange(channels)[:, None] * rows + torch.arange(height)
        self._lines = (lines * columns).view(-1).to(device)

    @classmethod
    def random(cls, count: int, shape: tuple[int, ...], generator: torch.Generator, device: torch.device) -> "Shifts":
        """Half of the images mirrored, all shifts alike."""
        flips = torch.rand(count, generator=generator) < 0.5
        return cls(flips, torch.randint(0, 2 * SHIFT + 1, (count, 2), generator=generator), shape, device)

    def apply(self, images: Tensor, chosen: slice) -> Tensor:
        """The chosen images of the epoch, shifted and mirrored."""
        count, width = len(images), images.shape[-1]
        both = F.pad(torch.cat([images, images.flip(-1)]), (SHIFT,) * 4)
        # All runs of `width` pixels in memory, from any place on. An image is made of such runs,
        # copied whole: this takes a fifth of the time of indexing pixels.
        runs = both.view(-1).as_strided((both.numel() - width + 1, width), (1, 1))
        image = torch.arange(count, device=images.device) + self._flips[chosen] * count
        start = image * self._pixels + self._corner[chosen]
        return runs.index_select(0, (start[:, None] + self._lines).view(-1)).view(images.shape)
