"""The node agent: reads the kernel log and the GPUs of its node, and writes its NodeHealth and heartbeat."""
