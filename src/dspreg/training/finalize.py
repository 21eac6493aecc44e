"""The end of a run: models, card, result. After a crash it can be repeated, and gives the same bytes."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from dspreg.algorithms.base import ERM, Algorithm
from dspreg.algorithms.compatibility import overrides
from dspreg.config.reading import READ
from dspreg.config.train_config import TRAIN_OPTIONS, TrainConfig
from dspreg.config.trained_part import with_files
from dspreg.errors import Notice
from dspreg.io.text import escape_markdown, path_name
from dspreg.kinds import CLASSES, KINDS, MULTILABEL, figures_of
from dspreg.metrics import ACCURACY, WORST, selection_value
from dspreg.networks.own import is_own_network
from dspreg.runs.folder import RunFolder
from dspreg.runs.schema import FORMAT as RESULT
from dspreg.runs.trained_images import NAME as IMAGES
from dspreg.training.experiment import Experiment
from dspreg.training.model import BUILT, MODEL, load_stack, require_same_predictions, tensors_of
from dspreg.training.records import domainbed_lines
from dspreg.training.remarks import training_remarks
from dspreg.training.serialization import pack
from dspreg.training.state import Selected, State


def finish_run(experiment: Experiment, state: State, run: str, note: str = "") -> dict[str, Any]:
    """Write the files of a finished run, and read them back, verified. `note` ends its card."""
    folder, chosen = state.folder, state.selected
    assert chosen is not None
    if experiment.execution.keep != "none":
        save_model(experiment, folder, "selected.safetensors", chosen.model, chosen.step)
        last = tensors_of(state.algorithm)
        verify_predictions(experiment, state.algorithm, last)
        save_model(experiment, folder, "last.safetensors", last, state.t - 1)
        folder.write(IMAGES, experiment.trained_images().to_bytes())  # so that evaluations know them
    records = list(folder.records)
    if experiment.execution.domainbed_records:
        folder.write("results.jsonl", domainbed_lines(experiment, records).encode())
    figures = KINDS[experiment.data.kind].figures
    by_step = {record["step"]: record for record in records}
    at = {"selected": chosen.step, "last": state.t - 1}
    outcome: dict[str, Any] = {
        "format": RESULT,
        "run": run,
        "targets": list(experiment.settings.targets),
        "environments": folder.description()["where"].get("environments", []),  # further ones that it was resumed in
        **{name: {k: by_step[t][k] for k in ("step", "validation", *figures)} for name, t in at.items()},
        "refreshes": sum(each.get("event") == "refresh" for each in folder.refreshes),
    }
    if remarks := remarks_of(experiment, records, chosen):
        outcome["remarks"] = remarks
    folder.write("README.md", (card(experiment, outcome) + note).encode())
    folder.finish(outcome)
    verified = folder.result()
    assert verified is not None
    return verified


def remarks_of(experiment: Experiment, records: Sequence[Mapping[str, Any]], chosen: Selected) -> list[str]:
    """What is odd about the training, see `training_remarks`."""
    s = experiment.settings
    return training_remarks(
        records,
        steps=s.steps,
        selected=chosen.step if s.holdout else None,
        values=[selection_value(each, experiment.sources, s.select_by) for each in records] if s.holdout else [],
        predicted=chosen.predicted,
        classes=experiment.data.classes,
    )


def verify_predictions(experiment: Experiment, algorithm: Algorithm, tensors: dict[str, Tensor]) -> None:
    """If a layer overrides `predict`, check that a stack built from the saved model alone predicts the same."""
    if not any(overrides(type(layer), "predict") for layer in algorithm.layers() if not isinstance(layer, ERM)):
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # notices were issued when the first one was built
        how = description_of(experiment, algorithm.t - 1)
        loaded = load_stack(how, tensors, "the model at the end of training", experiment.execution.device, trust=None)
    for batches in algorithm.task.samples(0, 1).values():
        require_same_predictions(algorithm, loaded, batches[0].x)


def save_model(experiment: Experiment, folder: RunFolder, name: str, tensors: dict[str, Tensor], step: int) -> None:
    """Write a safetensors file that also describes how to build the network and what its outputs mean."""
    folder.write(name, pack({"built": description_of(experiment, step), "tensors": tensors}, format=MODEL))


def description_of(experiment: Experiment, step: int) -> dict[str, Any]:
    """How to build the network of the model after `step`, and what its outputs mean."""
    s, b = experiment.settings, experiment.backbone
    built: dict[str, Any] = {name: getattr(s, name) for name in BUILT} | {"algorithm": experiment.stack.for_file()}
    later = {"features": s.features, "train": s.train if s.part.kind == "lora" else "all"}
    built |= {name: value for name, value in later.items() if value != TRAIN_OPTIONS[name].before}
    built |= {"mean": b.mean, "std": b.std, "classes": list(experiment.data.classes)}
    built |= {name: value for name in READ if (value := getattr(s, name)) != TRAIN_OPTIONS[name].before}
    built |= {} if experiment.data.kind == CLASSES else {"kind": experiment.data.kind}
    if experiment.inputs is not None:
        built["inputs"] = {
            "shape": list(experiment.inputs.shape),
            "whole": not experiment.inputs.dtype.is_floating_point,
        }
    return built | {"domains": list(experiment.sources), "step": step}


def card(experiment: Experiment, outcome: dict[str, Any]) -> str:
    """README.md of the run: what the model is, its accuracy, how to use it."""
    s, w, chosen = experiment.settings, experiment.backbone.weights, outcome["selected"]
    classes, rows, kind = experiment.data.classes, [], KINDS[experiment.data.kind]
    for name in experiment.data.domains:
        inside, out = (len(part) for part in experiment.splits[name])
        role = "target, never seen in training" if name in s.targets else "source"
        which = "in" if name in s.targets else "out"
        score = figures_of(chosen).get(name, {}).get(which)
        shown = kind.text(score) if score is not None else ""
        rows.append(f"| {escape_markdown(name)} | {role} | {inside:,} | {out:,} | {shown} |")
    inputs = experiment.inputs
    samples = "images" if inputs is None else "samples"
    last = outcome["last"]["step"]
    by = {ACCURACY: f"mean {kind.title}", WORST: "accuracy of the worst domain"}.get(s.select_by, f"mean {s.select_by}")
    figure = "" if s.select_by == ACCURACY else "mean accuracy "
    chosen_by = (
        f"The model selected is that of step {chosen['step']} of 0 … {last}, by the {by} on held-out {samples} of the "
        "sources\n"
        f"({figure}{kind.text(chosen['validation'])}{AUGMENTED if s.augment_validation else ''})."
        if s.holdout
        else f"The model is that of the last step, {last}. It was trained on all images of the sources, so that\n"
        "nothing here says how good it is: that is for runs of the same settings with a domain held out."
    )
    remarks = "".join(f"\n> **Before you use it:** {escape_markdown(each)}.\n" for each in outcome.get("remarks", []))
    target = (
        f"Target {kind.title} is that of its “in” part ({1 - s.holdout:.0%} of the {samples}), as in DomainBed."
        if s.targets
        else "No domain was held out: how well it does on a new one is not known from this run."
    )
    use = USE if inputs is None and experiment.data.kind == CLASSES else use_of_other(experiment)
    kept = "" if experiment.execution.keep == "none" else use
    return CARD.format(
        algorithm=escape_markdown(s.algorithm), data=escape_markdown(experiment.data.name),
        rows="\n".join(rows), target=target, kept=kept, chosen=chosen_by, remarks=remarks, protocol=s.protocol,
        read="" if experiment.inputs is not None else f"\n- images: {s.describe_reading()}",
        figure=kind.title, samples=samples, names=kind.names,
        trial=s.trial, draw=s.draw, model=escape_markdown(s.model), tag=escape_markdown(w.tag),
        sha=w.sha256 or "none",
        size=f"{s.image_size} pixels" if inputs is None else f"inputs of shape {inputs.shape}",
        optimizer=optimizer_text(s), batch=s.batch_size, trained=trained_text(s),
        classes=", ".join(map(escape_markdown, classes[:20])) + (", …" if len(classes) > 20 else ""),
    )  # fmt: skip


def use_of_other(experiment: Experiment) -> str:
    """How to load and use a model of tensors, of several labels or of numbers."""
    module = experiment.settings.model.rpartition(".")[0] if is_own_network(experiment.settings.model) else "my_methods"
    call = 'as_tensor(Image.open(…).convert("RGB"))' if experiment.inputs is None else "as_tensor(x)"
    then = {CLASSES: ".softmax(1)", MULTILABEL: ".sigmoid()"}.get(experiment.data.kind, "")
    return USE_OF_OTHER.format(module=module, call=call, then=then)


AUGMENTED = ", augmented as in DomainBed; plain ones score otherwise"


def optimizer_text(s: TrainConfig) -> str:
    """`Adam, lr 5e-05, weight decay 0.0`, and what else moves the learning rate."""
    name = "Adam" if s.optimizer == "adam" else s.optimizer
    more = [f"{s.schedule} schedule"] if s.schedule != "constant" else []
    more += [f"{s.warmup:,} steps of warm-up"] if s.warmup else []
    more += [f"layer decay {s.layer_decay:g}"] if s.layer_decay < 1 else []
    return ", ".join([name, f"lr {s.lr}", f"weight decay {s.weight_decay}", *more])


def trained_text(s: TrainConfig) -> str:
    """Lines on what of the network was trained and where its classifier started, if they are not the usual."""
    said = with_files({"train": s.train, "head": s.head}, lambda file: path_name(file))
    lines = {"trained": said["train"] if s.train != "all" else "", "head": said["head"] if s.head != "random" else ""}
    lines["features"] = "" if s.features == "default" else s.features
    return "".join(f"\n- {name}: {escape_markdown(text)}" for name, text in lines.items() if text)


USE = """
```python
import dspreg
from PIL import Image

model, transform = dspreg.load("RUN")  # this folder
probabilities = model(transform(Image.open("image.jpg"))[None]).softmax(1)
model.classes  # what the columns mean
```

Or: `dspreg predict RUN image.jpg`, `dspreg evaluate RUN --dataset folder:PATH`, `dspreg export RUN --format onnx`.
"""

USE_OF_OTHER = """
```python
import dspreg

model, as_tensor = dspreg.load("RUN", trust=("{module}",))  # this folder, and whose code it may import
outputs = model({call}[None]){then}
model.classes  # what the columns mean
```
"""

CARD = """# {algorithm} on {data}
{remarks}{kept}
| domain | role | in | out | {figure} |
|---|---|---|---|---|
{rows}

{chosen}
{target}
One run: another seed may differ by several points.

- protocol {protocol}, trial {trial}, draw {draw}
- network {model} at {size}, weights {tag} (SHA-256 {sha}){read}
- {optimizer}, {batch} {samples} per source domain and step{trained}
- {names}: {classes}

`run.json` has every setting and version, `records.jsonl` every evaluation, `result.json` the SHA-256 of each file.
"""
