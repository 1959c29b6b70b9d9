"""`deploy`: for each layer the engine that is fastest here, and never a model that is slower than it was."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torch_halo.checks import Table
from torch_halo.deployment.attention import split_attention
from torch_halo.deployment.comparison import as_inputs, difference, outputs
from torch_halo.deployment.folding import fold_batch_norm
from torch_halo.deployment.kernel import has_numba
from torch_halo.deployment.layers import NumbaChain, sparse_layer
from torch_halo.deployment.removal import remove_dead
from torch_halo.deployment.timing import medians

LEAST = 0.6  # below this share of zeros no sparse engine has a chance; none wins below about 0.8
MARGIN = 0.95  # of the dense layer's time is what a sparse one must stay under
ENGINES: Table[tuple[str, ...]] = Table(
    "engine", {"auto": ("csr", "numba"), "dense": (), "csr": ("csr",), "numba": ("numba",)}
)
Engine = Literal["auto", "dense", "csr", "numba"]


@dataclass(frozen=True)
class LayerTimes:
    """A layer: its share of zeros, the engine that it got, and seconds for the example's input by engine."""

    name: str
    sparsity: float
    engine: str
    seconds: dict[str, float]


@dataclass(frozen=True)
class Times:
    """What deploying came to; print it."""

    layers: tuple[LayerTimes, ...]
    dense: float  # seconds of the model as it was given, for the example
    now: float
    threads: int
    notes: tuple[str, ...] = ()
    parameters: tuple[int, int] = (0, 0)

    @property
    def times(self) -> float:
        """How many times faster it is."""
        return self.dense / self.now

    def rows(self) -> list[tuple[str, ...]]:
        """As a table: layer, sparsity, engine, milliseconds dense, milliseconds now."""
        rows: list[tuple[str, ...]] = [("layer", "sparsity", "engine", "dense ms", "now ms")]
        for layer in self.layers:
            dense, now = layer.seconds["dense"], layer.seconds[layer.engine]
            rows.append((layer.name, f"{layer.sparsity:.2%}", layer.engine, *map(_ms, (dense, now))))
        return [*rows, ("all", "", "", _ms(self.dense), _ms(self.now))]

    def __str__(self) -> str:
        rows = self.rows()
        widths = [max(len(row[i]) for row in rows) for i in range(5)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
            for row in rows
        ]
        return "\n".join([*lines, *self.notes])


class Deployed(NamedTuple):
    """A module for inference, and a table of its layers."""

    model: nn.Module
    times: Times


def deploy(model: nn.Module, example_input: Any, engine: Engine = "auto") -> Deployed:
    """The fastest way to run a pruned model on this machine, for inputs like the example.

    A copy of the model, in evaluation mode: dead structure is removed, batch norm is folded into
    convolutions, and each linear layer and convolution is timed on the input that it gets, dense
    against torch's sparse matrices ("csr") and our kernel ("numba"), with torch's number of threads;
    the fastest stays. Another engine than "auto" is used wherever it can be, and timed beside dense.
    Outputs are compared with the model's own. If all of it is not faster, or differs, the model
    comes back dense, and the table says so. Inputs of other shapes work as before.
    """
    names, inputs = ENGINES[engine], as_inputs(example_input)
    if engine == "numba" and not has_numba():
        raise ImportError("the engine numba needs numba: pip install 'torch-halo[numba]'")
    dense = copy.deepcopy(model).eval()
    work = _Work(dense, inputs, tuple(name for name in names if name != "numba" or has_numba()))
    if len(work.engines) < len(names):
        work.notes.append("numba is not installed (pip install 'torch-halo[numba]'): convolutions stay dense")
    fast, layers = work.done(is_forced=engine in ("csr", "numba"))
    found = difference(outputs(fast, inputs), outputs(dense, inputs))
    if found.too_large:
        work.notes.append(f"the outputs differed by {found}: deployed dense")
        fast, layers = dense, _all_dense(layers)
    with torch.no_grad():
        times = medians({"dense": lambda: dense(*inputs), "now": lambda: fast(*inputs)}, seconds=2.0)
    if times["now"] > times["dense"] and engine == "auto":
        work.notes.append(f"as a whole it took {_ms(times['now'])} ms, which is slower: deployed dense")
        fast, layers, times = dense, _all_dense(layers), {**times, "now": times["dense"]}
    counts = (_count(dense), _count(work.small))
    table = Times(tuple(layers), times["dense"], times["now"], torch.get_num_threads(), tuple(work.notes), counts)
    return Deployed(fast, table)


@dataclass
class _Work:
    """A model on its way."""

    dense: nn.Module
    inputs: tuple[Any, ...]
    engines: tuple[str, ...]
    notes: list[str] = field(default_factory=list)
    small: nn.Module = field(init=False)

    def done(self, *, is_forced: bool) -> tuple[nn.Module, list[LayerTimes]]:
        """The model with an engine for each layer, and their times."""
        self.small = self.dense
        try:
            removal = remove_dead(self.dense, self.inputs)
            self.small = removal.model
            self.notes += [f"left alone: {name} ({why})" for name, why in removal.left_alone.items()]
        except ValueError as error:
            self.notes.append(f"nothing was removed: {error}")
        fast = copy.deepcopy(self.small)
        fold_batch_norm(fast, self.inputs)
        fast = split_attention(_as_linear(fast))
        seen = _seen(fast, self.inputs)
        found = []
        for name, (layer, x) in seen.items():
            chosen, times = self._chosen(name, layer, x, is_forced)
            found.append(times)
            if chosen is not None:
                parent, _, own = name.rpartition(".")
                if not name:
                    fast = chosen
                else:
                    setattr(fast.get_submodule(parent), own, chosen)
        if "numba" in self.engines:
            self._chain(fast, seen, found)
        if seen and not any(layer.sparsity >= LEAST for layer in found):
            most = max(layer.sparsity for layer in found)
            self.notes.append(f"no layer has {LEAST:.0%} zeros (the most is {most:.1%}): prune it first")
        return fast.eval(), found

    @torch.no_grad()
    def _chain(self, fast: nn.Module, seen: dict[str, tuple[Any, Tensor]], found: list[LayerTimes]) -> None:
        """Runs of linear layers and ReLUs in one call, where that is faster; in place."""
        for run in list(_runs(fast, seen)):
            layers, x = [(seen[name][0], has_relu) for name, has_relu in run.layers], seen[run.layers[0][0]][1]
            zeros = sum(int((layer.weight == 0).sum()) for layer, _ in layers)
            sparsity = zeros / sum(layer.weight.numel() for layer, _ in layers)
            if sparsity < LEAST or x.dtype != torch.float32 or x.device.type != "cpu":
                continue
            whole = NumbaChain(layers)
            dense = nn.Sequential(
                *(m for layer, has_relu in layers for m in ([layer, nn.ReLU()] if has_relu else [layer]))
            )
            functions = {"dense": dense, "one by one": run.module[run.first : run.last], "numba": whole}
            times = medians({key: _call(module, x) for key, module in functions.items()})
            if min(times, key=lambda key: times[key]) != "numba" or difference([whole(x)], [dense(x)]).too_large:
                continue
            run.module[run.first] = whole
            for i in range(run.first + 1, run.last):
                run.module[i] = nn.Identity()
            names = [name for name, _ in run.layers]
            place = next(i for i, layer in enumerate(found) if layer.name == names[0])
            found[:] = [layer for layer in found if layer.name not in names]
            found.insert(place, LayerTimes(f"{names[0]} to {names[-1]}", sparsity, "numba", times))

    @torch.no_grad()
    def _chosen(self, name: str, layer: nn.Module, x: Tensor, is_forced: bool) -> tuple[nn.Module | None, LayerTimes]:
        weight = layer.weight
        assert isinstance(weight, Tensor)
        zeros = float((weight == 0).double().mean()) if weight.numel() else 0.0
        twins: dict[str, nn.Module] = {"dense": layer}
        if zeros >= LEAST and weight.dtype == x.dtype == torch.float32 and weight.device.type == "cpu":
            wanted = layer(x)
            for engine in self.engines:
                twin = sparse_layer(engine, layer)
                if twin is not None and not difference([twin(x)], [wanted]).too_large:
                    twins[engine] = twin
        functions: dict[str, Callable[[], Any]] = {key: _call(twin, x) for key, twin in twins.items()}
        times = medians(functions)
        best = min(times, key=lambda key: times[key])
        if is_forced and len(twins) > 1:
            best = next(key for key in times if key != "dense")
        elif times[best] > MARGIN * times["dense"]:
            best = "dense"
        return None if best == "dense" else twins[best], LayerTimes(name, zeros, best, times)


@dataclass(frozen=True)
class _Run:
    """Children `first` to `last` of a Sequential: linear layers, by name, and whether a ReLU follows each."""

    module: nn.Sequential
    first: int
    last: int
    layers: list[tuple[str, bool]]


def _runs(model: nn.Module, seen: dict[str, tuple[nn.Module, Tensor]]) -> Iterator[_Run]:
    """Runs of two linear layers and more."""
    for prefix, module in model.named_modules():
        if not isinstance(module, nn.Sequential):
            continue
        names = [f"{prefix}.{name}".lstrip(".") for name in module._modules]
        layers: list[tuple[str, bool]] = []
        first = 0
        for i, child in enumerate([*module, None]):
            is_linear = i < len(names) and names[i] in seen and isinstance(seen[names[i]][0], nn.Linear)
            if is_linear:
                first = first if layers else i
                layers.append((names[i], False))
            elif isinstance(child, nn.ReLU) and layers:
                layers[-1] = (layers[-1][0], True)
            else:
                if len(layers) > 1:
                    yield _Run(module, first, i, layers)
                layers = []


def _seen(model: nn.Module, inputs: tuple[Any, ...]) -> dict[str, tuple[nn.Module, Tensor]]:
    """The layers that could have an engine, each with the first input that it gets."""
    found: dict[str, tuple[nn.Module, Tensor]] = {}
    hooks = []
    for name, module in _layers(model):

        def look(layer: nn.Module, args: tuple[Any, ...], name: str = name) -> None:
            if args:
                found.setdefault(name, (layer, args[0]))

        hooks.append(module.register_forward_pre_hook(look))
    try:
        outputs(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Linear layers and convolutions; not those whose weight another module reads."""
    inside = {id(part) for m in model.modules() if isinstance(m, nn.MultiheadAttention) for part in m.modules()}
    return (
        (name, module)
        for name, module in model.named_modules()
        if type(module) in (nn.Linear, nn.Conv2d) and id(module) not in inside
    )


def _as_linear(model: nn.Module) -> nn.Module:
    """Transformers' Conv1D, in place, as the linear layer that it is."""
    for name, module in list(model.named_modules()):
        if name and type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers."):
            weight, bias = module.weight, module.bias
            assert isinstance(weight, Tensor)
            assert isinstance(bias, Tensor)
            linear = nn.utils.skip_init(nn.Linear, *weight.shape)
            linear.weight = nn.Parameter(weight.detach().t().contiguous(), requires_grad=False)
            linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, linear)
    return model


def _all_dense(layers: list[LayerTimes]) -> list[LayerTimes]:
    return [LayerTimes(layer.name, layer.sparsity, "dense", layer.seconds) for layer in layers]


def _call(module: nn.Module, x: Tensor) -> Callable[[], Any]:
    return lambda: module(x)


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f}"
