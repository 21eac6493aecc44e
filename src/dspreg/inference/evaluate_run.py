"""A trained run on whole domains, and which of their images it may honestly be scored on."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
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
from dspreg.inference.answers import Answers, answers_of
from dspreg.inference.intervals import Interval, interval_of, interval_of_share, resampled_figures
from dspreg.inference.load import load, require_classes, step_of
from dspreg.inference.metrics import Scores
from dspreg.inference.operating_points import Demand, OperatingPoint, operating_points, require_positive
from dspreg.inference.seen_images import SeenImages, source_of, split_source
from dspreg.io.text import join_few
from dspreg.metrics import ACCURACY, METRICS
from dspreg.protocol.description import RunDescription
from dspreg.randomness import generator
from dspreg.runs.folder import RunFolder
from dspreg.training.evaluate import as_arrays, predictions
from dspreg.training.parts import images_for_test

UNSEEN, SOURCE, CHANGED, PARTLY = "unseen", "source", "changed source", "partly trained on"
TEST = "test images of a source"


@dataclass(frozen=True)
class DomainScores:
    """One domain with its scores.

    Attributes:
        domain: Its name.
        part: `"all"` images, or the `"out"` split that was held out from training, or `"test"`, those that the table of
            a source sets apart.
        role: `"unseen"` in training; `"source"`, trained on; `"test images of a source"`; `"changed source"`, of the
            name of a source but with other images; `"partly trained on"`, of another name, with images that
            were trained on.
        fingerprint: Of all its images.
        scores: On `part`.
        answers: What the model says about each image.
        trained_on: How many images of `part` were trained on, by their contents; None where that is not known.
        without: The same of the other images, where some were trained on and some were not.
    """

    domain: str
    part: str
    role: str
    fingerprint: str
    scores: Scores
    answers: Answers | None = None
    trained_on: int | None = None
    without: DomainScores | None = None

    @cached_property
    def figures(self) -> dict[str, float | None]:
        """Every metric of `METRICS`; None where it is not defined of these images."""
        known = self.answers
        return {} if known is None else {name: each.of(known.labels, known.log_p) for name, each in METRICS.items()}

    @cached_property
    def resampled(self) -> dict[str, np.ndarray]:
        """Of every metric its values on 1,000 bootstrap resamples of the images, or of their groups."""
        known = self.answers
        if known is None:
            return {}
        return resampled_figures(known.labels, known.log_p, known.groups, key=f"{self.fingerprint}/{self.part}")

    def interval(self, metric: str) -> Interval | None:
        """95 %, for other images of this domain; None where it can't be said."""
        if self.answers is None or metric not in self.resampled:
            return None
        if metric == ACCURACY:
            return interval_of_share(self.scores.accuracy, self.resampled[metric], self.answers.independent)
        return interval_of(self.resampled[metric])


class Part(NamedTuple):
    """What is scored of a domain."""

    split: DomainSplit
    kind: str
    role: str
    fingerprint: str


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
    temperature: float = 1.0
    points: tuple[OperatingPoint, ...] = ()

    @property
    def worst(self) -> DomainScores:
        """The domain of the lowest accuracy; of equal ones the first."""
        return min(self.domains, key=lambda each: each.scores.accuracy)

    @property
    def unseen(self) -> tuple[DomainScores, ...]:
        return self.of_role(UNSEEN)

    @property
    def sources(self) -> tuple[DomainScores, ...]:
        return self.of_role(SOURCE)

    def of_role(self, role: str) -> tuple[DomainScores, ...]:
        return tuple(each for each in self.domains if each.role == role)


def mean_interval(domains: Sequence[DomainScores], metric: str) -> Interval | None:
    """95 % for the mean over these domains, each counting as much, with other images of the same domains.

    How a further domain would do is another question, which the spread between domains answers.
    """
    if not domains or any(metric not in each.resampled for each in domains):
        return None
    return interval_of(np.mean([each.resampled[metric] for each in domains], axis=0))


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
    at: Sequence[str] = (),
    positive: str | None = None,
) -> RunEvaluation:
    """Score a finished run, domain by domain, on plain images.

    Of a domain that the run was trained on, only the images that were held out are scored; of any other, all. Whether
    it was trained on is told by the images themselves, not by names: also of single images, wherever they come from.
    Where some were trained on, there are scores without them.

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
        at: Operating points, such as `"sensitivity=0.95"`: thresholds chosen on held-out images of the sources.
        positive: The class that they are of; of two classes the second, unless it is named.

    Raises:
        DataError: The data set has classes that the model does not know, or nothing of it was held out.
    """
    folder, device, demands = RunFolder(run), resolve_device(device), [Demand.parse(each) for each in at]
    model, transform = load(run, which, device, trust=trust)
    require_classes(model, run, "evaluate")
    if demands:
        require_positive(model.classes, positive)
    trained, result = RunDescription.from_json(folder.description()), folder.result() or {}
    if adapt != "none":
        batch_norms(model)  # said before any image is read
    data = data_of(trained, dataset, root, name, trust)
    data.read_as(transform.reading)
    for each in domains:
        data.check_domain(each)
    chosen = [each for each in data.domains if each in domains or not domains]
    workers = reader_processes(workers, data.small)
    size = batch or trained.config.evaluation_batch
    parts = [part for each in chosen for part in _parts(data, each, trained, transform)]
    if not parts:
        raise DataError(
            f"the run held no images out of {join_few(chosen)}: it was trained on all of them (holdout=0), and can't "
            "be scored there. Evaluate it on other images: --dataset folder:PATH"
        )
    to_model = columns(data, [part.split for part in parts], model.classes)
    judged, done, total = [], 0, sum(len(part.split) for part in parts)
    known = SeenImages(folder, trained, trust)
    for part, kind, role, prints in parts:
        scores, answers = Scores.none(len(model.classes)), []
        flags = known.flags(part.images, part.positions)
        own = adapted(model, part, size=size, device=device, workers=workers) if adapt == "bn" else nullcontext()
        order = SequentialBatches([part], size)
        read = closing(predictions(model.algorithm, order, device=device, workers=workers))
        with resource_errors("a smaller --batch or fewer --workers need less"), own, read as predicted:
            for _, logits, y in predicted:
                scores = scores.adding(logits / model.temperature, to_model[y.cpu()])
                answers.append((logits / model.temperature, to_model[y.cpu()]))
                done += len(y)
                if progress is not None:
                    progress(done, total)
        said = answers_of(part, *as_arrays(answers))
        judged.append(_judge(data.name, Part(part, kind, role, prints), scores, said, flags, len(model.classes)))
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
        model.temperature,
        tuple(operating_points(judged, model.classes, demands, positive)),
    )


def _judge(
    data: str, part: Part, scores: Scores, said: Answers, flags: Sequence[bool] | None, classes: int
) -> DomainScores:
    """The scores of a domain, and those without the images that were trained on, if there are some."""
    domain, seen = part.split.domain, sum(flags or ())
    role = PARTLY if part.role == UNSEEN and seen else part.role
    _warn_of_seen(data, domain, role, None if flags is None else seen, len(part.split))
    without = None
    if flags is not None and 0 < seen < len(flags):
        others = said.select(~np.array(flags))
        fewer = Scores.none(classes).adding(torch.from_numpy(others.log_p), torch.from_numpy(others.labels))
        without = DomainScores(domain, part.kind, role, part.fingerprint, fewer, others)
    counted = None if flags is None else seen
    return DomainScores(domain, part.kind, role, part.fingerprint, scores, said, counted, without)


def _warn_of_seen(data: str, domain: str, role: str, seen: int | None, number: int) -> None:
    if seen:
        text = f"the run was trained on {seen:,} of the {number:,} images of {domain!r} that are evaluated"
        warnings.warn(f"{data}: {text}", Notice, stacklevel=3)
    elif seen is None and role not in (SOURCE, TEST):
        text = (
            f"it is not known which images of {domain!r} the run was trained on: it kept no list of them, and its own "
        )
        text += "data set is not where it was, or of another kind"
        warnings.warn(f"{data}: {text}", Notice, stacklevel=3)


def _parts(data: DomainDataset, name: str, trained: RunDescription, transform: Transform | Unchanged) -> list[Part]:
    """What to score of a domain: all of it, or what training held out, and what its table sets apart for testing."""
    images = data.domain(name)
    prints = fingerprint(images)
    source = source_of(trained, images)
    if source is not None:
        out, test = split_source(trained, images, source)[1], images_for_test(images, trained.config)
        found = (("out", SOURCE, out), ("test", TEST, test))
        return [Part(DomainSplit(name, images, at, transform), kind, role, prints) for kind, role, at in found if at]
    if not len(images):
        raise DataError(f"the domain {name!r} of {data.name} has no images; name others with --domain")
    # shuffled, for methods that adapt to a batch: images of a folder stand class by class
    order = torch.randperm(len(images), generator=generator(name, "evaluate")).tolist()
    changed = CHANGED if name in trained.sources else UNSEEN
    return [Part(DomainSplit(name, images, order, transform), "all", changed, prints)]


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
