"""DSP-Reg with accelerate: `penalty.backward` in place of `accelerator.backward`, nothing else.

    python examples/with_accelerate.py

`accelerator.scaler` is None unless mixed precision is fp16. Several processes: `accelerate launch`, as usual.
"""

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from own_loop import REFRESH, STEPS, data, difference, loader, network, to_measure_on, train

import dspreg


def main():
    accelerator = Accelerator(cpu=True)
    domains, model = data(), network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader(domains))
    penalty = dspreg.Penalty(model, weight=1e-2, engine="lookahead")  # after prepare: the model as it is called
    torch.manual_seed(1)
    for step, (x, y) in zip(range(STEPS), batches, strict=False):
        if step and step % REFRESH == 0:
            penalty.refresh(to_measure_on(domains), null=False)
        penalty.backward(lambda: F.cross_entropy(model(x), y), scaler=accelerator.scaler)  # noqa: B023
        optimizer.step()
        optimizer.zero_grad()
    return accelerator.unwrap_model(model), penalty


if __name__ == "__main__":
    model, penalty = main()
    print(f"accelerate: {penalty.steps} steps, largest difference to the plain loop {difference(model, train()):g}")
