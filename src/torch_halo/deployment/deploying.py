"""`deploy`: for each layer the engine that is fastest here, and never a model that is slower than it was."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from torch_halo.checks import Table
from torch_halo.deployment.attention import split_attention
from torch_halo.deployment.candidates import Run, find_runs, seen_layers
from torch_halo.deployment.comparison import answers, as_inputs, difference, own_copy
from torch_halo.deployment.folding import fold_batch_norm
from torch_halo.deployment.kernel import has_numba
from torch_halo.deployment.layers import NumbaChain, NumbaConv2d, sparse_layer
from torch_halo.deployment.regions import is_plain, owned, replace_module
from torch_halo.deployment.removal import count_parameters, remove_dead
from torch_halo.deployment.timing import LayerTimes, Times, medians, milliseconds

LEAST = 0.6  # below this share of zeros no sparse engine has a chance; none wins below about 0.8
MARGIN = 0.95  # of the dense layer's time is what a sparse one must stay under
ENGINES: Table[tuple[str, ...]] = Table(
    "engine", {"auto": ("csr", "numba"), "dense": (), "csr": ("csr",), "numba": ("numba",)}
)
Engine = Literal["auto", "dense", "csr", "numba"]


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
    Outputs are compared with the model's own, for the example, and for it negated and enlarged. If
    the whole is slower or differs, the model comes back without engines, or as it was, and the table
    says so. Inputs of other sizes work wherever they did before, unless they take another way through
    the model, to layers that are now one.
    """
    names, inputs = ENGINES[engine], as_inputs(example_input)
    if engine == "numba" and not has_numba():
        raise ImportError("the engine numba needs numba: pip install 'torch-halo[numba]'")
    dense = own_copy(model)
    work = _Work(dense, inputs, tuple(name for name in names if name != "numba" or has_numba()))
    if len(work.engines) < len(names):
        work.notes.append("numba is not installed (pip install 'torch-halo[numba]'): convolutions stay dense")
    stages = work.stages(is_forced=engine in ("csr", "numba"))
    with torch.no_grad():
        seconds = medians({name: _call(stage.model, inputs) for name, stage in stages.items()}, seconds=2.0)
    best = next(iter(stages)) if engine != "auto" else min(seconds, key=lambda name: seconds[name])
    if best != next(iter(stages)):
        first = next(iter(stages))
        work.notes.append(
            f"{first} it took {milliseconds(seconds[first])} ms as a whole, which is slower: deployed {best}"
        )
    chosen = stages[best]
    counts = (count_parameters(dense), chosen.parameters)
    times = (seconds["as it was"], seconds[best])
    return Deployed(chosen.model, Times(chosen.layers, *times, torch.get_num_threads(), counts, tuple(work.notes)))


@dataclass(frozen=True)
class _Stage:
    """A model that could be deployed."""

    model: nn.Module
    layers: tuple[LayerTimes, ...]
    parameters: int


@dataclass
class _Work:
    """A model on its way."""

    dense: nn.Module
    inputs: tuple[Any, ...]
    engines: tuple[str, ...]
    notes: list[str] = field(default_factory=list)

    def stages(self, *, is_forced: bool) -> dict[str, _Stage]:
        """What gives the model's own outputs: it with engines, it without dead structure, and as it was."""
        removal = remove_dead(self.dense, self.inputs)
        self.notes += [f"left alone: {name} ({why})" for name, why in removal.left_alone.items()]
        folded = removal.model
        fold_batch_norm(folded, self.inputs)
        layers: list[LayerTimes] = []
        found: dict[str, _Stage] = {}
        makers: dict[str, Callable[[], nn.Module]] = {
            "with engines": lambda: self._with_engines(copy.deepcopy(folded), layers, is_forced),
            "without engines": lambda: folded,
        }
        wanted = answers(self.dense, self.inputs)
        for name, make in makers.items():
            try:
                made = make().eval()
                differs = difference(answers(made, self.inputs), wanted)
                reason = f"the outputs would differ by {differs}" if differs.too_large else ""
            except Exception as error:  # whatever a forward does with layers that are not as they were
                reason = f"it would fail: {error}".splitlines()[0]
            if reason:
                self.notes.append(f"not {name}: {reason}")
                continue
            own = layers if name == "with engines" else [replace(layer, engine="dense") for layer in layers]
            found[name] = _Stage(made, tuple(own), removal.parameters[1])
        kept = tuple(replace(layer, engine="dense") for layer in layers)
        return {**found, "as it was": _Stage(self.dense, kept, removal.parameters[0])}

    def _with_engines(self, model: nn.Module, layers: list[LayerTimes], is_forced: bool) -> nn.Module:
        """An engine for each layer, in place; their times go into `layers`."""
        model = split_attention(_as_linear(model))
        seen = seen_layers(model, self.inputs)
        runs = list(find_runs(model, seen)) if "numba" in self.engines else []
        for name, (layer, x) in seen.items():
            chosen, times = self._chosen(name, layer, x, is_forced)
            layers.append(times)
            if chosen is not None:
                model = replace_module(model, name, chosen)
        if seen and max(layer.sparsity for layer in layers) < LEAST:
            most = max(layer.sparsity for layer in layers)
            self.notes.append(f"no layer has {LEAST:.0%} zeros (the most is {most:.1%}): prune it first")
        for run in runs:
            self._chain(run, seen, layers)
        for name, module in owned(model, (nn.Sequential,)):
            if name in seen.sequentials:
                _take_relus(module)
        return model

    @torch.no_grad()
    def _chosen(self, name: str, layer: Any, x: Tensor, is_forced: bool) -> tuple[nn.Module | None, LayerTimes]:
        """The fastest twin of a layer; None if that is the layer itself."""
        zeros = float((layer.weight == 0).double().mean()) if layer.weight.numel() else 0.0
        twins: dict[str, nn.Module] = {"dense": layer}
        if zeros >= LEAST and layer.weight.dtype == x.dtype == torch.float32 and layer.weight.device.type == "cpu":
            for engine in self.engines:
                twin = sparse_layer(engine, layer)
                if twin is not None and not difference([twin(x)], [layer(x)]).too_large:
                    twins[engine] = twin
        times = medians({key: _call(twin, (x,)) for key, twin in twins.items()})
        best = min(times, key=lambda key: times[key])
        if is_forced and len(twins) > 1:
            best = next(key for key in times if key != "dense")
        elif times[best] > MARGIN * times["dense"]:
            best = "dense"
        return None if best == "dense" else twins[best], LayerTimes(name, zeros, best, times)

    @torch.no_grad()
    def _chain(self, run: Run, seen: dict[str, tuple[Any, Tensor]], found: list[LayerTimes]) -> None:
        """Linear layers and ReLUs that follow each other in one call, in place, where that is faster."""
        layers, x = [(seen[name][0], has_relu) for name, has_relu in run.layers], seen[run.layers[0][0]][1]
        weights = [layer.weight for layer, _ in layers]
        sparsity = sum(int((w == 0).sum()) for w in weights) / sum(w.numel() for w in weights)
        if sparsity < LEAST or x.dtype != torch.float32 or x.device.type != "cpu":
            return
        whole, parts = NumbaChain(layers, run.has_flatten), run.module._modules
        now = nn.Sequential(*(part for key in run.keys if (part := parts[key]) is not None))
        modules = {"dense": nn.Sequential(*run.before), "one by one": now, "numba": whole}
        times = medians({key: _call(module, (x,)) for key, module in modules.items()})
        if min(times, key=lambda key: times[key]) != "numba":
            return
        parts[run.keys[0]] = whole
        for key in run.keys[1:]:  # the others keep their names
            del parts[key]
        names = [name for name, _ in run.layers]
        place = next(i for i, layer in enumerate(found) if layer.name == names[0])
        found[:] = [layer for layer in found if layer.name not in names]
        found.insert(place, LayerTimes(f"{names[0]} to {names[-1]}", sparsity, "numba", times))


def _take_relus(module: nn.Sequential) -> None:
    """Let convolutions on our kernel do the ReLUs behind them, in place: a pass over memory less."""
    before: nn.Module | None = None
    for key, child in list(module._modules.items()):
        if isinstance(before, NumbaConv2d) and child is not None and is_plain(child, (nn.ReLU,)):
            before.has_relu = True
            del module._modules[key]  # the others keep their names
        elif child is None or not is_plain(child, (nn.Identity,)):
            before = child


def _as_linear(model: nn.Module) -> nn.Module:
    """Transformers' Conv1D, in place, as the linear layer that it is."""
    for name, module in list(model.named_modules()):
        is_it = type(module).__name__ == "Conv1D" and type(module).__module__.startswith("transformers.")
        if not is_it or not is_plain(module, (type(module),)):
            continue
        weight, bias = module.weight, module.bias
        assert isinstance(weight, Tensor)
        assert isinstance(bias, Tensor)
        linear = nn.utils.skip_init(nn.Linear, *weight.shape)
        linear.weight = nn.Parameter(weight.detach().t().contiguous(), requires_grad=False)
        linear.bias = nn.Parameter(bias.detach(), requires_grad=False)
        model = replace_module(model, name, linear)
    return model


def _call(module: nn.Module, inputs: tuple[Any, ...]) -> Callable[[], Any]:
    """To be timed: on inputs of its own, anew each time if it changes them."""
    own = copy.deepcopy(inputs)
    with torch.no_grad():
        module(*own)
    is_changed = any(isinstance(x, Tensor) and not torch.equal(x, y) for x, y in zip(own, inputs, strict=True))
    return (lambda: module(*copy.deepcopy(inputs))) if is_changed else (lambda: module(*own))
