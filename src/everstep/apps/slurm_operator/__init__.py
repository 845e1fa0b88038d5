"""Turns each SlurmCluster into a running Slurm."""
