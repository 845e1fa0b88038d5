"""The simulated hardware of a lab: machines that fail and come back, GPUs that follow what jobs really do.

One process serves all nodes of a lab. What it is given is in :mod:`~everstep.lab.hardware.settings`, what it runs in
:mod:`~everstep.lab.hardware.service`, how to talk to it in :mod:`~everstep.lab.hardware.client`. A node sees three
files in its ``/run/everstep``: ``kmsg`` (its kernel log), ``gpus.json`` (its driver's word, replaced every second:
mount the folder, not the file) and ``boot_id``.
"""
