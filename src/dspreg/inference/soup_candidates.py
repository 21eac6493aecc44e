"""Weights that were never trained as they are, evaluated as training evaluates a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from dspreg.config.train_config import CHANNELS_LAST, Execution
from dspreg.data import DomainDataset
from dspreg.data.fingerprint import fingerprint
from dspreg.data.loader import XY, DomainSplit, reader_processes
from dspreg.data.readers import iterate_batches
from dspreg.devices import send
from dspreg.errors import DataError
from dspreg.inference.adapt_bn import Shuffled
from dspreg.inference.seen_images import split_source
from dspreg.networks.batch_norm import estimating_statistics, moves_statistics
from dspreg.protocol.description import RunDescription
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.training.evaluate import tallies
from dspreg.training.model import build_stack, load_tensors, tensors_of
from dspreg.training.parts import digests, evaluated_parts, randomness_key, split_domain
from dspreg.training.stored_model import transform_of

MOST_BATCHES = 500  # of images that running statistics of batch norm are taken from


class Candidates:
    """One network, into which weights are loaded and scored.

    Args:
        how: How the network is built.
        trained: What the members are, with the trials of all of them.
        data: Their data set.
        execution: Device, threads and processes that read.
        on_image: Called with the number of images of every part that was scored.

    Raises:
        DataError: The images are not those the members were trained on, or no image of a source was held out by all.
    """

    def __init__(
        self,
        how: Mapping[str, Any],
        trained: RunDescription,
        data: DomainDataset,
        execution: Execution,
        on_image: Callable[[int], None] = lambda _: None,
    ):
        self.trained, self.execution, self.on_image = trained, execution, on_image
        self.config = trained.config
        self.stack = build_stack(how, execution.device)
        self._plain = replace(transform_of(how), channels_last=execution.layout == CHANNELS_LAST)
        data.read_as(self._plain.reading)
        self.images = {name: data.domain(name) for name in data.domains}
        self._require_same_images(data)
        self.splits = {name: self._split(name) for name in trained.domains}
        self.workers = reader_processes(execution.workers, data.small)
        self.refreshes = moves_statistics(self.stack.train().net)  # built anew, it is only evaluated afterwards

    def _require_same_images(self, data: DomainDataset) -> None:
        found = {name: fingerprint(images) for name, images in self.images.items()}
        for name, expected in self.trained.fingerprints.items():
            said = digests({name: self.images[name]}, self.config) if name in self.images else {}
            if found.get(name) != expected or said.get(name, "") != self.trained.annotations.get(name, ""):
                raise DataError(
                    f"{data.name} has not the images of the domain {name!r} that the runs were trained with, so that "
                    "it is not known which of them are held out. Give the data set with --dataset and --root"
                )

    def _split(self, name: str) -> tuple[list[int], list[int]]:
        if name in self.config.targets:  # of which no member saw anything
            return split_domain(self.images[name], self.config, self.trained.domains.index(name))
        seen, out = split_source(self.trained, self.images[name], name)
        if not out:
            raise DataError(
                f"no image of the domain {name!r} was held out by all members, which are of "
                f"{len(self.trained.trials)} trials, so that nothing can be said about their average. Take runs of "
                "fewer trials"
            )
        return seen, out

    @property
    def sizes(self) -> dict[str, dict[str, int]]:
        return {name: {"in": len(seen), "out": len(out)} for name, (seen, out) in self.splits.items()}

    def prepare(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The weights as they are saved: where batch norm is not frozen, with running statistics of their own."""
        if not self.refreshes:
            return dict(tensors)
        load_tensors(self.stack, tensors, "the average")
        parts = [self._part(name, "in", augment=False) for name in self.trained.sources]
        batches = MixedBatches(parts, self.config.batch_size)
        order = range(min(MOST_BATCHES, len(batches)))
        with evaluation_mode(self.stack):  # gives every buffer back, after they were copied
            with (
                estimating_statistics(self.stack.net),
                torch.no_grad(),
                closing(iterate_batches(batches, order, self.workers)) as read,
            ):
                for x, _ in read:
                    self.stack.predict(parts[0].transform.normalise(send(x, self.execution.device)))
            return tensors_of(self.stack)

    def validation(self, tensors: Mapping[str, Tensor], step: int) -> float:
        """The mean over sources of the accuracy on their held-out images, as training selects by."""
        scored = self._accuracy(tensors, [(name, "out") for name in self.trained.sources], step)
        return self._mean(scored)

    def record(self, tensors: Mapping[str, Tensor], step: int, log: Mapping[str, float], last: bool) -> dict[str, Any]:
        """One line of records.jsonl."""
        started = time.perf_counter()
        parts = evaluated_parts(self.trained.domains, self.config, last=last)
        accuracy = self._accuracy(tensors, parts, step)
        return {
            "step": step,
            "log": dict(log),
            "accuracy": accuracy,
            "validation": self._mean(accuracy),
            "weights": dict(self.trained.weights),
            "seconds": {"step_seconds": 0.0, "evaluate_seconds": time.perf_counter() - started},
        }

    def _mean(self, accuracy: Mapping[str, Mapping[str, float]]) -> float:
        return sum(accuracy[name]["out"] for name in self.trained.sources) / len(self.trained.sources)

    def _accuracy(
        self, tensors: Mapping[str, Tensor], chosen: Sequence[tuple[str, str]], step: int
    ) -> dict[str, dict[str, float]]:
        load_tensors(self.stack, tensors, "the average")
        augmented = self.config.augment_validation
        parts = [self._part(n, which, augment=augmented and n not in self.config.targets) for n, which in chosen]
        counted = tallies(
            self.stack,
            parts,
            size=self.config.evaluation_batch,
            key=(*randomness_key(self.config.dataset, self.config), step, "evaluate"),
            device=self.execution.device,
            workers=self.workers,
        )
        found: dict[str, dict[str, float]] = {}
        for (name, which), tally in zip(chosen, counted, strict=True):
            found.setdefault(name, {})[which] = tally.accuracy
            self.on_image(tally.total)
        return found

    def _part(self, name: str, which: str, *, augment: bool) -> DomainSplit:
        positions = self.splits[name][("in", "out").index(which)]
        shown = replace(self._plain, augment=self.config.validation_augment) if augment else self._plain
        return DomainSplit(name, self.images[name], positions, shown)


@dataclass(frozen=True)
class MixedBatches:
    """The n-th batch with as many images of every part, shuffled; those of a small part come round again."""

    parts: Sequence[DomainSplit]
    size: int

    def __len__(self) -> int:
        return max(len(Shuffled(part, self.size)) for part in self.parts)

    def __getitem__(self, n: int) -> XY:
        orders = [Shuffled(part, self.size) for part in self.parts]
        drawn = [order[n % len(order)] for order in orders]
        return torch.cat([x for x, _ in drawn]), torch.cat([y for _, y in drawn])
