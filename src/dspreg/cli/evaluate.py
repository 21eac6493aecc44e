"""`dspreg evaluate`: how good a trained run is, domain by domain."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspreg.cli.options import choose_device, dataset, dataset_with_columns, device_flag, integer, trust, which
from dspreg.cli.parser import Commands, add_command
from dspreg.config.dataset_ref import DatasetRef
from dspreg.errors import ConfigError
from dspreg.io.text import align_columns, escape_terminal
from dspreg.runs.model_file import require_model

if TYPE_CHECKING:
    from dspreg.inference.calibrate import Calibration
    from dspreg.inference.evaluate_run import RunEvaluation
    from dspreg.inference.intervals import Interval

EXAMPLES = """examples:
  dspreg evaluate runs/print                                on its own data set
  dspreg evaluate runs/print --dataset folder:new-photos    on images of your own: domain/class/image
  dspreg evaluate runs/sketch --domain sketch --adapt bn    batch-norm statistics of the images evaluated
  dspreg evaluate runs/scans --at sensitivity=0.95 --positive tumour
  dspreg evaluate runs/print --calibrate                    find and keep the temperature of its probabilities
  dspreg evaluate runs/print --json > scores.json

on domains that the run was trained on, only held-out images count. Images that it was trained on are known by their
contents, whatever data set they come through: there are scores without them. Classes are matched by name."""
MAX_CLASSES = 30  # accuracies by class are printed up to this number
MAX_ROWS = 40  # of metadata


def add(commands: Commands) -> None:
    parser = add_command(commands, "evaluate", "evaluate a trained model on every domain of a data set", EXAMPLES)
    parser.add_argument("run_folder", metavar="RUN", help="the folder that dspreg train left")
    dataset(parser)
    parser.add_argument("--domain", metavar="D", nargs="+", default=[], help="only these domains (default: all)")
    says = "bn: recompute batch-norm statistics on the images evaluated (without labels); the model has then seen them"
    parser.add_argument("--adapt", choices=("none", "bn"), default="none", help=says)
    says = (
        "an operating point: the threshold of one class, chosen on held-out images of the sources, with what comes of "
    )
    says += "it on every domain; sensitivity, specificity or precision=SHARE; may be given several times"
    parser.add_argument("--at", metavar="MEASURE=SHARE", action="append", default=[], help=says)
    says = "the class of --at (default: of two classes the second)"
    parser.add_argument("--positive", metavar="CLASS", help=says)
    says = "first find the temperature of the probabilities on held-out images of the sources, and keep it in the run: "
    says += "evaluate, predict, export and dspreg.load use it from then on"
    parser.add_argument("--calibrate", action="store_true", help=says)
    says = "folder for scores.json, predictions.csv, per_class.csv, confusion.csv, roc.png, reliability.png and "
    says += "confusion.png (default: RUN/evaluation-DATASET; --domain, --which and --adapt are added to its name)"
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

    from dspreg.inference.calibrate import calibrate_run
    from dspreg.inference.evaluate_run import evaluate_run
    from dspreg.inference.metric_files import as_json, save
    from dspreg.io.atomic_files import require_folder

    device = choose_device(given.device)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("evaluating", total=None)
        how: dict[str, Any] = {
            "dataset": dataset_with_columns(given.dataset, given) or None, "root": given.root, "name": given.name,
            "which": given.which, "device": device, "workers": given.workers, "batch": given.batch,
            "trust": given.trust, "progress": lambda done, total: bar.update(task, completed=done, total=total),
        }  # fmt: skip
        own = how if not given.dataset else {**how, "dataset": None, "root": None, "name": None}
        calibration = calibrate_run(given.run_folder, **own) if given.calibrate else None
        found = evaluate_run(
            given.run_folder, domains=given.domain, adapt=given.adapt, at=given.at, positive=given.positive, **how
        )
    out = Path(given.out) if given.out else Path(given.run_folder) / folder_name(found, given.domain)
    if not given.out:
        require_folder(out)
    names = save(found, out, follow=bool(given.out))
    if calibration is not None:
        print(calibration_text(calibration), file=sys.stderr, flush=True)
    if given.json:
        print(json.dumps(as_json(found), indent=1, ensure_ascii=True, sort_keys=True))
    else:
        print("\n".join(text(found)))
        folder = escape_terminal(str(out))
        print(f"\nin {folder}: {', '.join(names)}")
    return 0


def check_before_loading(given: Any) -> None:
    """A run or a data set that is not there is said before torch is loaded, which takes seconds."""
    require_model(given.run_folder, given.which)
    if given.positive is not None and not given.at:
        raise ConfigError("--positive names the class of an operating point; add one, as in --at sensitivity=0.95")
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


def calibration_text(found: Calibration) -> str:
    """What calibrating did, in a line."""
    before, after = found.log_loss
    errors = " → ".join(f"{100 * each:.1f} %" for each in found.calibration_error)
    return (
        f"calibrated: temperature {found.temperature:.3g} on {found.images:,} held-out images of the sources; "
        "there log loss "
        f"{before:.3f} → {after:.3f}, calibration error {errors}"
    )


HEADS = {
    "class_mean": "class mean", "macro_f1": "F1", "auroc": "AUROC", "average_precision": "avg. prec.",
    "calibration_error": "calib. error", "log_loss": "log loss",
}  # fmt: skip
ROLES = {
    "unseen": "unseen",
    "source": "sources",
    "test images of a source": "tests",
    "changed source": "changed sources",
}


def text(found: RunEvaluation) -> Iterator[str]:
    """The tables."""
    from dspreg.inference.evaluate_run import mean_interval
    from dspreg.inference.metric_files import NUMBERS, mean
    from dspreg.metrics import ACCURACY

    calibrated = f", temperature {found.temperature:.3g}" if found.temperature != 1 else ""
    yield f"{escape_terminal(found.dataset)}, {found.which} model, of step {found.step}{calibrated}"
    if found.adapt != "none":
        yield "batch norm adapted on the images evaluated: the model has seen them, though not their labels"
    yield ""
    rows = [["domain", "part", "images", "accuracy", "95 %", *HEADS.values()]]
    for each in found.domains:
        numbers = {name: number(each) for name, number in NUMBERS.items()}
        images = f"{each.scores.images:,}"
        ends = _interval(each.interval(ACCURACY))
        rows.append([escape_terminal(each.domain), each.part, images, *_format_numbers(numbers, ends)])
        if each.without is not None:
            numbers = {name: number(each.without) for name, number in NUMBERS.items()}
            ends = _interval(each.without.interval(ACCURACY))
            rows.append(["", "not trained on", f"{each.without.scores.images:,}", *_format_numbers(numbers, ends)])
    for role, name in ROLES.items():
        group = found.of_role(role)
        if len(group) > 1 or (group and len(group) < len(found.domains)):
            images = f"{sum(each.scores.images for each in group):,}"
            numbers = {n: mean(group, n) for n in NUMBERS}
            ends = _interval(mean_interval(group, ACCURACY))
            rows.append([f"mean {name} ({len(group)})", "", images, *_format_numbers(numbers, ends)])
    yield from align_columns(rows, left=2)
    remarks = list(_remarks(found))
    yield from ["", *remarks] if remarks else []
    yield from _points(found)
    yield from _by_metadata(found)
    yield from _by_class(found)


def _format_numbers(numbers: dict[str, float | None], interval: str) -> list[str]:
    accuracy, *rest = (_format_number(numbers[name], name) for name in ("accuracy", *HEADS))
    return [accuracy, interval, *rest]


def _format_number(value: float | None, name: str) -> str:
    if value is None:
        return "–"
    if name in ("auroc", "average_precision", "macro_f1", "log_loss"):
        return f"{value:.3f}"
    return f"{100 * value:.1f} %"


def _interval(ends: Interval | None) -> str:
    return f"{100 * ends[0]:.1f} – {100 * ends[1]:.1f}" if ends else "–"


def _remarks(found: RunEvaluation) -> Iterator[str]:
    if len(found.domains) > 1:
        yield f"worst domain: {escape_terminal(found.worst.domain)}, {100 * found.worst.scores.accuracy:.1f} %"
    for each in found.domains:
        name, number = escape_terminal(each.domain), each.scores.images
        if each.trained_on and each.without is None:
            yield f"{name}: the run was trained on all {number:,} images; this is no estimate for new ones"
        elif each.trained_on:
            yield f"{name}: the run was trained on {each.trained_on:,} of the {number:,} images, told by their contents"
    grouped = [each for each in found.domains if each.answers is not None and each.answers.groups is not None]
    groups = ", ".join(
        f"{escape_terminal(each.domain)} {each.answers.independent:,}" for each in grouped if each.answers
    )
    by = f"whole groups of images: {groups}" if groups else "images"
    yield f"95 %: for other images of the same domains, by a bootstrap of {by}; a further domain is another matter"
    if any(each.answers is not None and not each.resampled for each in found.domains):
        yield "– : fewer than two groups of images, of which no interval can be said"
    roles = {each.role for each in found.domains}
    if "source" in roles:
        yield "out: the run was trained on this domain; only the images held out from training are scored"
        if found.augmented:
            yield "images are plain here; the run's own records score augmented ones of its sources, as DomainBed does"
    if "test images of a source" in roles:
        yield "test: images of a source that its table sets apart: neither trained on nor validated with"
    if "changed source" in roles:
        names = ", ".join(escape_terminal(each.domain) for each in found.domains if each.role == "changed source")
        yield f"{names}: same name as a source domain, but not the same images, labels and groups"


def _points(found: RunEvaluation) -> Iterator[str]:
    """What comes of the thresholds that `--at` asks for."""
    if not found.points:
        return
    yield ""
    head = ["operating point", "domain", "threshold", "sensitivity", "specificity", "precision", "positive", "negative"]
    rows = [head]
    for each in found.points:
        shares = [each.sensitivity, each.specificity, each.precision]
        marked = " *" if each.own else ""
        rows.append([
            f"{escape_terminal(each.positive)}: {each.demand}", f"{escape_terminal(each.domain)}{marked}",
            "none" if each.threshold > 1 else f"{each.threshold:.4g}",
            *("–" if share is None else f"{100 * share:.1f} %" for share in shares),
            f"{each.tp + each.fn:,}", f"{each.tn + each.fp:,}",
        ])  # fmt: skip
    yield from align_columns(rows, left=2)
    where = ", ".join(map(escape_terminal, found.points[0].chosen_on))
    if all(each.own and len(each.chosen_on) == 1 for each in found.points):
        yield "* no held-out source is here: the threshold was chosen on the images it is judged by, and looks too good"
    else:
        yield f"thresholds were chosen on the held-out images of {where} together; * judged by images it was chosen on"


def _by_metadata(found: RunEvaluation) -> Iterator[str]:
    """Accuracy by every column of metadata that the data set has."""
    from dspreg.inference.metric_files import by_metadata

    rows = [["domain", "column", "value", "images", "accuracy", "95 %"]]
    for domain, column, value, images, share, ends in by_metadata(found.domains):
        names = [escape_terminal(each) for each in (domain, column, value)]
        rows.append([*names, f"{images:,}", f"{100 * share:.1f} %", _interval(ends)])
    if len(rows) > 1:
        yield ""
        shown = rows[: MAX_ROWS + 1]
        yield from align_columns(shown, left=3)
        if len(shown) < len(rows):
            yield f"and {len(rows) - len(shown):,} more in by_metadata.csv"


def _by_class(found: RunEvaluation) -> Iterator[str]:
    classes = sorted({c for each in found.domains for c in each.scores.by_class})
    yield ""
    if len(classes) > MAX_CLASSES:
        yield f"accuracy of the {len(classes)} classes: see per_class.csv"
        return
    rows = [["accuracy in % (images)", *(escape_terminal(each.domain) for each in found.domains)]]
    for c in classes:
        shares = [each.scores.by_class.get(c) for each in found.domains]
        cells = ["" if s is None else f"{100 * s[1]:.1f} ({s[0]:,})" for s in shares]
        rows.append([escape_terminal(found.classes[c]), *cells])
    yield from align_columns(rows)
