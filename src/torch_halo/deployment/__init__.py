"""Smaller files and faster inference out of pruned models."""

from torch_halo.deployment.compressed import Compressed, compress, load_compressed
from torch_halo.deployment.deploying import Deployed, deploy
from torch_halo.deployment.removal import Removal, remove_dead

__all__ = ["Compressed", "Deployed", "Removal", "compress", "deploy", "load_compressed", "remove_dead"]
