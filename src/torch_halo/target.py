"""A target sparsity: where the share of zeros is to be at each step, and how the strength follows."""

import math
from dataclasses import dataclass

from torch_halo.checks import number, whole

# Shares of the training: from when on zeros stay zero, when the target is reached, and when their count is made exact.
REST, REACH, FREEZE = 0.3, 0.6, 0.65
GAIN, MOST = 5.0, 0.5  # of the logarithm of the strength: by how much for each unit of error, and at most, an update
OVER = 0.2  # of the weights that should be left: so many of them may rest
UPDATES = 1500  # of the strength, in a training


@dataclass(frozen=True)
class Target:
    """A sparsity to be reached in a training of so many steps.

    The share of zeros is to rise by a cubic, fast at first and ever slower, until three fifths of the
    training. At first zeros may come back; after three tenths of the training they rest, so that the
    strength has no longer to hold them against the noise of the gradients, at the cost of the others.
    At 65 % the count is made exact, and the survivors go on without a penalty (unless it `freezes`
    nothing: then zeros may come back until the end, to which it is steered).
    The strength is multiplied by exp(5·error), a thousand times and more; while zeros rest, nothing is
    shrunk as long as there are enough of them.
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
        [0.0, 0.641, 0.8, 0.8]
        """
        share = min(step / (REACH * self.total_steps), 1.0)
        return self.sparsity + (start - self.sparsity) * (1 - share) ** 3

    def is_due(self, step: int) -> bool:
        """Whether the strength is to be looked at."""
        return step % max(1, self.total_steps // UPDATES) == 0

    def is_far_over(self, step: int, start: float, missing: float) -> bool:
        """Whether a fifth of the weights that should be left are zero.

        >>> [Target(0.8, 100).is_far_over(60, 0.0, missing) for missing in (0.1, -0.03, -0.05)]
        [False, False, True]
        """
        return -missing > OVER * (1 - self.wanted(step, start))

    def is_resting(self, step: int) -> bool:
        """Whether zeros stay zero, unless there are far too many."""
        return self.freezes and step >= round(REST * self.total_steps)

    def is_frozen(self, step: int) -> bool:
        """Whether the zeros stay as they are."""
        return self.freezes and step >= round(FREEZE * self.total_steps)


def factor(missing: float) -> float:
    """By how much to multiply the strength, when this share of zeros is missing.

    >>> [round(factor(missing), 3) for missing in (0.0, 0.01, -0.01, 0.5)]
    [1.0, 1.051, 0.951, 1.649]
    """
    return math.exp(max(-MOST, min(MOST, GAIN * missing)))
