"""A callback for the Hugging Face Trainer: stops at one agreed step, resumes from what was verified.

    callback = EverstepCallback("/checkpoints/run1", grace=120)
    trainer = Trainer(model, args, callbacks=[callback], ...)        # save_strategy="no": the callback says when
    trainer.train(resume_from_checkpoint=callback.resume_path())

The Trainer writes its checkpoint as always; once all ranks have, its files are linked into the run's directory, hashed
and published. Tested with transformers 5.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from .callback import AttachedCallback, link_tree


class EverstepCallback(AttachedCallback, TrainerCallback):  # type: ignore[misc]
    """Give it to the Trainer on every rank. Arguments as those of `attach`."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.check_ranks(args.process_index, args.world_size)
        self.enter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step, run = int(state.global_step), self.run
        run.report(step)
        if run.should_save(step):
            control.should_save = True
        if run.should_stop(step):
            control.should_training_stop = True

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.run.report_loss(int(state.global_step), float(logs["loss"]))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Every rank has just written its part of the Trainer's own checkpoint."""
        step = int(state.global_step)
        source = Path(args.output_dir) / f"checkpoint-{step}"
        self.run.begin(step)
        self.run.commit(step, gather=lambda folder: link_tree(source, folder))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.leave(None)
