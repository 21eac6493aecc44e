"""transformers: a Trainer whose steps are along the penalised gradient."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn
from transformers import Trainer

from dspreg.errors import ConfigError
from dspreg.io.atomic_files import read_regular_file, write
from dspreg.penalty.penalty import Penalty
from dspreg.training.serialization import pack, unpack

FILE, FORMAT = "dspreg_penalty.safetensors", "dspreg.penalty/1"


class PenaltyTrainer(Trainer):
    """A `Trainer` with DSP-Reg; all other arguments are the Trainer's.

        trainer = PenaltyTrainer(model, arguments, train_dataset=data, penalty={"weight": 1e-3},
                                 domains=lambda: {"news": loader_1, "mail": loader_2}, every=200)

    The loss is evaluated more than once for a batch, with the same random numbers. The state of the penalty is in the
    Trainer's checkpoints. Gradient accumulation is refused: the penalty of a sum is no sum of penalties.

    Args:
        penalty: Options of `dspreg.Penalty`.
        domains: Makes loaders by domain, at least two, on which c is measured: of dictionaries with `labels`, or pairs.
            None: c stays 1.
        every: Steps between two measurements of c; 0: never.
        measure: Keywords of `dspreg.measure`, such as `{"null": False}`.
    """

    def __init__(
        self,
        *given: Any,
        penalty: Mapping[str, Any] | None = None,
        domains: Callable[[], Mapping[str, Iterable[Any]]] | None = None,
        every: int = 0,
        measure: Mapping[str, Any] | None = None,
        **named: Any,
    ):
        super().__init__(*given, **named)
        if self.args.gradient_accumulation_steps > 1:
            raise ConfigError(
                f"gradient_accumulation_steps={self.args.gradient_accumulation_steps}; wanted 1: the penalty of a sum "
                "of batches is no sum of their penalties. Use a larger per_device_train_batch_size"
            )
        if self.args.n_gpu > 1 or self.is_fsdp_enabled or self.is_deepspeed_enabled:
            raise ConfigError("wanted one device, or several by DistributedDataParallel (torchrun)")
        if every and domains is None:
            raise ConfigError(f"every={every} without domains: give a function that makes loaders by domain")
        self.options, self.domains, self.every, self.measure = dict(penalty or {}), domains, every, dict(measure or {})
        self.penalty: Penalty | None = None
        self.saved: Path | None = None  # a checkpoint that is resumed

    def training_step(
        self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        """As the Trainer's, with `penalty.backward` in place of `accelerator.backward`."""
        model.train()
        penalty = self._penalty_of(model)
        if callable(turn := getattr(self.optimizer, "train", None)):  # schedule-free optimisers have two modes
            turn()
        inputs = self._prepare_inputs(inputs)
        step = self.state.global_step
        if self.every and self.domains is not None and step and step % self.every == 0:
            penalty.refresh(self.domains(), **self.measure)

        def closure() -> Tensor:
            with self.compute_loss_context_manager():
                loss = self.compute_loss(model, inputs, num_items_in_batch=num_items_in_batch)
            return cast(Tensor, loss)

        loss: Tensor = penalty.backward(closure, scaler=self.accelerator.scaler)
        return loss

    def _penalty_of(self, model: nn.Module) -> Penalty:
        """Of the model as it is called, which the Trainer may have wrapped."""
        if self.penalty is None or self.penalty.model is not model:
            self.penalty = Penalty(model, **self.options)
        if self.saved is not None:
            self.penalty.load_state_dict(unpack(read_regular_file(self.saved), str(self.saved))[0])
            self.saved = None
        return self.penalty

    def _save_checkpoint(self, *given: Any, **named: Any) -> None:
        super()._save_checkpoint(*given, **named)
        folder = Path(self._get_output_dir(trial=None)) / f"checkpoint-{self.state.global_step}"
        if self.penalty is not None and self.args.should_save and folder.is_dir():
            write(folder / FILE, pack(self.penalty.state_dict(), format=FORMAT))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, *given: Any, **named: Any) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, *given, **named)
        path = Path(resume_from_checkpoint) / FILE
        if not path.exists():
            raise ConfigError(f"{path.parent} has no {FILE}: it is a checkpoint of another Trainer")
        self.saved = path
