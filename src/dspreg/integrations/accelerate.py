"""accelerate: `backward(accelerator, penalty, closure)` in place of `accelerator.backward(loss)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accelerate import Accelerator
from accelerate.utils import DistributedType

from dspreg.errors import ConfigError
from dspreg.penalty.penalty import Penalty

KNOWN = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)  # one process, or DDP


def backward(accelerator: Accelerator, penalty: Penalty, closure: Callable[[], Any]) -> Any:
    """Add the penalised gradient to `.grad`; returns what `penalty.backward` does, the loss not divided by anything.

        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        penalty = dspreg.Penalty(model, weight=1e-3)             # after prepare: the model as it is called
        accelerator.register_for_checkpointing(penalty)          # save_state and load_state know it
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = backward(accelerator, penalty, lambda: criterion(model(x), y))
                optimizer.step()
                optimizer.zero_grad()

    With gradient accumulation over k batches the sum is that of the mean loss and of the mean penalty of the k batches.
    The penalty is quadratic, so it is not the penalty of the k batches as one: a list of closures is, in one call.
    """
    if accelerator.distributed_type not in KNOWN:
        raise ConfigError(
            f"accelerate runs with {accelerator.distributed_type}; wanted one process or DistributedDataParallel: a "
            "shard of a parameter can't be displaced by what lies in another"
        )
    k, weight = accelerator.gradient_accumulation_steps, penalty.weight
    if k == 1:
        return penalty.backward(closure, scaler=accelerator.scaler)
    unscaled: list[Any] = []

    def share() -> Any:
        result = closure()
        loss, *others = result if isinstance(result, tuple) else (result,)
        if not unscaled:
            unscaled.append(loss.detach())
        return (loss / k, *others) if others else loss / k

    penalty.weight = weight * k  # λk Σ c (g/k)² is the k-th part of λ Σ c g²
    try:
        result = penalty.backward(share, scaler=accelerator.scaler)
    finally:
        penalty.weight = weight
    return (unscaled[0], *result[1:]) if isinstance(result, tuple) else unscaled[0]
