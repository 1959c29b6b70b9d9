"""Ways to a sparse network, ours and others', behind one signature.

>>> method = METHODS["gmp"](every=50)
>>> method.end
0.75
"""

from torch_halo.methods.base import Method
from torch_halo.methods.sparsify import Sparse, sparsify
from torch_halo.methods.table import METHODS, kind_of, method_of

__all__ = ["METHODS", "Method", "Sparse", "kind_of", "method_of", "sparsify"]
