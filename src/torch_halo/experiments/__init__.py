"""Experiments: named lists of runs, and what came out of them."""
