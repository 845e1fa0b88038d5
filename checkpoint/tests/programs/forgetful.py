"""The numpy example with a restore that forgets something: the proofs of equal trajectories must notice."""

import importlib.util
import os
import sys
from pathlib import Path

from everstep_checkpoint import state

path = Path(__file__).parents[3] / "examples" / "train.py"
spec = importlib.util.spec_from_file_location("train", path)
train = importlib.util.module_from_spec(spec)
spec.loader.exec_module(train)

match os.environ["FORGET"]:
    case "random":
        state._put_random_states = lambda states: None
    case "data":
        train.Shuffled.load_state_dict = lambda self, saved: None
    case "momentum":

        class Forgetful(state.arrays):
            def load_state_dict(self, saved):
                if set(saved) == {"w1", "b1", "w2", "b2"} and not hasattr(Forgetful, "seen"):
                    Forgetful.seen = True  # the weights come first, the velocity second
                    super().load_state_dict(saved)

        train.arrays = Forgetful
    case "nothing":
        pass
    case other:
        sys.exit(f"forget what? {other}")

train.main()
