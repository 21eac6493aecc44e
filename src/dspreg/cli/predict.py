"""`dspreg predict`: classify images with a trained model."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dspreg.cli.options import choose_device, device_flag, integer, share, trust, which
from dspreg.cli.parser import Commands, add_command
from dspreg.io.text import align_columns, escape_csv, escape_terminal
from dspreg.runs.model_file import reading_of, require_model

if TYPE_CHECKING:
    from dspreg.inference.predict import Prediction

EXAMPLES = """examples:
  dspreg predict runs/print photo.jpg
  dspreg predict runs/print inbox                 all images below a folder
  dspreg predict runs/print "inbox/*.jpg"         what the pattern matches
  dspreg predict runs/print today.csv             the paths in its column path, image or file
  dspreg predict runs/print inbox --unknown-below 0.5
  dspreg predict runs/print inbox --csv > classes.csv

images that can't be read are listed on stderr; the others are classified, and the exit code is 3."""


def add(commands: Commands) -> None:
    parser = add_command(commands, "predict", "classify images with a trained model", EXAMPLES)
    parser.add_argument("run_folder", metavar="RUN", help="the folder that dspreg train left")
    parser.add_argument("images", metavar="IMAGE", nargs="+",
                        help="image files, folders of them, patterns in quotes, or CSV files of paths")  # fmt: skip
    says = "call images unknown whose most probable class is less probable than P"
    parser.add_argument("--unknown-below", metavar="P", type=share, default=0.0, help=says)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="print CSV with the probability of every class")
    form.add_argument("--json", action="store_true", help="print JSON, a line for each image, faults among them")
    parser.add_argument(
        "--batch", metavar="N", type=integer("evaluation_batch"), default=64, help="images per batch (default: 64)"
    )
    which(parser)
    trust(parser)
    device_flag(parser)
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    from dspreg.inference.image_files import image_files

    require_model(given.run_folder, given.which)
    kinds = reading_of(given.run_folder).kinds
    files = image_files(given.images, kinds)  # both before torch is loaded, which takes seconds

    from rich.console import Console
    from rich.progress import Progress

    from dspreg.inference.predict import predict_images

    device = choose_device(given.device)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("predicting", total=None)
        found = predict_images(
            given.run_folder, files, which=given.which, batch=given.batch, device=device,
            trust=given.trust, unknown_below=given.unknown_below,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )  # fmt: skip
    good = [each for each in found if not each.fault]
    if given.json:
        _json(found)
    elif given.csv:
        _csv(good, found[0].classes, flags=given.unknown_below > 0)
    elif good:
        print("\n".join(_table(good, found[0].classes)))
    sys.stdout.flush()  # before the messages on stderr, if both go to one terminal
    for each in found:
        if each.fault:
            print(f"dspreg: {escape_terminal(str(each.path))}: {escape_terminal(each.fault)}", file=sys.stderr)
    if len(good) < len(found):
        print(f"dspreg: {len(found) - len(good)} of {len(found)} images can't be used", file=sys.stderr)
        return 3
    return 0


def _table(good: Sequence[Prediction], classes: Sequence[str]) -> list[str]:
    second = len(classes) > 1
    rows = [["image", "class", "probability", *(["second best", "probability"] if second else [])]]
    for each in good:
        row = [escape_terminal(str(each.path))]
        for rank in range(2 if second else 1):
            c = each.best(rank)
            name = escape_terminal(classes[c])
            row += [f"unknown ({name}?)" if each.flag and not rank else name, _percent(each.probabilities[c])]
        rows.append(row)
    return list(align_columns(rows, left=len(rows[0])))


def _percent(probability: float) -> str:
    return f"{100 * probability:5.1f} %"


def _csv(good: Sequence[Prediction], classes: Sequence[str], *, flags: bool) -> None:
    out = csv.writer(sys.stdout, lineterminator="\n")
    flag = ["flag"] if flags else []
    out.writerow(["path", "class", "probability", *flag, *(escape_csv(f"p_{name}") for name in classes)])
    for each in good:
        best = each.best()
        numbers = [f"{p:.6g}" for p in each.probabilities]
        said = [each.flag] if flags else []
        out.writerow([escape_csv(str(each.path)), escape_csv(classes[best]), numbers[best], *said, *numbers])


def _json(found: Sequence[Prediction]) -> None:
    for each in found:
        about = {
            "path": str(each.path),
            "class": each.label,
            "probability": max(each.probabilities, default=None),
            "flag": each.flag,
            "fault": each.fault,
            "probabilities": dict(zip(each.classes, each.probabilities, strict=False)),
        }
        print(json.dumps(about, ensure_ascii=True, allow_nan=False))
