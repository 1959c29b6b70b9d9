"""The demo's table, picture and page."""

import io
from typing import TYPE_CHECKING, Any

from torch_halo.experiments.demo import EPOCHS, METHODS, SHOWN, SPARSITIES, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {"dense": "#767676", "L1": "#d9822b", "HALO": "#2458a6"}


def demo_table(rows: list[Row]) -> tuple[list[str], list[list[str]]]:
    """Header and rows: the method, the strength chosen, accuracy at each sparsity."""
    header = ["method", "strength", *(f"{level:.0%}" for level in SPARSITIES)]
    body = []
    for row in rows:
        alone = len(row.runs) == 1  # one network has no spread
        cells = [f"{mean:.1f}" if alone else f"{mean:.1f} ± {spread:.1f}" for mean, spread in row.accuracies()]
        body.append([row.method, f"{row.strength:g}" if row.strength else "", *cells])
    return header, body


def demo_picture(rows: list[Row]) -> "Figure":
    """Accuracy against sparsity, sparsity by layer, and λ against |w|."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    curves, layers, scatter = figure.subplots(1, 3)
    _draw_curves(curves, rows)
    _draw_layers(layers, rows)
    _draw_coefficients(scatter, next(row for row in rows if row.runs[0].coefficients))
    for axes in (curves, layers, scatter):
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def _draw_curves(axes: "Axes", rows: list[Row]) -> None:
    places = range(len(SPARSITIES))
    for row in rows:
        means, spreads = zip(*row.accuracies(), strict=True)
        thick = 2 if row.method == "L1" else 1  # else HALO would hide it
        axes.errorbar(
            places,
            means,
            spreads,
            label=row.method,
            color=COLOURS[row.method],
            marker="o",
            capsize=3,
            linewidth=2 * thick,
            markersize=5 * thick,
        )
    axes.set_xticks(places, [f"{level:.0%}" for level in SPARSITIES])
    axes.set(xlabel="sparsity", ylabel="test accuracy, %", title="Pruned once, no fine-tuning", ylim=(0, 102))
    axes.legend(loc="lower left", frameon=False)


def _draw_layers(axes: "Axes", rows: list[Row]) -> None:
    names = list(rows[0].runs[0].layers)
    width = 0.8 / len(rows)
    for i, row in enumerate(rows):
        shares = [100 * sum(run.layers[name] for run in row.runs) / len(row.runs) for name in names]
        places = [place + (i - (len(rows) - 1) / 2) * width for place in range(len(names))]
        axes.bar(places, shares, width, label=row.method, color=COLOURS[row.method])
    axes.set_xticks(range(len(names)), [f"layer {i + 1}" for i in range(len(names))])
    axes.set(ylabel="weights that are zero, %", title=f"Where the zeros are, at {SHOWN:.0%} overall", ylim=(0, 102))


def _draw_coefficients(axes: "Axes", row: Row) -> None:
    magnitudes, coefficients = zip(*row.runs[0].coefficients, strict=True)
    axes.scatter(magnitudes, coefficients, s=6, color=COLOURS[row.method], alpha=0.5, linewidths=0)
    axes.set(xscale="log", yscale="log", xlabel="|w|", ylabel="λ", title=f"{row.method}: large weights go free")


def demo_html(rows: list[Row], seconds: float) -> str:
    """The page: what was done, the picture, the table."""
    from jinja2 import Environment, PackageLoader

    header, body = demo_table(rows)
    environment = Environment(loader=PackageLoader("torch_halo.report", "templates"), autoescape=True)
    values: dict[str, Any] = {
        "picture": _svg(demo_picture(rows)),
        "header": header,
        "body": body,
        "seeds": len(rows[0].runs),
        "epochs": EPOCHS,
        "grid": max(len(method.strengths) for method in METHODS.values()),
        "seconds": seconds,
    }
    return environment.get_template("demo.html").render(values)


def _svg(figure: "Figure") -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg")
    text = buffer.getvalue()
    return text[text.index("<svg") :]
