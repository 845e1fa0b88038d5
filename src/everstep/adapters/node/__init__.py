"""What else a node says of itself: its journal, its ports, its disks and mounts, and DCGM's exporter."""
