"""The loop."""

import math
import time
from collections.abc import Iterable
from typing import Protocol

from torch import Tensor
from torch.nn import functional as F

from torch_halo.training.fabric import agreed
from torch_halo.training.faults import first_fault
from torch_halo.training.session import Session

# On a device that works ahead of Python, reading a number waits for it: look this seldom (steps).
LOOK_EVERY = 10


class Watch(Protocol):
    """What is told how the training goes, and may stop it."""

    def wants_to_save(self) -> bool:
        """Whether it is time for a checkpoint."""

    def wants_to_stop(self) -> bool:
        """Whether the training is to end after this step."""

    def stepped(self, session: Session) -> None:
        """A step is done."""

    def epoch_done(self, session: Session) -> None:
        """All steps of an epoch are done."""

    def save(self, session: Session) -> None:
        """Keep everything; the training may be resumed from here."""

    def stop(self, session: Session) -> None:
        """End here, by an exception; everything was kept."""


class Unwatched:
    """Nobody is told and nothing is kept."""

    def wants_to_save(self) -> bool:
        """No."""
        return False

    def wants_to_stop(self) -> bool:
        """No."""
        return False

    def stepped(self, session: Session) -> None:
        """Nobody is told."""

    def epoch_done(self, session: Session) -> None:
        """Nobody is told."""

    def save(self, session: Session) -> None:
        """Nothing is kept."""

    def stop(self, session: Session) -> None:
        """It is never asked to."""


def train(session: Session, watch: Watch) -> None:
    """Train from wherever the session is to the end."""
    while session.progress.epoch < session.config.training.epochs:
        train_steps(session, watch, session.batches())
        watch.epoch_done(session)
        session.progress.next_epoch()
        if any(agreed(session.fabric, watch.wants_to_save())):
            watch.save(session)


def train_steps(session: Session, watch: Watch, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> None:
    """A step for each of the batches."""
    progress, is_cpu, is_alone = session.progress, session.fabric.device.type == "cpu", session.fabric.world_size == 1
    began = time.perf_counter()
    session.model.train()
    for inputs, labels, index in batches:
        loss = _forward(session, inputs, labels, index)
        looks, bad, save, stop = is_cpu or session.step % LOOK_EVERY == 0, False, False, False
        if looks or is_alone:
            bad = looks and not math.isfinite(loss.item())
            bad, save, stop = agreed(session.fabric, bad, watch.wants_to_save(), watch.wants_to_stop())
        if bad:
            raise FloatingPointError(_what_went_wrong(session, loss.item(), inputs))
        session.fabric.backward(loss)
        if not session.sparsifier.act(session):
            session.optimizer.step()
        progress.position += 1
        progress.seconds += time.perf_counter() - began
        watch.stepped(session)
        if save or stop:
            watch.save(session)
        if stop:
            watch.stop(session)
        began = time.perf_counter()


def _forward(session: Session, inputs: Tensor, labels: Tensor, index: Tensor) -> Tensor:
    """One batch: the loss to descend, with what the epoch sums up noted."""
    progress = session.progress
    for group in session.torch_optimizer.param_groups:
        group["lr"] = session.config.optimizer.lr * session.lr(session.step)
    session.optimizer.zero_grad()
    scores = session.model(inputs)
    losses = F.cross_entropy(scores, labels, reduction="mean" if progress.losses is None else "none")
    loss = losses.mean() if losses.ndim else losses
    if progress.losses is not None:
        progress.losses[index] = losses.detach().float()
    progress.loss.add_(loss.detach(), alpha=len(labels))
    progress.correct.add_((scores.detach().argmax(1) == labels).sum())
    progress.count += len(labels)
    added = session.sparsifier.loss()
    return loss if added is None else loss + added


def _what_went_wrong(session: Session, loss: float, inputs: Tensor) -> str:
    shown = f"is {loss:g}" if not math.isfinite(loss) else "is not finite on another process"
    return f"the loss {shown} at {session.where}; {first_fault(session.module, session.model, inputs)}"
