"""DSP-Reg in the Hugging Face Trainer: a subclass whose `training_step` calls `penalty.backward`.

    python examples/with_transformers.py

A small ViT of transformers, from scratch, with its fused attention; and the same steps in a plain loop beside it.
"""

import tempfile

import torch
from own_loop import REFRESH, data, difference, loader
from torch.utils.data import DataLoader, Subset
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

import dspreg

STEPS = 30


def named(pairs):
    """Images and labels under the names that transformers' models know."""
    x, y = (torch.stack(list(part)) for part in zip(*pairs, strict=True))
    return {"pixel_values": x, "labels": y}


def to_measure_on(domains):
    return {name: DataLoader(Subset(each, range(64)), 32, collate_fn=named) for name, each in domains.items()}


def network():
    torch.manual_seed(0)
    size = {"image_size": 28, "patch_size": 7, "hidden_size": 32, "intermediate_size": 64}
    return ViTForImageClassification(ViTConfig(**size, num_hidden_layers=2, num_attention_heads=4, num_labels=10))


class Penalised(Trainer):
    def __init__(self, *arguments, domains, **options):
        super().__init__(*arguments, **options)
        self.domains = domains
        self.penalty = dspreg.Penalty(self.model, weight=1e-2, engine="lookahead")

    def training_step(self, model, inputs, num_items_in_batch=None):  # noqa: ARG002
        model.train()
        inputs = self._prepare_inputs(inputs)
        if (step := self.state.global_step) and step % REFRESH == 0:
            self.penalty.refresh(to_measure_on(self.domains), null=False)
        return self.penalty.backward(lambda: self.compute_loss(model, inputs), scaler=self.accelerator.scaler)

    def get_train_dataloader(self):
        batches = loader(self.domains)
        batches.collate_fn = named
        return batches


def plain(domains):
    model = network().train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0)
    penalty = dspreg.Penalty(model, weight=1e-2, engine="lookahead")
    batches = loader(domains)
    batches.collate_fn = named
    torch.manual_seed(1)
    for step, inputs in zip(range(STEPS), batches, strict=False):
        if step and step % REFRESH == 0:
            penalty.refresh(to_measure_on(domains), null=False)
        penalty.backward(lambda: model(**inputs).loss)  # noqa: B023
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model


if __name__ == "__main__":
    domains = data()
    with tempfile.TemporaryDirectory() as out:
        how = TrainingArguments(
            out, max_steps=STEPS, learning_rate=3e-3, weight_decay=0.0, lr_scheduler_type="constant", seed=1,
            optim="adamw_torch", use_cpu=True, report_to=[], save_strategy="no", logging_strategy="no",
            disable_tqdm=True,
        )  # fmt: skip
        trainer = Penalised(network(), how, domains=domains)
        trainer.train()
    far = difference(trainer.model, plain(domains))
    print(f"Trainer: {trainer.penalty.steps} steps, largest difference to the plain loop {far:g}")
