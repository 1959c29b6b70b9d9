"""Kernels for sparse layers: each output row is a sum of input rows, one for each weight that is not zero.

They are compiled by Numba when they are first needed. Rows must be long (a hundred entries and
more) for the machine's vector units to be busy, which is what the layouts are for: a linear layer
reads its tokens side by side, a convolution the pixels of a plane. Indices are unsigned, since
signed ones may count from the end, which Numba would check each time.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from threading import Lock
from types import FunctionType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from torch_halo.checks import extra

Array = NDArray[Any]

TILE = 128  # tokens side by side, at most: their rows stay in the cache
WIDE = 8  # so many tokens have sums in registers
BLOCK = 16  # numbers in a cache line: transposing goes by so many


def _dot(source: Array, k: int, end: int, places: Array, values: Array) -> Any:
    """Σ_k values[k] · source[places[k]]."""
    a = b = c = d = np.float32(0)
    while k + 4 <= end:  # four sums, so that none waits for another
        a += values[k] * source[places[k]]
        b += values[k + 1] * source[places[k + 1]]
        c += values[k + 2] * source[places[k + 2]]
        d += values[k + 3] * source[places[k + 3]]
        k += 4
    while k < end:
        a += values[k] * source[places[k]]
        k += 1
    return (a + b) + (c + d)


def _dots(row: Array, start: float, source: Array, k: int, end: int, places: Array, values: Array) -> None:
    """The same for WIDE tokens side by side: row = start + Σ_k values[k] · source[places[k]], in registers."""
    a = b = c = d = e = f = g = h = start
    while k < end:
        value, x = values[k], source[places[k]]
        a += value * x[0]
        b += value * x[1]
        c += value * x[2]
        d += value * x[3]
        e += value * x[4]
        f += value * x[5]
        g += value * x[6]
        h += value * x[7]
        k += 1
    row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7] = a, b, c, d, e, f, g, h


def _add_rows(row: Array, source: Array, k: int, end: int, places: Array, values: Array, scale: int) -> None:
    """row += Σ_k values[k] · source[places[k]·scale :][: len(row)]."""
    length = len(row)
    if length == 1 and scale == 1:
        row[0] += _dot(source, k, end, places, values)
        return
    while k + 8 <= end:  # eight at a time, since `row` is read and written in each pass
        a, b, c, d = values[k], values[k + 1], values[k + 2], values[k + 3]
        e, f, g, h = values[k + 4], values[k + 5], values[k + 6], values[k + 7]
        xa, xb = source[places[k] * scale :][:length], source[places[k + 1] * scale :][:length]
        xc, xd = source[places[k + 2] * scale :][:length], source[places[k + 3] * scale :][:length]
        xe, xf = source[places[k + 4] * scale :][:length], source[places[k + 5] * scale :][:length]
        xg, xh = source[places[k + 6] * scale :][:length], source[places[k + 7] * scale :][:length]
        for i in range(length):
            row[i] += (a * xa[i] + b * xb[i] + c * xc[i] + d * xd[i]) + (e * xe[i] + f * xf[i] + g * xg[i] + h * xh[i])
        k += 8
    while k < end:
        a, xa = values[k], source[places[k] * scale :][:length]
        for i in range(length):
            row[i] += a * xa[i]
        k += 1


def _transpose(x: Array, tile: Array) -> None:
    """tile[i, j] = x[j, i]."""
    count, inputs = x.shape
    for c in range(0, inputs, BLOCK):
        for j in range(count):
            for i in range(c, min(c + BLOCK, inputs)):
                tile[i, j] = x[j, i]


def _linear(
    x: Array, y: Array, ends: Array, places: Array, values: Array, bias: Array, scale: int, first: int, last: int
) -> None:
    """For tokens t and outputs o: y[t, o] = bias[o] + Σ_k values[k] · x[t, places[k]]; `scale` tokens at a time."""
    tokens, inputs = x.shape
    tile, found = np.empty((inputs, scale), np.float32), np.empty((BLOCK, scale), np.float32)
    flat = tile.reshape(-1)
    for t in range(0, tokens, scale):
        count = min(scale, tokens - t)
        _transpose(x[t : t + count], tile)
        for o in range(first, last, BLOCK):
            end = min(o + BLOCK, last)
            for i in range(o, end):
                row = found[i - o, :count]
                row[:] = bias[i]
                _add_rows(row, flat, ends[i], ends[i + 1], places, values, scale)
            for j in range(count):
                for i in range(o, end):
                    y[t + j, i] = found[i - o, j]


def _convolution(
    x: Array, y: Array, ends: Array, places: Array, values: Array, bias: Array, scale: int, first: int, last: int,
    sizes: tuple[int, ...], least: float,
) -> None:  # fmt: skip
    """The convolution y of images x, `scale` of which lie side by side; places are in the layout of `_lay_out`.

    Nothing below `least` comes out: with 0 a ReLU is done on the way.
    """
    high, wide, lines, columns, down, right = sizes[:6]
    tile = np.zeros(x.shape[1] * down * right * lines * columns * scale, np.float32)
    row = np.empty(((high - 1) * columns + wide) * scale, np.float32)
    for t in range(0, len(x), scale):
        count = min(scale, len(x) - t)
        _lay_out(x[t : t + count], tile, scale, sizes)
        for o in range(first, last):
            row[:] = bias[o]
            _add_rows(row, tile, ends[o], ends[o + 1], places, values, scale)
            for j in range(count):
                for r in range(high):
                    for q in range(wide):
                        value = row[(r * columns + q) * scale + j]
                        y[t + j, o, r, q] = least if value < least else value


def _lay_out(x: Array, tile: Array, scale: int, sizes: tuple[int, ...]) -> None:
    """Images as one row a channel: line after line, with padding; with strides, pixels of one phase together."""
    _, _, lines, columns, down, right, top, left = sizes
    count, channels, height, width = x.shape
    for j in range(count):
        for c in range(channels):
            for r in range(height):
                phase = (c * down + (r + top) % down) * right
                line = (r + top) // down
                if right == 1:
                    start = ((phase * lines + line) * columns + left) * scale + j
                    for q in range(width):
                        tile[start + q * scale] = x[j, c, r, q]
                else:
                    for q in range(width):
                        own = phase + (q + left) % right
                        tile[((own * lines + line) * columns + (q + left) // right) * scale + j] = x[j, c, r, q]


def _chain(
    x: Array, y: Array, ends: Array, places: Array, values: Array, bias: Array, sizes: Array, relu: Array, scale: int
) -> None:
    """Several linear layers, one after another, with a ReLU behind those that have one; `scale` tokens at a time."""
    source, target = np.zeros((sizes.max(), scale), np.float32), np.empty((sizes.max(), scale), np.float32)
    for t in range(0, len(x), scale):
        count = min(scale, len(x) - t)
        _transpose(x[t : t + count], source)
        begin = 0
        for layer in range(len(relu)):
            flat = source.reshape(-1)
            for o in range(sizes[layer + 1]):
                row, first, last = target[o], ends[begin + o], ends[begin + o + 1]
                if scale == 1:
                    row[0] = bias[begin + o] + _dot(flat, first, last, places, values)
                elif scale == WIDE:
                    _dots(row, bias[begin + o], source, first, last, places, values)
                else:
                    row[:] = bias[begin + o]
                    _add_rows(row, flat, first, last, places, values, scale)
                if relu[layer]:
                    for j in range(scale):
                        row[j] = max(row[j], np.float32(0))
            begin += sizes[layer + 1]
            source, target = target, source
        for j in range(count):
            for i in range(sizes[-1]):
                y[t + j, i] = source[i, j]


Kernel = Callable[..., None]


@dataclass(frozen=True)
class Kernels:
    """Compiled ones."""

    linear: Kernel
    convolution: Kernel
    chain: Kernel


_LOCK = Lock()


@cache
def _compiled() -> Kernels:
    with extra("numba", "the engine numba"):
        import numba
    try:
        return _jitted(numba, cache=True)
    except RuntimeError:  # there is no folder to keep compiled functions in
        return _jitted(numba, cache=False)


def _jitted(numba: Any, cache: bool) -> Kernels:
    # Products may be fused with sums; sums may not be reordered: gathering vectors of them is slower than one by one.
    compiled = numba.njit(fastmath={"contract"}, nogil=True, cache=cache)
    names: dict[str, Any] = {"np": np, "BLOCK": BLOCK, "WIDE": WIDE, "min": min, "max": max, "range": range, "len": len}
    for function in (_dot, _dots, _add_rows, _transpose, _lay_out, _linear, _convolution, _chain):
        # With names of its own, in which the functions that it calls are compiled ones.
        own = FunctionType(function.__code__, names, function.__name__)
        own.__module__ = function.__module__
        names[function.__name__] = compiled(own)
    return Kernels(names["_linear"], names["_convolution"], names["_chain"])


def kernels() -> Kernels:
    """The kernels, compiled when they are first called (and kept on the disk)."""
    with _LOCK:  # several threads may come at once
        return _compiled()


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="torch-halo")


def has_numba() -> bool:
    """Whether the kernels can be compiled here."""
    try:
        kernels()
    except ImportError:
        return False
    return True


def run_chain(x: Array, y: Array, layers: tuple[Array, ...]) -> None:
    """Run the kernel for several layers on torch's number of threads, which share the tokens."""
    chain = kernels().chain
    threads = min(torch.get_num_threads(), -(-len(x) // WIDE))
    if threads == 1:
        chain(x, y, *layers, _scale(len(x)))
        return
    cuts = [len(x) * part // threads for part in range(threads + 1)]
    jobs = [_pool().submit(chain, x[a:b], y[a:b], *layers, _scale(b - a)) for a, b in pairwise(cuts)]
    for job in jobs:
        job.result()


def _scale(tokens: int) -> int:
    """How many tokens of a chain are side by side: evenly many in each tile, which is worked on as a whole."""
    return tokens if tokens == 1 else max(WIDE, -(-tokens // -(-tokens // TILE)))


def run(kernel: Kernel, x: Array, y: Array, weight: tuple[Array, ...], scale: int, *more: Any) -> None:
    """Run a kernel on torch's number of threads; outputs are dealt out so that all have as many weights."""
    ends, bias = weight[0], weight[-1]
    threads = min(torch.get_num_threads(), len(bias))
    if threads == 1:
        kernel(x, y, *weight, scale, 0, len(bias), *more)
        return
    cuts = np.searchsorted(ends, np.linspace(0, ends[-1], threads + 1))
    cuts[0], cuts[-1] = 0, len(bias)
    parts = [(int(a), int(b)) for a, b in pairwise(cuts) if b > a]
    jobs = [_pool().submit(kernel, x, y, *weight, scale, *part, *more) for part in parts[1:]]
    kernel(x, y, *weight, scale, *parts[0], *more)
    for job in jobs:
        job.result()
