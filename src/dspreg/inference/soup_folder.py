"""The folder of a soup: a run like any other, whose run.json names the runs that it was averaged from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from dspreg.config.train_config import Execution
from dspreg.data.augmentation import require_augmentation
from dspreg.errors import ConfigError, resource_errors
from dspreg.inference.evaluate_run import data_of
from dspreg.inference.soup_candidates import Candidates
from dspreg.inference.soup_members import Member
from dspreg.io.text import escape_markdown
from dspreg.protocol.description import RunDescription
from dspreg.runs.folder import RunFolder
from dspreg.runs.model_file import model_path_at
from dspreg.runs.schema import FORMAT as RESULT
from dspreg.training.execution import environment, resolve_execution
from dspreg.training.finalize import USE
from dspreg.training.loop import refuse_inside, reproducible
from dspreg.training.model import MODEL
from dspreg.training.serialization import pack

SMALLER = "fewer --workers need less"
KINDS = {"uniform": "uniform soup", "greedy": "greedy soup", "toward start": "toward its start"}


@dataclass(frozen=True)
class Candidate:
    """Weights to be recorded, as they are saved, and what is said about them in the record."""

    tensors: Mapping[str, Tensor]
    log: Mapping[str, float]


@dataclass(frozen=True)
class Plan:
    """Which runs are averaged, how, and where their images are."""

    kind: str
    members: Sequence[Member]
    how: Mapping[str, Any]
    about: Mapping[str, Any]  # further facts that decide the result
    execution: Execution
    dataset: str | None
    root: str | None
    name: str | None
    trust: Sequence[str]


def write_soup(
    plan: Plan,
    out: str | Path,
    make: Callable[[Candidates, int], tuple[list[Candidate], dict[str, Any]]],
    *,
    records: int,
) -> dict[str, Any]:
    """Make the candidates, record each, and write the folder; a finished one is verified and left alone."""
    folder, first = RunFolder(out), plan.members[0]
    execution = resolve_execution(replace(plan.execution, keep="best"), "ERM")
    data = data_of(first.trained, plan.dataset, plan.root, plan.name, plan.trust)
    refuse_inside(folder.path, data)
    require_augmentation(first.trained.config.validation_augment, plan.trust)
    if any(folder.path.resolve() == each.path.resolve() for each in plan.members):
        raise ConfigError(f"--out {out} is one of the runs; give a new folder")
    step = first.trained.config.steps - records
    if step < 0:
        raise ConfigError(f"{records} candidates are more than the {first.trained.config.steps} steps of the run")
    with folder.locked(), reproducible(execution), resource_errors(SMALLER):
        described = describe_soup(plan, execution)
        candidates = Candidates(plan.how, described, data, execution)
        described = replace(described, sizes=candidates.sizes)
        if (folder / "run.json").exists():  # of another run: said before hours are spent
            finished = (folder / "result.json").exists()
            folder.agree(described.to_json(), changed_environment=finished)
            if finished:
                return folder.result() or {}
        made, notes = make(candidates, step + records - 1)
        lines = [
            candidates.record(each.tensors, step + n, each.log, last=n == records - 1) for n, each in enumerate(made)
        ]
        best = max(range(records), key=lambda n: (lines[n]["validation"], -n))
        models = {f"{name}.safetensors": n for name, n in (("selected", best), ("last", records - 1))}
        if records > 1:
            models |= {model_path_at(step + n): n for n in range(records)}
        run = folder.agree(described.to_json())
        folder.records.rewind(None)
        for line in lines:
            folder.records.append(line)
        for name, n in models.items():
            built = {**plan.how, "step": step + n}
            folder.write(name, pack({"built": built, "tensors": dict(made[n].tensors)}, format=MODEL))
        folder.write("README.md", card(plan, described, lines[best], notes).encode())
        quoted = {
            name: {k: lines[n][k] for k in ("step", "validation", "accuracy")}
            for name, n in (("selected", best), ("last", records - 1))
        }
        folder.finish(
            {
                "format": RESULT,
                "run": run,
                "targets": list(described.settings["targets"]),
                "environments": [],
                **quoted,
                "refreshes": 0,
                "soup": notes,
            }
        )
        return folder.result() or {}


def describe_soup(plan: Plan, execution: Execution) -> RunDescription:
    """run.json: the settings of the first member, and which runs were averaged. Sizes are not known yet."""
    first = plan.members[0].trained
    trials = sorted({t for each in plan.members for t in each.trained.trials})
    where = {**asdict(execution), **{name: first.where.get(name) for name in ("dataset", "root", "name", "weights")}}
    given = {"dataset": plan.dataset, "root": plan.root, "name": plan.name}
    where |= {name: value for name, value in given.items() if value is not None}
    where["precision"] = execution.recorded_precision
    where["algorithm"] = label(plan)
    where["members"] = [str(each.path) for each in plan.members]
    members = [
        {"run": each.trained.id, "which": each.which, "step": each.step, "sha256": each.sha256} for each in plan.members
    ]
    return replace(
        first,
        settings={**first.settings, "algorithm": plan.how["algorithm"]},
        environment=environment(execution),
        where=where,
        soup={"kind": plan.kind, "trials": trials, "members": members, **plan.about},
        id="",
    )


def label(plan: Plan) -> str:
    """What tables call it."""
    methods = " | ".join(dict.fromkeys(each.label for each in plan.members))
    of = f" of {len(plan.members)}" if plan.kind != "toward start" else ""
    return f"{methods[:200]}, {KINDS[plan.kind]}{of}"


def card(plan: Plan, described: RunDescription, chosen: Mapping[str, Any], notes: Mapping[str, Any]) -> str:
    """README.md of the run: of what it was averaged, its accuracy, how to use it."""
    accepted = [each["accepted"] for each in notes["members"]]
    rows = [
        f"| {each.trained.id[:12]} | {each.which} | {each.step} | {each.sha256[:12]} | {'yes' if taken else 'no'} |"
        for each, taken in zip(plan.members, accepted, strict=True)
    ]
    scores = [
        f"| {escape_markdown(name)} | {'target' if name in described.settings['targets'] else 'source'} | "
        + ", ".join(f"{which} {100 * share:.1f} %" for which, share in splits.items()) + " |"
        for name, splits in chosen["accuracy"].items()
    ]  # fmt: skip
    alpha = f", alpha {chosen['log']['alpha']:g}" if "alpha" in chosen["log"] else ""
    return CARD.format(
        label=escape_markdown(label(plan)), data=escape_markdown(str(described.settings["dataset"])), use=USE,
        scores="\n".join(scores), alpha=alpha, validation=f"{100 * chosen['validation']:.1f}", rows="\n".join(rows),
    )  # fmt: skip


CARD = """# {label} on {data}
{use}
| domain | role | accuracy |
|---|---|---|
{scores}

These weights were not trained as they are: they are made of those of finished runs{alpha}. What was chosen was chosen
by the mean accuracy on images of the sources that no member was trained on ({validation} %), never by the target.

| member | model | step | SHA-256 | averaged |
|---|---|---|---|---|
{rows}

`run.json` has every setting, those of the first member, and the members in full; `records.jsonl` every model that was
scored; `result.json` the SHA-256 of each file.
"""
