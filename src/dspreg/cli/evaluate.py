"""`dspreg evaluate`: how good a trained run is, domain by domain."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspreg.cli.options import choose_device, dataset, dataset_with_columns, device_flag, integer, trust, which
from dspreg.cli.parser import Commands, add_command
from dspreg.config.dataset_ref import DatasetRef
from dspreg.io.text import align_columns, escape_terminal
from dspreg.runs.model_file import require_model

if TYPE_CHECKING:
    from dspreg.inference.evaluate_run import RunEvaluation

EXAMPLES = """examples:
  dspreg evaluate runs/print                                on its own data set
  dspreg evaluate runs/print --dataset folder:new-photos    on images of your own: domain/class/image
  dspreg evaluate runs/sketch --domain sketch --adapt bn    batch-norm statistics of the images evaluated
  dspreg evaluate runs/print --json > scores.json

on domains that the run was trained on, only held-out images count. Images that it was trained on are known by their
contents, whatever data set they come through: there are scores without them. Classes are matched by name."""
MAX_CLASSES = 30  # accuracies by class are printed up to this number


def add(commands: Commands) -> None:
    parser = add_command(commands, "evaluate", "evaluate a trained model on every domain of a data set", EXAMPLES)
    parser.add_argument("run_folder", metavar="RUN", help="the folder that dspreg train left")
    dataset(parser)
    parser.add_argument("--domain", metavar="D", nargs="+", default=[], help="only these domains (default: all)")
    says = "bn: recompute batch-norm statistics on the images evaluated (without labels); the model has then seen them"
    parser.add_argument("--adapt", choices=("none", "bn"), default="none", help=says)
    says = "folder for scores.json, per_class.csv, confusion.csv and confusion.png (default: RUN/evaluation-DATASET; "
    says += "--domain, --which and --adapt are added to its name)"
    parser.add_argument("--out", metavar="DIR", help=says)
    parser.add_argument("--json", action="store_true", help="print scores.json instead of tables")
    parser.add_argument(
        "--batch", metavar="N", type=integer("evaluation_batch"), help="images per batch (default: as in training)"
    )
    parser.add_argument("--workers", metavar="N", type=integer("workers", 0), help="processes that read images")
    which(parser)
    trust(parser)
    device_flag(parser)
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    check_before_loading(given)

    from rich.console import Console
    from rich.progress import Progress

    from dspreg.inference.evaluate_run import evaluate_run
    from dspreg.inference.metric_files import as_json, save
    from dspreg.io.atomic_files import require_folder

    device = choose_device(given.device)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("evaluating", total=None)
        found = evaluate_run(
            given.run_folder, dataset=dataset_with_columns(given.dataset, given) or None, root=given.root,
            name=given.name, domains=given.domain,
            adapt=given.adapt, which=given.which, device=device, workers=given.workers, batch=given.batch,
            trust=given.trust,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip
    out = Path(given.out) if given.out else Path(given.run_folder) / folder_name(found, given.domain)
    if not given.out:
        require_folder(out)
    save(found, out, follow=bool(given.out))
    if given.json:
        print(json.dumps(as_json(found), indent=1, ensure_ascii=True, sort_keys=True))
    else:
        print("\n".join(text(found)))
        picture = escape_terminal(str(out / "confusion.png"))
        print(f"\npicture and files: {picture}, scores.json, per_class.csv, confusion.csv")
    return 0


def check_before_loading(given: Any) -> None:
    """A run or a data set that is not there is said before torch is loaded, which takes seconds."""
    require_model(given.run_folder, given.which)
    ref = DatasetRef.parse(given.dataset) if given.dataset else None
    if ref is not None and ref.is_path and not Path(ref.target).exists():
        from dspreg.data.registry import open_dataset

        open_dataset(given.dataset, given.root, given.name)  # raises, with what is wanted there


def folder_name(found: RunEvaluation, domains: Sequence[str]) -> str:
    """One folder per combination of options, so that no result overwrites another."""
    parts = ["evaluation", found.dataset, *domains]
    if found.which != "selected":
        parts += ["last" if found.which == "last" else f"step-{found.step}"]
    parts += [f"adapt-{found.adapt}"] if found.adapt != "none" else []
    return re.sub(r"[^\w.-]", "_", "-".join(parts))[:120]


def text(found: RunEvaluation) -> Iterator[str]:
    """The tables."""
    from dspreg.inference.metric_files import NUMBERS, mean

    yield f"{escape_terminal(found.dataset)}, {found.which} model, of step {found.step}"
    if found.adapt != "none":
        yield "batch norm adapted on the images evaluated: the model has seen them, though not their labels"
    yield ""
    rows = [["domain", "part", "images", "accuracy", "class mean", "calibration error", "log loss"]]
    for each in found.domains:
        numbers = {name: number(each.scores) for name, number in NUMBERS.items()}
        rows.append([escape_terminal(each.domain), each.part, f"{each.scores.images:,}", *_format_numbers(numbers)])
        if each.without is not None:
            numbers = {name: number(each.without) for name, number in NUMBERS.items()}
            rows.append(["", "not trained on", f"{each.without.images:,}", *_format_numbers(numbers)])
    groups = [("mean", found.domains)]
    if found.unseen and len(found.unseen) < len(found.domains):
        groups.append(("mean unseen", found.unseen))
    if len(found.domains) > 1:
        rows += [[name, "", "", *_format_numbers({n: mean(group, n) for n in NUMBERS})] for name, group in groups]
    yield from align_columns(rows, left=2)
    remarks = list(_remarks(found))
    yield from ["", *remarks] if remarks else []
    yield from _by_class(found)


def _format_numbers(numbers: dict[str, float]) -> list[str]:
    shares = [f"{100 * numbers[name]:.1f} %" for name in ("accuracy", "class_mean", "calibration_error")]
    return [*shares, f"{numbers['log_loss']:.3f}"]


def _remarks(found: RunEvaluation) -> Iterator[str]:
    if len(found.domains) > 1:
        yield f"worst domain: {escape_terminal(found.worst.domain)}, {100 * found.worst.scores.accuracy:.1f} %"
    for each in found.domains:
        name, number = escape_terminal(each.domain), each.scores.images
        if each.trained_on and each.without is None:
            yield f"{name}: the run was trained on all {number:,} images; this is no estimate for new ones"
        elif each.trained_on:
            yield f"{name}: the run was trained on {each.trained_on:,} of the {number:,} images, told by their contents"
    roles = {each.role for each in found.domains}
    if "source" in roles:
        parts = {each.part for each in found.domains if each.role == "source"}
        if "out" in parts:
            yield "out: the run was trained on this domain; only the images held out from training are scored"
        if "test" in parts:
            yield "test: the run was trained on this domain; only the images that its table sets apart are scored"
        if found.augmented:
            yield "images are plain here; the run's own records score augmented ones of its sources, as DomainBed does"
    if "changed source" in roles:
        names = ", ".join(escape_terminal(each.domain) for each in found.domains if each.role == "changed source")
        yield f"{names}: same name as a source domain, but other images"


def _by_class(found: RunEvaluation) -> Iterator[str]:
    classes = sorted({c for each in found.domains for c in each.scores.by_class})
    yield ""
    if len(classes) > MAX_CLASSES:
        yield f"accuracy of the {len(classes)} classes: see per_class.csv"
        return
    rows = [["accuracy in %", *(escape_terminal(each.domain) for each in found.domains)]]
    for c in classes:
        shares = [each.scores.by_class.get(c) for each in found.domains]
        rows.append([escape_terminal(found.classes[c]), *("" if s is None else f"{100 * s[1]:.1f}" for s in shares)])
    yield from align_columns(rows)
