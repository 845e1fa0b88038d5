"""The gateway beside one Slurm: the only holder of its credential, and the only way in for the controller."""
