"""Draw docs/demo.png and print the README's table, both from results/demo.json.

halo demo --json results/demo.json && python docs/picture.py
"""

from pathlib import Path

from torch_halo.experiments.demo import from_json
from torch_halo.report import demo_picture, demo_table

ROOT = Path(__file__).parent.parent


def table() -> str:
    """The demo's table in Markdown, without the strengths."""
    header, body = demo_table(from_json((ROOT / "results/demo.json").read_text()))
    lines = [[row[0], *row[2:]] for row in [header, ["---"] * len(header), *body]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    rows = from_json((ROOT / "results/demo.json").read_text())
    demo_picture(rows).savefig(ROOT / "docs/demo.png", dpi=100)
    print(table())
