"""Message types of the kubelet's device-plugin protocol, generated; README.md says how."""
