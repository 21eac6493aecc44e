"""The end of a run: models, card, result. After a crash it can be repeated, and gives the same bytes."""

from __future__ import annotations

import warnings
from typing import Any

from torch import Tensor

from dspreg.algorithms.base import ERM, Algorithm
from dspreg.algorithms.compatibility import overrides
from dspreg.errors import Notice
from dspreg.io.text import escape_markdown
from dspreg.kinds import CLASSES, KINDS, MULTILABEL, figures_of
from dspreg.networks.own import is_own_network
from dspreg.runs.folder import RunFolder
from dspreg.runs.schema import FORMAT as RESULT
from dspreg.training.experiment import Experiment
from dspreg.training.model import load_stack, require_same_predictions, tensors_of
from dspreg.training.records import domainbed_lines
from dspreg.training.serialization import pack
from dspreg.training.state import State

MODEL = "dspreg.model/1"
BUILT = ("algorithm", "model", "image_size", "dropout", "frozen_bn")  # settings that make the network


def finish_run(experiment: Experiment, state: State, run: str) -> dict[str, Any]:
    """Write the files of a finished run, and read them back, verified."""
    folder, chosen = state.folder, state.selected
    assert chosen is not None
    if experiment.execution.keep != "none":
        save_model(experiment, folder, "selected.safetensors", chosen.model, chosen.step)
        last = tensors_of(state.algorithm)
        verify_predictions(experiment, state.algorithm, last)
        save_model(experiment, folder, "last.safetensors", last, state.t - 1)
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
    folder.write("README.md", card(experiment, outcome).encode())
    folder.finish(outcome)
    verified = folder.result()
    assert verified is not None
    return verified


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
    built |= {"mean": b.mean, "std": b.std, "classes": list(experiment.data.classes)}
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
    target = (
        f"Target {kind.title} is that of its “in” part ({1 - s.holdout:.0%} of the {samples}), as in DomainBed."
        if s.targets
        else "No domain was held out: how well it does on a new one is not known from this run."
    )
    use = USE if inputs is None and experiment.data.kind == CLASSES else use_of_other(experiment)
    kept = "" if experiment.execution.keep == "none" else use
    return CARD.format(
        algorithm=escape_markdown(s.algorithm), data=escape_markdown(experiment.data.name),
        rows="\n".join(rows), target=target, kept=kept,
        step=chosen["step"], last=s.steps - 1, validation=kind.text(chosen["validation"]), protocol=s.protocol,
        figure=kind.title, samples=samples, names=kind.names,
        augmented=", augmented as in DomainBed; plain ones score otherwise" if s.augment_validation else "",
        trial=s.trial, draw=s.draw, model=escape_markdown(s.model), tag=escape_markdown(w.tag),
        sha=w.sha256 or "none",
        size=f"{s.image_size} pixels" if inputs is None else f"inputs of shape {inputs.shape}",
        lr=s.lr, batch=s.batch_size, decay=s.weight_decay,
        classes=", ".join(map(escape_markdown, classes[:20])) + (", …" if len(classes) > 20 else ""),
    )  # fmt: skip


def use_of_other(experiment: Experiment) -> str:
    """How to load and use a model of tensors, of several labels or of numbers."""
    module = experiment.settings.model.rpartition(".")[0] if is_own_network(experiment.settings.model) else "my_methods"
    call = 'as_tensor(Image.open(…).convert("RGB"))' if experiment.inputs is None else "as_tensor(x)"
    then = {CLASSES: ".softmax(1)", MULTILABEL: ".sigmoid()"}.get(experiment.data.kind, "")
    return USE_OF_OTHER.format(module=module, call=call, then=then)


USE = """
```python
import dspreg
from PIL import Image

model, transform = dspreg.load("RUN")  # this folder
probabilities = model(transform(Image.open("image.jpg").convert("RGB"))[None]).softmax(1)
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
{kept}
| domain | role | in | out | {figure} |
|---|---|---|---|---|
{rows}

The model selected is that of step {step} of 0 … {last}, by the mean {figure} on held-out {samples} of the sources
({validation}{augmented}).
{target}
One run: another seed may differ by several points.

- protocol {protocol}, trial {trial}, draw {draw}
- network {model} at {size}, weights {tag} (SHA-256 {sha})
- Adam, lr {lr}, weight decay {decay}, {batch} {samples} per source domain and step
- {names}: {classes}

`run.json` has every setting and version, `records.jsonl` every evaluation, `result.json` the SHA-256 of each file.
"""
