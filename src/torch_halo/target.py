"""A target sparsity: where the share of zeros is to be at each step, and how the strength follows."""

import math
from dataclasses import dataclass

from torch_halo.checks import number, whole

REACH, FREEZE = 0.75, 0.8  # shares of the training at which the target is reached, and the zeros are frozen
GAIN, MOST = 5.0, 0.5  # of the logarithm of the strength: by how much for each unit of error, and at most, an update
UPDATES = 1500  # of the strength, in a training


@dataclass(frozen=True)
class Target:
    """A sparsity to be reached in a training of so many steps.

    The share of zeros is to rise by a cubic, fast at first and ever slower, until three quarters of
    the training; at four fifths the count is made exact, and the survivors go on without a penalty
    (unless it `freezes` nothing: then it is steered to the end).
    The strength is multiplied by exp(5·error), a thousand times and more.
    """

    sparsity: float
    total_steps: int
    freezes: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "sparsity", number("target_sparsity", self.sparsity, above=0, below=1))
        whole("total_steps", self.total_steps, at_least=1)

    def wanted(self, step: int, start: float = 0.0) -> float:
        """The share of zeros after so many steps, from the share at the start.

        >>> [round(Target(0.8, 100).wanted(step), 3) for step in (0, 25, 75, 100)]
        [0.0, 0.563, 0.8, 0.8]
        """
        share = min(step / (REACH * self.total_steps), 1.0)
        return self.sparsity + (start - self.sparsity) * (1 - share) ** 3

    def is_due(self, step: int) -> bool:
        """Whether the strength is to be looked at."""
        return step % max(1, self.total_steps // UPDATES) == 0

    def factor(self, step: int, zeros: float, start: float = 0.0) -> float:
        """By how much to multiply the strength, when the share of zeros is this."""
        return math.exp(max(-MOST, min(MOST, GAIN * (self.wanted(step, start) - zeros))))

    def is_frozen(self, step: int) -> bool:
        """Whether the zeros stay as they are."""
        return self.freezes and step >= round(FREEZE * self.total_steps)
