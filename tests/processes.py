"""Processes that tests start."""

import os
import sys
from pathlib import Path

HALO = [sys.executable, "-m", "torch_halo"]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parent / "without")}
