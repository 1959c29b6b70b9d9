"""Layers that work on the weights that are not zero; for inference, in float32 on a CPU."""

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_halo.deployment.kernel import TILE, Array, kernels, run, run_chain

ROW = 512  # entries that a row should have: small images are put side by side


class _Cached(nn.Module):
    """Keeps what it makes out of its buffers: for a small layer, looking at these takes longer than multiplying."""

    def __init__(self) -> None:
        super().__init__()
        self._made: Any = None

    def made(self) -> Any:
        """What the buffers are made into, once."""
        if self._made is None:
            self._made = self._make()
        return self._made

    def _make(self) -> Any:
        raise NotImplementedError

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        self._made = None  # the buffers may be others from now on
        return super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_made": None}


class _Sparse(_Cached):
    """A weight as compressed rows: `ends` of the rows in `columns` and `values`."""

    ends: Tensor
    columns: Tensor

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.shape = weight.shape
        rows = weight.detach().flatten(1).float()
        present = rows != 0
        self.register_buffer("ends", F.pad(present.sum(1).cumsum(0), (1, 0)).to(torch.int32))
        self.register_buffer("columns", present.nonzero()[:, 1].to(torch.int32))
        bias = rows.new_zeros(len(rows)) if bias is None else bias.detach().float().clone()
        # Parameters, since forwards look at these for a device or dtype.
        self.values, self.bias = nn.Parameter(rows[present], False), nn.Parameter(bias, False)

    def _make(self) -> Any:
        """As the kernels want it."""
        return _unsigned(self.ends), _unsigned(self.columns), self.values.numpy(), self.bias.numpy()

    @property
    def weight(self) -> Tensor:
        """The weight with its zeros, for those who look at it; made anew each time."""
        found = torch.zeros(self.shape[0], self.shape[1:].numel(), dtype=self.values.dtype)
        rows = torch.arange(len(found)).repeat_interleave(self.ends.diff())
        found[rows, self.columns.long()] = self.values
        return found.view(self.shape)

    def extra_repr(self) -> str:
        """Its shape and how many weights are left."""
        return f"{'×'.join(map(str, self.shape))}, {len(self.values):,} weights"


class _SparseLinear(_Sparse):
    """Has a linear layer's sizes."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight, bias)
        self.out_features, self.in_features = weight.shape


class CsrLinear(_SparseLinear):
    """A linear layer through torch's sparse matrices (MKL)."""

    def _make(self) -> Any:
        parts = (self.ends, self.columns, self.values)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, that they are in beta
            return torch.sparse_csr_tensor(*parts, self.shape, check_invariants=False), self.bias

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b."""
        outputs, inputs = self.shape
        check_input(x, x.ndim - 1, inputs)
        flat = x.reshape(-1, inputs)
        found = flat.new_empty(len(flat), outputs)
        weight, bias = self.made()
        torch.add((weight @ flat.t().contiguous()).t(), bias, out=found)
        return found.reshape(*x.shape[:-1], outputs)


class NumbaLinear(_SparseLinear):
    """A linear layer through our kernel."""

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """x Wᵀ + b."""
        outputs, inputs = self.shape
        check_input(x, x.ndim - 1, inputs)
        found = x.new_empty(*x.shape[:-1], outputs)
        flat = x.reshape(-1, inputs).contiguous()
        if len(flat):
            run(kernels().linear, flat.numpy(), found.view(-1, outputs).numpy(), self.made(), min(len(flat), TILE))
        return found


class NumbaChain(_Cached):
    """Linear layers and ReLUs, one after another, in one call: of small layers the calls are most of the time."""

    ends: Tensor
    columns: Tensor
    values: Tensor
    bias: Tensor
    widths: Tensor
    relus: Tensor

    def __init__(self, layers: Sequence[tuple[nn.Linear, bool]], has_flatten: bool = False) -> None:
        super().__init__()
        self.has_flatten = has_flatten  # all axes but the first are one
        twins = [NumbaLinear(layer.weight, layer.bias) for layer, _ in layers]
        starts = np.cumsum([0, *(len(twin.values) for twin in twins)])
        ends = [twin.ends[:-1] + int(start) for twin, start in zip(twins, starts, strict=False)]
        self.register_buffer("ends", torch.cat([*ends, torch.tensor([int(starts[-1])])]).to(torch.int32))
        self.register_buffer("columns", torch.cat([twin.columns for twin in twins]))
        for name in ("values", "bias"):
            setattr(self, name, nn.Parameter(torch.cat([getattr(twin, name) for twin in twins]), False))
        self.sizes = (layers[0][0].in_features, *(layer.out_features for layer, _ in layers))
        self.register_buffer("widths", torch.tensor(self.sizes))
        self.register_buffer("relus", torch.tensor([has_relu for _, has_relu in layers]))

    def extra_repr(self) -> str:
        """Its widths and how many weights are left."""
        return f"{'-'.join(map(str, self.sizes))}, {len(self.values):,} weights"

    def forward(self, x: Tensor) -> Tensor:
        """What the layers make of x."""
        # Each step here takes as long as a tenth of the work for one input: numpy's are the shorter ones.
        given = x.detach() if x.requires_grad else x
        if self.has_flatten and given.ndim > 2:
            given = given.flatten(1)
        check_input(given, given.ndim - 1, self.sizes[0])
        source = (given if given.is_contiguous() else given.contiguous()).numpy()
        found = np.empty((*source.shape[:-1], self.sizes[-1]), np.float32)
        if found.size:
            run_chain(source.reshape(-1, self.sizes[0]), found.reshape(-1, self.sizes[-1]), self.made())
        return torch.from_numpy(found)

    def _make(self) -> Any:
        parts = (self.values, self.bias, self.widths, self.relus)
        return (_unsigned(self.ends), _unsigned(self.columns), *(part.numpy() for part in parts))


class NumbaConv2d(_Sparse):
    """A convolution through our kernel.

    An image's channel is kept as one row, its lines one after another with their padding, so that
    what a weight reads for all pixels is one stretch of it; a few sums at the lines' ends are thrown
    away. With a stride, pixels of the same phase lie together. Several small images share a row.
    """

    def __init__(self, layer: nn.Conv2d) -> None:
        super().__init__(layer.weight, layer.bias)
        self.groups, self.stride, self.dilation = layer.groups, layer.stride, layer.dilation
        self.in_channels, self.out_channels, self.kernel_size = layer.in_channels, layer.out_channels, layer.kernel_size
        self.padding = _padding(layer)
        self.has_relu = False  # whether it does the ReLU behind it, too

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """The convolution of x."""
        if x.ndim == 3:
            return self.forward(x.unsqueeze(0)).squeeze(0)
        check_input(x, 1, self.in_channels)
        (high, lines), (wide, columns) = (self._size(x.shape[2:], i) for i in (0, 1))
        found = x.new_empty(len(x), self.shape[0], high, wide)
        scale = max(1, min(TILE, len(x), ROW // (high * columns)))
        sizes = (high, wide, lines, columns, *self.stride, self.padding[0][0], self.padding[1][0])
        if len(x):
            weight = self._at(lines, columns)
            least = np.float32(0 if self.has_relu else -np.inf)
            run(kernels().convolution, x.contiguous().numpy(), found.numpy(), weight, scale, sizes, least)
        return found

    def _size(self, given: torch.Size, i: int) -> tuple[int, int]:
        """How many lines (i = 0) or columns come out, and how many of each phase go in, with padding."""
        padded = given[i] + sum(self.padding[i])
        size = (padded - self.dilation[i] * (self.shape[2 + i] - 1) - 1) // self.stride[i] + 1
        if size < 1:
            raise ValueError(f"images of {tuple(given)} pixels are too small for a kernel of {tuple(self.shape[2:])}")
        return size, -(-padded // self.stride[i])

    def _make(self) -> Any:
        return {}  # weights by size of the images

    def _at(self, lines: int, columns: int) -> tuple[Array, ...]:
        """The weight for images of this size: where each one's stretch begins depends on it."""
        known = self.made()
        found: tuple[Array, ...] | None = known.get((lines, columns))
        if found is None:  # another thread may add or clear sizes meanwhile
            outputs, group, *kernel = self.shape
            rows = np.repeat(np.arange(outputs), np.diff(self.ends.numpy()))
            own, r, s = np.unravel_index(self.columns.numpy().astype(np.int64), (group, *kernel))
            channel = rows // (outputs // self.groups) * group + own
            down, right = r * self.dilation[0], s * self.dilation[1]
            phase = (channel * self.stride[0] + down % self.stride[0]) * self.stride[1] + right % self.stride[1]
            place = (phase * lines + down // self.stride[0]) * columns + right // self.stride[1]
            if len(known) > 8:  # sizes come and go
                known.clear()
            ends, _, values, bias = super()._make()
            found = known[lines, columns] = (ends, place.astype(np.uint32), values, bias)
        return found


def check_input(x: Tensor, axis: int, inputs: int) -> None:
    """Refuse what a layer cannot read."""
    if torch._C._is_tracing() or torch.compiler.is_exporting():
        raise RuntimeError(
            "a deployed model runs as it is, on this machine; trace or export the model before deploying it"
        )
    if x.ndim <= axis or x.shape[axis] != inputs or x.dtype != torch.float32 or not x.is_cpu:
        raise ValueError(
            f"this layer reads {inputs} channels (axis {axis}) in float32 on the CPU; "
            f"received {tuple(x.shape)} in {x.dtype} on {x.device}"
        )


def _unsigned(x: Tensor) -> Array:
    found: Array = x.numpy().view(np.uint32)
    return found


def _padding(layer: nn.Conv2d) -> list[tuple[int, int]]:
    """Before and after, by axis."""
    if isinstance(layer.padding, str):
        reach = [
            d * (k - 1) if layer.padding == "same" else 0
            for d, k in zip(layer.dilation, layer.kernel_size, strict=True)
        ]
        return [(total // 2, total - total // 2) for total in reach]
    return [(int(p), int(p)) for p in layer.padding]


def sparse_layer(engine: str, layer: Any) -> nn.Module | None:
    """A layer's twin on an engine, if that has one for it."""
    if type(layer) is nn.Linear:
        return (CsrLinear if engine == "csr" else NumbaLinear)(layer.weight, layer.bias)
    if type(layer) is nn.Conv2d and engine == "numba" and layer.padding_mode == "zeros":
        return NumbaConv2d(layer)
    return None
