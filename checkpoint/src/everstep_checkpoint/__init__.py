"""Save on SIGTERM at one agreed step, resume from the newest verified checkpoint, prove what was lost."""

from .attach import Attached, attach
from .errors import (
    CheckpointError,
    GivenUpError,
    InvalidCheckpointError,
    RendezvousError,
    StateMismatchError,
    SupersededError,
    UnreadableCheckpointError,
)
from .interval import Every
from .manifest import Checkpoint, verify
from .run import Run
from .state import arrays
from .world import World

__all__ = [
    "Attached",
    "Checkpoint",
    "CheckpointError",
    "Every",
    "GivenUpError",
    "InvalidCheckpointError",
    "RendezvousError",
    "Run",
    "StateMismatchError",
    "SupersededError",
    "UnreadableCheckpointError",
    "World",
    "arrays",
    "attach",
    "verify",
]
