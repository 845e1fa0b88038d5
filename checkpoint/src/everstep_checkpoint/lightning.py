"""A callback for Lightning: stops at one agreed step, resumes from what was verified.

    callback = EverstepCallback("/checkpoints/run1", grace=120)
    trainer = Trainer(callbacks=[callback], plugins=[SLURMEnvironment(auto_requeue=False)])   # the plugin under Slurm
    trainer.fit(model, ckpt_path=callback.resume_path())

Steps are optimizer steps (`trainer.global_step`). Lightning resumes the position in the data only for loaders with a
state (torchdata's StatefulDataLoader). Tested with lightning 2.6.
"""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback

from .callback import AttachedCallback

FILE = "lightning.ckpt"


class EverstepCallback(AttachedCallback, Callback):  # type: ignore[misc]
    """Give it to the Trainer on every rank. Arguments as those of `attach`."""

    _last = -1

    def resume_path(self) -> str | None:
        """The file for `ckpt_path`, verified, equal on all ranks; None for a fresh start."""
        folder = super().resume_path()
        return f"{folder}/{FILE}" if folder is not None else None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self.check_ranks(trainer.global_rank, trainer.world_size)
            self.enter()

    def on_sanity_check_start(self, trainer: Any, pl_module: Any) -> None:
        # Lightning's own handler would raise in the middle of the step, on this rank alone.
        self.run.own_signals()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.run.own_signals()
        self._last = int(trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        step, run = int(trainer.global_step), self.run
        if step == self._last:
            return  # gradients are being accumulated: this is no boundary
        self._last = step
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        run.report(step)
        if run.wants_loss() and loss is not None:  # at most once a second: reading a loss waits for the GPU
            run.report_loss(step, float(loss))
        if run.should_save(step):
            folder = run.begin(step)
            trainer.save_checkpoint(folder / FILE)
            run.commit(step)
        if run.should_stop(step):
            self._stop(trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.leave("failed", f"{type(exception).__name__}: {exception}")

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if stage == "fit":
            self.leave(None)

    @staticmethod
    def _stop(trainer: Any) -> None:
        """End the fit after this batch: no minimum of steps, and no validation on the way out, may hold it up."""
        trainer.fit_loop.min_epochs = None
        trainer.fit_loop.epoch_loop.min_steps = None
        trainer.limit_val_batches = 0
        trainer.should_stop = True
