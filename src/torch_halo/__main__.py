"""`python -m torch_halo` is the `halo` command."""

import sys

from torch_halo.cli import main

sys.exit(main())
