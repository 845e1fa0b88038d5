"""Every error the SDK raises, drawn as one tree: catch `CheckpointError` to catch them all."""


class CheckpointError(Exception):
    """Something about checkpoints is wrong; the message says what, and how to mend it."""


class InvalidCheckpointError(CheckpointError):
    """A directory with a checkpoint's name does not hold what its manifest promises."""


class UnreadableCheckpointError(InvalidCheckpointError):
    """A checkpoint cannot be read now, or may not be trusted here: it is not used, and keeps its name."""


class StateMismatchError(CheckpointError):
    """The checkpoint is sound, but it does not fit the state objects or the number of ranks of this run."""


class RendezvousError(CheckpointError):
    """The ranks of this job did not find each other on the SDK's side channel."""


class SupersededError(CheckpointError):
    """A newer attempt of the same run took the directory over; this attempt may not publish there any more."""


class GivenUpError(CheckpointError):
    """A save in progress was given up for one that matters more."""
