"""Lightning: DSP-Reg as a callback, with automatic optimisation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import lightning
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import Tensor, nn

from dspreg.errors import ConfigError
from dspreg.penalty.penalty import Penalty

Domains = Mapping[str, Iterable[Any]]


class PenaltyCallback(lightning.Callback):
    """Adds the gradient of λ Σ c g² to that of `training_step`, in any module with automatic optimisation.

        trainer = lightning.Trainer(callbacks=[PenaltyCallback(lambda: loaders, every=200, weight=1e-3)])

    `training_step` is the closure of `dspreg.Penalty`: it may be called more than once for a batch, with the same
    random numbers and the same buffers. Only the first call logs. What else it changes, such as a list of its own, is
    changed by every call. Clipping, schedules and checkpoints work as before; the state is in Lightning's checkpoints.

    With `accumulate_grad_batches=k` the step is along the mean of the k penalised gradients. The penalty is quadratic,
    so it is not the penalty of the k batches as one.

    Args:
        domains: Makes loaders of (x, y) by domain, at least two, on which c is measured. None: c stays 1.
        every: Steps of the optimiser between two measurements of c; 0: never.
        network: What of the module maps x to logits; by default the module itself, called as `module(x)`.
        measure: Keywords of `dspreg.measure`, such as `{"null": False}`.
        options: Of `dspreg.Penalty`: `weight`, `engine`, `only`, `exclude`, `warmup`, `refresh_memory`.
    """

    def __init__(
        self,
        domains: Callable[[], Domains] | None = None,
        *,
        every: int = 0,
        network: Callable[[Any], nn.Module] = lambda module: module,
        measure: Mapping[str, Any] | None = None,
        **options: Any,
    ):
        if every and domains is None:
            raise ConfigError(f"every={every} without domains: give a function that makes loaders by domain")
        self.domains, self.every, self.network = domains, every, network
        self.measure, self.options = dict(measure or {}), options
        self.penalty: Penalty | None = None
        self._state: dict[str, Any] | None = None  # of a checkpoint, until there is a penalty
        self._computed: list[tuple[nn.Parameter, Tensor]] = []

    def on_fit_start(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule) -> None:
        if not pl_module.automatic_optimization:
            raise ConfigError("the module optimises by hand; call penalty.backward in its training_step instead")
        if not isinstance(trainer.strategy, SingleDeviceStrategy):
            raise ConfigError(
                f"the trainer runs with {type(trainer.strategy).__name__}; wanted one device. For several, optimise by "
                "hand, with a dspreg.Penalty of the wrapped model"
            )
        if getattr(trainer.precision_plugin, "scaler", None) is not None:
            raise ConfigError("precision 16-mixed scales the loss, which this callback does not; use bf16-mixed or 32")
        if self.penalty is None or self.penalty.model is not self.network(pl_module):
            self.penalty = Penalty(self.network(pl_module), **self.options)
        if self._state is not None:
            self.penalty.load_state_dict(self._state)
            self._state = None
        step = pl_module.training_step
        pl_module.training_step = lambda *given, **named: self._step(  # type: ignore[method-assign]
            pl_module, step, given, named
        )
        pl_module.backward = lambda loss, *_, **__: self._add(trainer)  # type: ignore[method-assign]  # noqa: ARG005

    def on_train_batch_start(self, trainer: lightning.Trainer, *given: Any) -> None:
        """Measures c, before the first batch of a step that is due."""
        _, _, number = given  # module, batch and its position
        step, first = trainer.global_step, number % trainer.accumulate_grad_batches == 0
        if self.domains is not None and self.every and step and step % self.every == 0 and first:
            assert self.penalty is not None
            self.penalty.refresh(self.domains(), **self.measure)

    def _step(
        self, module: lightning.LightningModule, step: Callable[..., Any], given: Any, named: Mapping[str, Any]
    ) -> Any:
        """What `training_step` returns at θ; the gradient is put aside, since Lightning clears `.grad` only then."""
        assert self.penalty is not None
        calls = 0

        def closure() -> tuple[Tensor, Any]:
            nonlocal calls
            calls += 1
            with silenced(module, calls > 1):
                out = step(*given, **named)
            loss = out["loss"] if isinstance(out, Mapping) else out
            if loss is None:
                raise ConfigError("training_step returned None; a penalised step needs its loss")
            return loss, out

        params = list(module.parameters())
        before = [p.grad for p in params]
        for p in params:
            p.grad = None
        try:
            loss, out = self.penalty.backward(closure)
            self._computed = [(p, p.grad) for p in params if p.grad is not None]
        finally:
            for p, grad in zip(params, before, strict=True):
                p.grad = grad
        return {**out, "loss": loss} if isinstance(out, Mapping) else loss

    def _add(self, trainer: lightning.Trainer) -> None:
        """In place of `loss.backward()`."""
        k = trainer.accumulate_grad_batches
        for p, grad in self._computed:
            share = grad if k == 1 else grad / k
            p.grad = share if p.grad is None else p.grad + share
        self._computed = []

    def teardown(self, trainer: lightning.Trainer, pl_module: lightning.LightningModule, stage: str) -> None:  # noqa: ARG002
        for name in ("training_step", "backward"):
            vars(pl_module).pop(name, None)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.penalty is None else self.penalty.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._state = state_dict or None


class silenced:
    """Inside, the module logs nothing, if `quiet`."""

    def __init__(self, module: lightning.LightningModule, quiet: bool):
        self.module, self.quiet = module, quiet

    def __enter__(self) -> None:
        if self.quiet:
            for name in ("log", "log_dict"):
                vars(self.module)[name] = lambda *_, **__: None

    def __exit__(self, *_: object) -> None:
        if self.quiet:
            for name in ("log", "log_dict"):
                vars(self.module).pop(name, None)
