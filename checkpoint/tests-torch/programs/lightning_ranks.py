"""A Lightning training; every batch is the same, so that the weights tell how many steps were made."""

import argparse
import os
import time
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer
from torch.utils.data import DataLoader

from everstep_checkpoint.lightning import EverstepCallback

parser = argparse.ArgumentParser()
parser.add_argument("--dir", type=Path)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--ranks", type=int, default=1)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--fail", action="store_true")
args = parser.parse_args()
os.environ.setdefault("LOCAL_RANK", os.environ.get("RANK", "0"))


class Model(LightningModule):
    def __init__(self):
        super().__init__()
        torch.manual_seed(1)
        self.layer = torch.nn.Linear(4, 1)

    def training_step(self, batch, index):
        time.sleep(0.02)
        if args.fail and self.trainer.global_step == 5:
            raise RuntimeError("out of memory")
        (args.dir / "steps").write_text(str(self.trainer.global_step))
        return self.layer(batch).square().mean()

    def validation_step(self, batch, index):
        (args.dir / "validated").touch()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


args.dir.mkdir(exist_ok=True)
data = DataLoader(torch.ones(400, 4), batch_size=2)
callback = EverstepCallback(args.dir, grace=60.0)
model = Model()
trainer = Trainer(
    max_steps=args.steps, accelerator="cpu", devices=args.ranks, strategy="ddp" if args.ranks > 1 else "auto",
    callbacks=[callback], logger=False, enable_checkpointing=False, enable_progress_bar=False,
    enable_model_summary=False, accumulate_grad_batches=args.accumulate, min_epochs=1,
    use_distributed_sampler=False, num_sanity_val_steps=0, default_root_dir=args.dir,
)  # fmt: skip
trainer.fit(model, data, DataLoader(torch.ones(4, 4)), ckpt_path=callback.resume_path(), weights_only=False)
weights = [value.hex() for value in model.layer.weight.detach().double().flatten().tolist()]
print(f"step {trainer.global_step} {weights}")
