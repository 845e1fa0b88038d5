"""From evidence to faults: what belongs together, what repeats, and what is the job's or the storage's doing.

Everything here is a pure function on values that can be stored as they are. ``casebook`` is one node's state,
``fleet`` looks across nodes.
"""
