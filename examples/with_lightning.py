"""DSP-Reg in Lightning: `penalty.backward` in place of `self.manual_backward`, nothing else.

python examples/with_lightning.py
"""

import lightning
import torch
import torch.nn.functional as F
from own_loop import REFRESH, STEPS, data, difference, loader, network, to_measure_on, train

import dspreg


class Digits(lightning.LightningModule):
    def __init__(self, domains):
        super().__init__()
        self.automatic_optimization = False  # a step of ours may take two passes
        self.model, self.domains = network(), domains
        self.penalty = dspreg.Penalty(self.model, weight=1e-2, engine="lookahead")

    def training_step(self, batch, step):
        x, y = batch
        optimizer = self.optimizers()
        if step and step % REFRESH == 0:
            self.penalty.refresh(to_measure_on(self.domains), null=False)
        loss = self.penalty.backward(lambda: F.cross_entropy(self.model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        self.log("loss", loss)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.model.parameters(), lr=3e-3)

    def on_save_checkpoint(self, checkpoint):
        checkpoint["penalty"] = self.penalty.state_dict()

    def on_load_checkpoint(self, checkpoint):
        self.penalty.load_state_dict(checkpoint["penalty"])


if __name__ == "__main__":
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    domains = data()
    module = Digits(domains)
    trainer = lightning.Trainer(max_steps=STEPS, accelerator="cpu", **quiet)
    torch.manual_seed(1)
    trainer.fit(module, loader(domains))
    far = difference(module.model, train())
    print(f"Lightning: {module.penalty.steps} steps, largest difference to the plain loop {far:g}")
