"""What the learned sparsity looks like, and what it tells of the data."""

from torch_halo.analysis.coefficients import CoefficientTrend, best_coefficients, coefficients
from torch_halo.analysis.history import history
from torch_halo.analysis.layers import Layer, layers
from torch_halo.analysis.overlap import LayerOverlap, Overlap, overlap
from torch_halo.analysis.spectrum import LayerSpectrum, spectrum
from torch_halo.analysis.suspects import Suspects, suspects

__all__ = [
    "CoefficientTrend",
    "Layer",
    "LayerOverlap",
    "LayerSpectrum",
    "Overlap",
    "Suspects",
    "best_coefficients",
    "coefficients",
    "history",
    "layers",
    "overlap",
    "spectrum",
    "suspects",
]
