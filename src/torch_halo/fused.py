"""A penalty's step in one pass over memory: torch.compile of the penalty's own formulas.

Each weight is passed as a 1-D view and each number that changes as a 0-d tensor, so that one graph serves
all shapes and learning rates. Where nothing can be compiled, the step in pieces does the same.
"""

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torch_halo.penalties import Coefficients, Scalar, Separable
from torch_halo.penalties.base import magnitude

# A compiler needs seconds: it is started for models of at least so many weights, and serves those of
# their tensors for which its call costs less than it saves.
LEAST_MODEL = 2**20
LEAST_TENSOR = 2**16

_log = logging.getLogger("torch_halo")
# By function, penalty and h, whose numbers the compiler looks at itself; None: it cannot be compiled.
_compiled: dict[tuple[Callable[..., None], type, type], Callable[..., None] | None] = {}


def fused_shrink_(
    penalty: Separable,
    w: Tensor,
    grad: Tensor,
    lam: Coefficients,
    momentum: Coefficients,
    scale: Scalar,
    rates: Sequence[float],
    constants: tuple[float, float],
) -> bool:
    """Add scale·∂Ω/∂w to `grad` and take λ's SGD step; False if nothing was done, since it cannot be compiled.

    `rates` are the penalty's share of its full strength, λ's learning rate and its weight decay;
    `constants` λ's momentum and its floor.
    """
    views = _flat(w, grad, *lam, *momentum)
    if views is None:
        return False
    w, grad, *rest = views
    return _run(_shrink_, penalty, w, grad, _number(scale, w), _moving(w, lam, rest, rates, constants))


def fused_move_(
    penalty: Separable,
    w: Tensor,
    lam: Coefficients,
    momentum: Coefficients,
    rates: Sequence[float],
    constants: tuple[float, float],
) -> bool:
    """Take λ's SGD step alone, where the weight is not zero; False if nothing was done."""
    views = _flat(w, *lam, *momentum)
    if views is None:
        return False
    w, *rest = views
    return _run(_move_, penalty, w, _moving(w, lam, rest, rates, constants))


def fused_threshold_(penalty: Separable, w: Tensor, step: Scalar, lam: Coefficients) -> bool:
    """Replace `w` by its proximal map; False if nothing was done, since it cannot be compiled."""
    by_entry = [step] if isinstance(step, Tensor) and step.ndim else []
    views = _flat(w, *lam, *by_entry)
    if views is None:
        return False
    w, *rest = views
    size = rest[-1] if by_entry else _number(step, w)
    return _run(_threshold_, penalty, w, size, rest[: len(lam)])


class _Moving(NamedTuple):
    """λ, its momentum, and the numbers of its step."""

    lam: tuple[Tensor, ...]
    momentum: tuple[Tensor, ...]
    strength: Tensor
    lr: Tensor
    decay: Tensor
    inertia: float
    floor: float

    def moved(self, penalty: Separable, slopes: Sequence[Tensor]) -> list[tuple[Tensor, Tensor]]:
        """λ and its momentum after the step."""
        if not self.momentum:
            return []
        velocities = tuple(
            self.inertia * velocity + self.decay * part + self.strength * slope
            for velocity, part, slope in zip(self.momentum, self.lam, slopes, strict=True)
        )
        penalty.add_prior_gradients_(self.lam, velocities, self.strength)
        return [((part - self.lr * v).clamp(min=self.floor), v) for part, v in zip(self.lam, velocities, strict=True)]


def _moving(
    w: Tensor, lam: Coefficients, views: Sequence[Tensor], rates: Sequence[float], constants: tuple[float, float]
) -> _Moving:
    strength, lr, decay = (_number(rate, w) for rate in rates)
    return _Moving(tuple(views[: len(lam)]), tuple(views[len(lam) :]), strength, lr, decay, *constants)


def _shrink_(penalty: Separable, w: Tensor, grad: Tensor, scale: Tensor, moving: _Moving) -> None:
    slope, *lam_slopes = penalty.slopes(magnitude(w), *moving.lam)
    moved = moving.moved(penalty, lam_slopes)
    grad.add_(scale * slope * w.sign())
    for part, velocity, (new, new_velocity) in zip(moving.lam, moving.momentum, moved, strict=False):
        part.copy_(new)
        velocity.copy_(new_velocity)


def _move_(penalty: Separable, w: Tensor, moving: _Moving) -> None:
    _, *lam_slopes = penalty.slopes(magnitude(w), *moving.lam)
    moved = moving.moved(penalty, lam_slopes)
    for part, velocity, (new, new_velocity) in zip(moving.lam, moving.momentum, moved, strict=False):
        part.copy_(torch.where(w == 0, part, new))
        velocity.copy_(torch.where(w == 0, velocity, new_velocity))


def _threshold_(penalty: Separable, w: Tensor, step: Tensor, lam: Sequence[Tensor]) -> None:
    w.copy_(penalty.proximal_map(w, step, *lam))


def _run(function: Callable[..., None], penalty: Separable, *arguments: Any) -> bool:
    """Run it compiled; False if it cannot be, which shows before anything is changed."""
    key = function, type(penalty), type(getattr(penalty, "h", None))
    is_new, began = key not in _compiled, time.perf_counter()
    if is_new:
        _compiled[key] = torch.compile(function, dynamic=True, fullgraph=True)
    run = _compiled[key]
    if run is None:
        return False
    try:
        with _quiet() if is_new else nullcontext():
            run(penalty, *arguments)
    except Exception as error:  # no compiler, or one that fails: of several kinds, and no reason to stop a training
        _compiled[key] = None
        reason = " ".join(line.strip() for line in str(error).splitlines()[:2]) or type(error).__name__
        warnings.warn(f"{type(penalty).__name__}'s step is not compiled, and slower: {reason}", stacklevel=2)
        return False
    if is_new:
        _log.info("compiled %s's step in %.1f s", type(penalty).__name__, time.perf_counter() - began)
    return True


@contextmanager
def _quiet() -> Iterator[None]:
    """Without torch's warnings about what it uses inside."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _flat(*tensors: Tensor) -> list[Tensor] | None:
    """1-D views of tensors that lie in memory alike, without gaps; None if they do not."""
    first = tensors[0]
    alike = all(t.shape == first.shape and t.stride() == first.stride() for t in tensors)
    channels_last = first.ndim == 4 and first.is_contiguous(memory_format=torch.channels_last)
    if not alike or not (first.is_contiguous() or channels_last):
        return None
    return [_line(t) for t in tensors]


def _line(t: Tensor) -> Tensor:
    # Not as a view, of whose original the compiler would look at the shape, too.
    return torch.empty(0, dtype=t.dtype, device=t.device).set_(
        t.untyped_storage(), t.storage_offset(), (t.numel(),), (1,)
    )


def _number(x: Scalar, like: Tensor) -> Tensor:
    """A number as a 0-d tensor, which may change without another graph."""
    if isinstance(x, Tensor):
        return x.to(like.device)
    return torch.tensor(x, dtype=torch.float64 if like.dtype == torch.float64 else torch.float32, device=like.device)
