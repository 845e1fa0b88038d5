"""What runs first in each container of a Slurm cluster: puts keys in place, then becomes the daemon."""
