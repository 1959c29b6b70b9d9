"""Stands before torchmetrics in the processes that tests start.

lightning-fabric imports torchmetrics wherever it is installed, and with it transformers: seconds
for each process, which users do not have who install `torch-halo[train]` alone.
"""

__version__ = "0.0"
