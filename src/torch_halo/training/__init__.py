"""Training: one loop, evaluation, checkpoints that survive a crash, runs in folders."""
