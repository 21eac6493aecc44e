"""A trained run on whole domains, and which of their images it may honestly be scored on."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from dspreg.data import DomainDataset
from dspreg.data.base import labels_of
from dspreg.data.fingerprint import fingerprint
from dspreg.data.loader import DomainSplit, SequentialBatches, reader_processes
from dspreg.data.registry import open_dataset
from dspreg.data.transforms import Transform, Unchanged
from dspreg.devices import resolve_device
from dspreg.errors import ConfigError, DataError, DspregError, IntegrityError, Notice, resource_errors
from dspreg.inference.adapt_bn import adapted, batch_norms
from dspreg.inference.load import load, require_classes, step_of
from dspreg.inference.metrics import Scores
from dspreg.io.text import join_few
from dspreg.protocol.description import RunDescription
from dspreg.randomness import generator
from dspreg.runs.folder import RunFolder
from dspreg.training.evaluate import predictions
from dspreg.training.experiment import split_domain

UNSEEN, SOURCE, CHANGED = "unseen", "source", "changed source"


@dataclass(frozen=True)
class DomainScores:
    """One domain with its scores.

    Attributes:
        domain: Its name.
        part: `"all"` images, or the `"out"` split that was held out from training.
        role: `"unseen"` in training; `"source"`, trained on; `"changed source"`, of the name of a source but with
            other images, among which some may have been trained on.
        fingerprint: Of all its images.
        scores: On `part`.
    """

    domain: str
    part: str
    role: str
    fingerprint: str
    scores: Scores


@dataclass(frozen=True)
class RunEvaluation:
    """What `evaluate_run` found. `classes` are the model's, and what rows and columns of a confusion stand for."""

    run: str
    which: str
    step: int
    dataset: str
    classes: tuple[str, ...]
    adapt: str
    augmented: bool  # whether the run validated on augmented images, which score otherwise
    domains: tuple[DomainScores, ...]

    @property
    def worst(self) -> DomainScores:
        """The domain of the lowest accuracy; of equal ones the first."""
        return min(self.domains, key=lambda each: each.scores.accuracy)

    @property
    def unseen(self) -> tuple[DomainScores, ...]:
        return tuple(each for each in self.domains if each.role == UNSEEN)


def evaluate_run(
    run: str | Path,
    *,
    dataset: str | None = None,
    root: str | None = None,
    name: str | None = None,
    domains: Sequence[str] = (),
    adapt: str = "none",
    which: str = "selected",
    device: str = "auto",
    workers: int | None = None,
    batch: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    trust: Sequence[str] = (),
) -> RunEvaluation:
    """Score a finished run, domain by domain, on plain images.

    Of a domain that the run was trained on, only the images that were held out are scored; of any other, all. Whether
    it was trained on is told by the images themselves (their fingerprint), not by the name.

    Args:
        run: The folder `dspreg train` left.
        dataset: As in `--dataset`; the run's own if it is left out.
        root: Of `dataset`, as in `--root`.
        name: Of `dataset`, as in `--name`.
        domains: Some of its domains; all if there are none.
        adapt: `"bn"` takes batch-norm statistics from the images that are scored; see `adapting`.
        which: The `"selected"` model, that of the `"last"` step, or an evaluated step, as in `load`.
        device: Where the model runs; `"auto"`: on cuda, mps or the CPU, whichever is there first.
        workers: Processes that read images.
        batch: Images at a time; the run's own if it is left out.
        progress: Called with the number of images done and of all.
        trust: Modules of methods and data sets of your own that the run's files name, as in `load`; a data set that
            you name here needs no word.

    Raises:
        DataError: The data set has classes that the model does not know.
    """
    folder, device = RunFolder(run), resolve_device(device)
    model, transform = load(run, which, device, trust=trust)
    require_classes(model, run, "evaluate")
    trained, result = RunDescription.from_json(folder.description()), folder.result() or {}
    if adapt != "none":
        batch_norms(model)  # said before any image is read
    data = data_of(trained, dataset, root, name, trust)
    for each in domains:
        data.check_domain(each)
    chosen = [each for each in data.domains if each in domains or not domains]
    workers = reader_processes(workers, data.small)
    size = batch or trained.config.evaluation_batch
    parts = [_part(data, each, trained, transform) for each in chosen]
    to_model = columns(data, [part for part, _, _, _ in parts], model.classes)
    judged, done, total = [], 0, sum(len(part) for part, _, _, _ in parts)
    for part, kind, role, prints in parts:
        scores = Scores.none(len(model.classes))
        own = adapted(model, part, size=size, device=device, workers=workers) if adapt == "bn" else nullcontext()
        order = SequentialBatches([part], size)
        read = closing(predictions(model.algorithm, order, device=device, workers=workers))
        with resource_errors("a smaller --batch or fewer --workers need less"), own, read as predicted:
            for _, logits, y in predicted:
                scores = scores.adding(logits, to_model[y.cpu()])
                done += len(y)
                if progress is not None:
                    progress(done, total)
        judged.append(DomainScores(part.domain, kind, role, prints, scores))
    step = step_of(result, which)
    return RunEvaluation(
        trained.id,
        which,
        step,
        data.name,
        model.classes,
        adapt,
        trained.config.augment_validation,
        tuple(judged),
    )


def split_source(trained: RunDescription, images: Sequence[Any], source: str) -> tuple[list[int], list[int]]:
    """Positions of the images of a source domain that training saw, and of those that were held out.

    Of a soup, those that a member saw, and those that all members held out.
    """
    position, config = trained.domains.index(source), trained.config
    (seen, out), *others = [split_domain(images, replace(config, trial=t), position) for t in trained.trials]
    for inside, _ in others:
        more = set(inside)
        seen, out = seen + [i for i in out if i in more], [i for i in out if i not in more]
    return seen, out


def _part(
    data: DomainDataset, name: str, trained: RunDescription, transform: Transform | Unchanged
) -> tuple[DomainSplit, str, str, str]:
    images = data.domain(name)
    prints = fingerprint(images)
    source = trained.source_of(prints)
    if source is not None:
        return DomainSplit(name, images, split_source(trained, images, source)[1], transform), "out", SOURCE, prints
    if not len(images):
        raise DataError(f"the domain {name!r} of {data.name} has no images; name others with --domain")
    changed = name in trained.sources
    if changed:
        warnings.warn(
            f"the run was trained on a domain {name!r}, but not on exactly these images. All of them are scored; "
            f"those that it was trained on make the result too good",
            Notice,
            stacklevel=3,
        )
    # shuffled, for methods that adapt to a batch: images of a folder stand class by class
    order = torch.randperm(len(images), generator=generator(name, "evaluate")).tolist()
    return DomainSplit(name, images, order, transform), "all", CHANGED if changed else UNSEEN, prints


def data_of(
    trained: RunDescription, dataset: str | None, root: str | None, name: str | None, trust: Sequence[str] = ()
) -> DomainDataset:
    """The data set that was asked for, or the run's own, which may name a class of a module that is trusted."""
    if dataset is not None:
        return open_dataset(dataset, root, name)
    where = trained.where
    for each in ("dataset", "root", "name"):
        if not isinstance(where.get(each), str if each == "dataset" else str | None):
            raise IntegrityError(f"run.json: where.{each} is {reprlib.repr(where.get(each))}; wanted text")
    if name is not None:
        raise ConfigError(f"--name {name!r} goes with --dataset folder:PATH or index:FILE; the run's own has its name")
    try:
        return open_dataset(where["dataset"], root or where.get("root"), where.get("name"), trust=trust)
    except IntegrityError as error:
        raise IntegrityError(f"run.json: where.dataset: {error}. Or name the data set yourself: --dataset") from error
    except DspregError as error:
        raise DataError(f"{error}\nThat is the run's own data set. If it moved, say --dataset and --root") from error


def columns(data: DomainDataset, parts: Sequence[DomainSplit], classes: Sequence[str]) -> torch.Tensor:
    """Label of the data set → column of the model's outputs, by the name of the class."""
    occur = {label for part in parts for label in labels_of(part.images)}
    strangers = [data.classes[label] for label in sorted(occur) if data.classes[label] not in classes]
    if strangers:
        raise DataError(
            f"{data.name} has classes that the model does not know: {join_few([*map(repr, strangers)], 10)}. It knows "
            f"{join_few([*map(repr, classes)], 10)}. Rename the classes, or leave those images out"
        )
    known = {name: c for c, name in enumerate(classes)}
    return torch.tensor([known.get(name, -1) for name in data.classes])
