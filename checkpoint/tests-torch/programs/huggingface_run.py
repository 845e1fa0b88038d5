"""A training with the Hugging Face Trainer, on data in a fixed order."""

import argparse
import time
from pathlib import Path

import torch
from transformers import Trainer, TrainingArguments

from everstep_checkpoint.huggingface import EverstepCallback

parser = argparse.ArgumentParser()
parser.add_argument("--dir", type=Path)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--every", type=int, default=0)
args = parser.parse_args()


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x, y):
        time.sleep(0.02)
        return {"loss": (torch.nn.functional.dropout(self.layer(x), 0.3) - y).square().mean()}


torch.manual_seed(5)
data = [{"x": torch.randn(4), "y": torch.randn(1)} for _ in range(64)]
settings = TrainingArguments(
    output_dir=str(args.dir / "trainer"), max_steps=args.steps, per_device_train_batch_size=4, logging_steps=1,
    save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True, seed=3, learning_rate=1e-2,
)  # fmt: skip
callback = EverstepCallback(args.dir, grace=60.0, every=None)
trainer = Trainer(Model(), settings, train_dataset=data, callbacks=[callback])
trainer.train(resume_from_checkpoint=callback.resume_path())
weights = [value.hex() for value in trainer.model.layer.weight.detach().double().flatten().tolist()]
print(f"step {trainer.state.global_step} {weights}")
