"""Finished runs whose weights are averaged: read, compared, and brought to one set of tensors each."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dspreg.algorithms import Task, parse
from dspreg.algorithms.base import ERM
from dspreg.algorithms.compatibility import overrides
from dspreg.config.reading import READ
from dspreg.config.train_config import NOTHING, complete_record
from dspreg.config.trained_part import named_by_contents
from dspreg.errors import ConfigError, IntegrityError, Notice
from dspreg.inference.load import require_images, step_of
from dspreg.io.atomic_files import sha256_of_file
from dspreg.networks.own import is_own_network
from dspreg.networks.pretrained import make_backbone
from dspreg.networks.text_head import TextHead, read_text_head
from dspreg.protocol.description import RunDescription
from dspreg.runs.folder import RunFolder
from dspreg.runs.model_file import model_file
from dspreg.training.adam import Adam
from dspreg.training.model import BESIDE, build_stack, tensors_of
from dspreg.training.parts import randomness_key
from dspreg.training.stored_model import load_model_file, read_model_file

# What members have in common: the images, the network and how it is validated. What search draws may differ.
SAME = (
    "dataset", "targets", "protocol", "model", "image_size", "split", "holdout", "frozen_bn", "augment_validation",
    "evaluation_batch", "features", "head",
)  # fmt: skip


@dataclass(frozen=True)
class Member:
    """One model of a finished run.

    Attributes:
        path: The run's folder, as it was given.
        trained: Its run.json.
        which: Which of its models.
        step: Of that model.
        sha256: Of the model's file.
        how: How the network is built.
        tensors: What predicts, as `tensors_of` has it; averaged weights stand where the network has them.
        plain: Whether a prediction is that of the network alone, whatever the method.
    """

    path: Path
    trained: RunDescription
    which: str
    step: int
    sha256: str
    how: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    plain: bool

    @property
    def label(self) -> str:
        """The method, as the user wrote it."""
        return str(self.trained.where.get("algorithm", self.trained.settings["algorithm"]))


def read_member(run: str | Path, which: str = "selected", trust: Sequence[str] = ()) -> Member:
    """A model of a finished run, verified; `trust` as in `load`."""
    file = model_file(run, which)
    folder = RunFolder(run)
    model, loaded = load_model_file(file, "cpu", trust)
    require_images(model, loaded, run, "an average of runs")
    if is_own_network(RunDescription.from_json(folder.description()).config.model):
        raise ConfigError(f"{run} is of a network of your own; averages of runs are of timm's and dspreg's")
    how, _ = read_model_file(file)
    if adapters := how.get("train"):
        raise ConfigError(
            f"{run} was trained with {adapters}, and averaging adapters is not averaging the weights that they make. "
            "Soups are of runs with --train all, head, last:N or mask:FILE"
        )
    layers = list(model.algorithm.layers())
    plain = all(
        isinstance(layer, ERM)
        or not overrides(type(layer), "predict")
        or layer.compatibility.predicts_at_other_weights  # loading has moved the network there
        for layer in layers
    )
    trained, result = RunDescription.from_json(folder.description()), folder.result() or {}
    if trained.config.holdout == 0:
        raise ConfigError(
            f"{folder.path} held no images out (holdout=0), and an average is judged by held-out images of the "
            "sources. "
            "Average runs that held some out"
        )
    digest, step = sha256_of_file(file), step_of(result, which)
    return Member(Path(run), trained, which, step, digest, how, tensors_of(model.algorithm), plain)


def require_alike(members: Sequence[Member], *, one_split: bool) -> None:
    """Refuse members whose average means nothing, and say what makes one doubtful.

    Args:
        members: At least one.
        one_split: They are compared by images that all of them held out, so that one split is needed.
    """
    first = members[0]
    for other in members[1:]:
        for name, ours, theirs in _differences(first, other):
            raise ConfigError(
                f"{first.path} and {other.path} differ in {name}: {_brief(ours)} and {_brief(theirs)}. Weights are "
                "averaged over runs on the same images with the same network"
            )
    trials = sorted({t for each in members for t in each.trained.trials})
    if len(trials) > 1:
        text = f"these are of the trials {', '.join(map(str, trials))}, each with a split of its own"
        if one_split:
            raise ConfigError(
                f"members are chosen by images that none of them was trained on, and {text}. Take runs of one trial, "
                "or --uniform, which chooses nothing"
            )
        warnings.warn(f"{text}; scores are on the images that all of them held out", Notice, stacklevel=3)
    starts = {(each.trained.settings["trial"], each.trained.settings["draw"]) for each in members}
    if len(starts) > 1:
        scratch = first.trained.weights.get("sha256") is None
        what = "every weight" if scratch else "the classifier"
        text = f"members of different trials or draws start with {what} at other random values"
        text += "; averages of networks that share no start predict next to nothing" if scratch else (
            "; DiWA and model soups start all members from one"
        )  # fmt: skip
        warnings.warn(text, Notice, stacklevel=3)


def _differences(first: Member, other: Member) -> Iterator[tuple[str, Any, Any]]:
    ours, theirs = first.trained, other.trained
    settings, others = (complete_record(each.settings) for each in (ours, theirs))
    for name in SAME:
        if settings[name] != others[name]:
            yield name, settings[name], others[name]
    if ours.domains != theirs.domains:
        yield "their domains", ours.domains, theirs.domains
    if ours.classes != theirs.classes:
        yield "their classes", ours.classes, theirs.classes
    for name in ours.domains:
        if ours.fingerprints[name] != theirs.fingerprints[name]:
            yield f"the images of {name!r} (fingerprint)", ours.fingerprints[name], theirs.fingerprints[name]
    if ours.weights.get("sha256") != theirs.weights.get("sha256"):
        yield "the weights they start from (SHA-256)", ours.weights.get("sha256"), theirs.weights.get("sha256")
    if ours.settings.get("init") != theirs.settings.get("init"):
        yield "the run whose weights they start from (SHA-256)", ours.settings.get("init"), theirs.settings.get("init")
    for name in ("mean", "std"):
        if list(first.how[name]) != list(other.how[name]):
            yield f"the {name} of their images", first.how[name], other.how[name]
    for name in READ:
        if (a := getattr(ours.config, name)) != (b := getattr(theirs.config, name)):
            yield name, a, b


def _brief(value: Any) -> str:
    return f"{value[:8]}…" if isinstance(value, str) and len(value) > 40 else repr(value)


def common_network(members: Sequence[Member]) -> tuple[dict[str, Any], list[dict[str, Tensor]]]:
    """How the network of an average is built, and the tensors of every member that go into it.

    Members of one spec keep it. Others become plain networks, if their methods predict with the network alone.
    """
    first = members[0]
    if all(each.how["algorithm"] == first.how["algorithm"] for each in members):
        return dict(first.how), [dict(each.tensors) for each in members]
    for each in members:
        if not each.plain:
            raise ConfigError(
                f"{each.path} was trained with {each.how['algorithm']}, whose prediction is not that of the network "
                "alone; its weights are averaged with those of runs of the same spec only"
            )
    how = {**first.how, "algorithm": "ERM"}
    networks = [{n: t for n, t in each.tensors.items() if not n.startswith(BESIDE)} for each in members]
    wanted = {name: t.shape for name, t in tensors_of_shape(how).items()}
    for each, tensors in zip(members, networks, strict=True):
        if {name: t.shape for name, t in tensors.items()} != wanted:
            raise ConfigError(
                f"{each.path} was trained with {each.how['algorithm']}, which changes the network; its weights are "
                "averaged with those of runs of the same spec only"
            )
    return how, networks


def tensors_of_shape(how: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a network, without their contents."""
    return dict(build_stack(how, "meta").net.state_dict())


def average_tensors(members: Sequence[Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The mean of every tensor of floating point, in double precision; others are those of the first member.

    Step by step, mean + (x − mean)/n, so that the average of equal members is that member, to the bit.
    """
    result = {}
    for name, first in members[0].items():
        if not first.is_floating_point():
            result[name] = first.clone()
            continue
        mean = first.double()
        for n, other in enumerate(members[1:], 2):
            mean = mean + (other[name].double() - mean) / n
        result[name] = mean.to(first.dtype)
    return result


def interpolate_tensors(start: Mapping[str, Tensor], end: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """(1 − alpha) · start + alpha · end, in double precision; at 0 and 1 it is one of them, to the bit."""
    return {
        name: ((1 - alpha) * start[name].double() + alpha * value.double()).to(value.dtype)
        if value.is_floating_point()
        else value.clone()
        for name, value in end.items()
    }


def _head_at_start(member: Member) -> TextHead:
    """The text head that the classifier started as, from where it was then."""
    trained = member.trained
    head = read_text_head(str(trained.where.get("head")))
    if named_by_contents(head.sha256) != trained.config.head:
        raise IntegrityError(
            f"{member.path} started from the head {trained.config.head}, and {trained.where.get('head')} is another. "
            "Put the file back"
        )
    return head


def tensors_at_start(member: Member, weights: str | None = None, trust: Sequence[str] = ()) -> dict[str, Tensor]:
    """What a run's training started with, made again to the bit from its keys and the weights it names.

    Args:
        member: Of the run.
        weights: The file of weights, if it is elsewhere by now.
        trust: As in `load`.

    Raises:
        IntegrityError: The weights are not those the run started from.
    """
    trained, config = member.trained, member.trained.config
    if config.init != NOTHING:
        raise ConfigError(f"{member.path} began with the weights of another run (--init), which it does not hold")
    source = weights or trained.where.get("weights") or config.weights
    if not isinstance(source, str):
        raise IntegrityError(f"{member.path}/run.json: where.weights is {source!r}; wanted text")
    backbone = make_backbone(
        config.model,
        weights=source,
        image_size=member.how["image_size"],
        dropout=member.how["dropout"],
        frozen_bn=member.how["frozen_bn"],
        channels=config.channels,
        trust=(),
        features=config.features,
    )
    if backbone.weights.sha256 != trained.weights.get("sha256"):
        raise IntegrityError(
            f"{member.path} was trained from weights of the SHA-256 {_brief(trained.weights.get('sha256'))}, and "
            f"{source!r} has {_brief(backbone.weights.sha256)}. Give the file it started from with --weights"
        )
    key = randomness_key(config.dataset, config)
    head = _head_at_start(member) if config.head != "random" else None
    task = Task(
        len(trained.classes), trained.sources, 1, backbone.make, key,
        adapt=lambda net: head.start(net, trained.classes) if head is not None else None,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # about how it trains
        stack = parse(member.how["algorithm"], trust, of_file=True).setup(task, Adam)
    return tensors_of(stack)
