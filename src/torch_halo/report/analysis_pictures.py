"""Pictures of what a run's network looks like: one a function, drawn from the plain data of `halo analyse`."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch_halo.checks import Table
from torch_halo.report.pictures import (
    COLOURS,
    INK,
    as_svg,
    draw_strengths,
    looks,
    name_rows,
    picture,
    row_height,
    shortened,
)
from torch_halo.report.strengths import Strengths

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Drawing = Callable[["Axes", Any], None]
LAYERS = 8  # lines of a picture that can be told apart


class Kind(NamedTuple):
    """A picture: its title, what the paper saw there, and how it is drawn."""

    title: str
    text: str
    draw: Drawing
    by_layer: bool = False  # a row for each layer


def _coefficients(axes: "Axes", found: Mapping[str, Any]) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    w, lam = found["magnitudes"], found["coefficients"]
    pairs = [(a, b) for a, b in zip(w, lam, strict=True) if a > 0 and b > 0]
    if not pairs:
        return
    axes.hexbin(*zip(*pairs, strict=True), gridsize=36, bins="log", xscale="log", yscale="log", cmap="Blues", mincnt=1)
    if "best" in found:
        axes.plot(found["best"]["magnitudes"], found["best"]["coefficients"], color=COLOURS[2], label="λ* at its best")
        low, high = min(b for _, b in pairs), max(b for _, b in pairs)
        axes.set_ylim(low / 1.3, high * 1.3)
        axes.legend(loc="upper left", frameon=False)
    axes.axvline(found["threshold"], color=INK, linestyle=":", linewidth=1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda x, place: f"{x:g}"))
        axis.set_minor_formatter(NullFormatter())
    axes.set(xlabel="|w| (dotted: from here on it survives)", ylabel="λ")


def _layers(axes: "Axes", found: Sequence[Mapping[str, Any]]) -> None:
    shares = [100 * x["zeros"] / max(x["weights"], 1) for x in found]
    axes.plot(shares, range(len(found)), color=COLOURS[1], marker="o")
    for i, layer in enumerate(found):
        if layer["is_smaller"] and i:
            axes.axhline(i - 0.5, color=INK, linestyle=":", linewidth=1)
    name_rows(axes, [x["name"] for x in found])
    axes.set(xlabel="zeros, % (dotted: smaller images)")


def _spectrum(axes: "Axes", found: Sequence[Mapping[str, Any]]) -> None:
    every = -(-len(found) // LAYERS)
    for i, layer in enumerate(found[::every]):
        x, y = zip(*layer["cumulative"], strict=True)
        label = f"{shortened([layer['name']])[0]}: {layer['effective_rank']:.0f} of {layer['features']}"
        axes.plot(x, y, color=COLOURS[i % len(COLOURS)], label=label)
    axes.legend(title="layer: effective rank", loc="lower right", fontsize=8, title_fontsize=8, frameon=False)
    axes.set(xlabel="share of the directions", ylabel="share of the variance", ylim=(0, 1.02))


def _history(axes: "Axes", found: Sequence[float]) -> None:
    axes.plot(range(1, len(found) + 1), [100 * x for x in found], color=COLOURS[1], marker="o", markersize=3)
    axes.locator_params(axis="x", integer=True)
    axes.set(xlabel="epoch", ylabel="weights, %")


def _overlap(axes: "Axes", found: Sequence[Mapping[str, Any]]) -> None:
    for i, other in enumerate(found[:LAYERS]):
        colour = COLOURS[(i + 1) % len(COLOURS)]
        for key, face in (("jaccard", colour), ("by_chance", "none")):
            places = [(x[key], row) for row, x in enumerate(other["layers"]) if x[key] is not None]
            if places:
                axes.scatter(*zip(*places, strict=True), edgecolors=colour, facecolors=face)
    name_rows(axes, [x["name"] for x in found[0]["layers"]])
    axes.set(xlabel="|A∩B| / |A∪B| (empty: by chance)")


def said(name: str, found: Any) -> str:
    """What there is to say of an analysis in words."""
    if name == "coefficients":
        return f"{found['text']}.".capitalize()
    if name == "spectrum":
        return " ".join(f"{layer['name']}: {layer['note']}." for layer in found if layer["note"])
    if name == "overlap":
        return " ".join(
            f"With {x['other']}: {x['jaccard']:.3f} (by chance {x['by_chance']:.3f}); of the weights that are left "
            f"{x['kept']:.3f} ({x['kept_by_chance']:.3f})."
            for x in found
        )
    return ""


PICTURES: Table[Kind] = Table(
    "picture",
    {
        "coefficients": Kind(
            "λ against |w|",
            "The paper saw λ rise with |w|: large weights go free.",
            _coefficients,
        ),
        "layers": Kind(
            "Sparsity by layer",
            "The paper saw whole layers nearly pruned away.",
            _layers,
            by_layer=True,
        ),
        "spectrum": Kind(
            "Spectra of the layers' outputs",
            "The paper saw that few directions hold nearly all variance: sparse layers have low rank.",
            _spectrum,
        ),
        "history": Kind(
            "Under the final threshold, by epoch",
            "The paper saw that adaptive penalties push weights to zero more slowly than L1 does.",
            _history,
        ),
        "overlap": Kind(
            "Zeros shared with other runs",
            "The paper saw more overlap the sparser a layer is; so would chance, which is shown beside it.",
            _overlap,
            by_layer=True,
        ),
    },
)


def analysis_svg(name: str, found: Any) -> str:
    """A picture to stand in a page."""
    with looks():
        return as_svg(_drawn(name, found))


def analysis_png(name: str, found: Any) -> bytes:
    """A picture as a file of its own, on white."""
    with looks():
        return _as_png(_drawn(name, found))


def strengths_png(found: Sequence[Strengths]) -> bytes:
    """Accuracy over strengths as a file of its own, on white."""
    with looks():
        figure, axes = picture(left=0.17)
        draw_strengths(axes, [each.line(place) for place, each in enumerate(found)], [each.label for each in found])
        axes.set(ylabel="accuracy, %")
        return _as_png(figure, bbox="tight")  # the legend stands beside the axes


def _as_png(figure: "Figure", bbox: str | None = None) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160, facecolor="white", bbox_inches=bbox)
    return buffer.getvalue()


def contact_sheet(images: Sequence[Any], captions: Sequence[str], columns: int = 9) -> bytes:
    """Images (bytes: row, column, channel) beside each other, each with a caption, as a PNG."""
    from matplotlib.figure import Figure

    rows = -(-len(images) // columns)
    with looks():
        figure = Figure(figsize=(columns * 0.9, rows * 1.3), facecolor="white")
        for i, (image, caption) in enumerate(zip(images, captions, strict=True)):
            axes = figure.add_subplot(rows, columns, i + 1, xticks=[], yticks=[], frameon=False)
            axes.imshow(image if image.shape[-1] == 3 else image[..., 0], cmap="gray_r", interpolation="nearest")
            axes.set_title(caption, fontsize=8, pad=2)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=110, bbox_inches="tight")
        return buffer.getvalue()


def _drawn(name: str, found: Any) -> Any:
    kind = PICTURES[name]
    rows = len(found[0]["layers"] if name == "overlap" else found) if kind.by_layer else 0
    height = {"height": row_height(rows), "left": 0.3} if kind.by_layer else {"left": 0.17}
    figure, axes = picture(**height)
    kind.draw(axes, found)
    return figure
