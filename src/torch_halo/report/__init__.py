"""Reports: one HTML file out of what was run."""

from torch_halo.report.demo import demo_html, demo_picture, demo_table

__all__ = ["demo_html", "demo_picture", "demo_table"]
