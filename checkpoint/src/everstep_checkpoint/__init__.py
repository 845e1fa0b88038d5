"""Save on SIGTERM at one agreed step, resume from the newest verified checkpoint, prove what was lost."""

from .errors import CheckpointError, InvalidCheckpointError, RendezvousError, StateMismatchError, SupersededError
from .run import Every, Run
from .state import arrays
from .vault import Checkpoint, verify
from .world import World

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "Every",
    "InvalidCheckpointError",
    "RendezvousError",
    "Run",
    "StateMismatchError",
    "SupersededError",
    "World",
    "arrays",
    "verify",
]
