"""`dspreg data`: which data sets there are, get one, whether the files are sound, and what the network sees of them."""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspreg.cli.options import add_option, columns, dataset_with_columns, hub_columns, integer
from dspreg.cli.parser import Commands, add_command
from dspreg.config.dataset_ref import DatasetRef
from dspreg.config.parse import parse_option
from dspreg.config.train_config import TRAIN_OPTIONS, TrainConfig, resolve_config
from dspreg.errors import ConfigError, Notice
from dspreg.io.text import did_you_mean, escape_terminal

if TYPE_CHECKING:
    from dspreg.download.transfer import Progress

EXAMPLES = """examples:
  dspreg data list
  dspreg data get PACS                       into data/PACS; run it again to resume
  dspreg data verify PACS --root data
  dspreg data verify photos                  a folder of domain/class/image
  dspreg data verify index:photos.csv
  dspreg data verify index:photos.csv --columns path=filename,label=class,domain=site,group=patient
  dspreg data verify photos --group 'patient-([0-9]+)' --picture counts.png --list-bad bad.txt
  dspreg data verify hf:owner/set --domain-column site
  dspreg data verify scans --channels 5 --window 0:4095      read as a training with these options would
  dspreg data show photos --out sheet.png    what the network will see, by domain and class

exit codes: 0; 3 if there is an error, which a training would refuse. Warnings are what it would say and go on."""

SHOW_EXAMPLES = """examples:
  dspreg data show PACS --root data                      into PACS.html
  dspreg data show photos --out sheet.png                a folder of domain/class/image, as one picture
  dspreg data show photos --resize pad --augment light   as a training with these options would read and change them
  dspreg data show scans --window -1000:400 --class nodule --images 8"""

SEEN = ("image_size", "augment", "exif", "alpha", "window", "channels", "resize", "shrink")  # options of a training
DECODED = ("exif", "alpha", "window", "channels")  # those that decide which files can be read

GET_EXAMPLES = """examples:
  dspreg data get PACS                                   from the first place that has it, into data/PACS
  dspreg data get OfficeHome --root /datasets
  dspreg data get VLCS --from VLCS.tar.gz                an archive that you have
  dspreg data get DomainNet --from downloads             a folder with its archives
  dspreg data get TerraIncognita --from https://…/images.tar.gz --from https://…/annotations.tar.gz
  dspreg data get RotatedMNIST --from mnist              MNIST's four files, packed or not
  dspreg data get hf:owner/set --domain-column site      a data set of the hub, into the cache that trainings look into

downloads are resumed, archives are unpacked beside the final folder, every image is decoded, and the folder gets its
name when everything is right. manifest.tsv in it lists path, size and SHA-256 of every file.
exit codes: 0; 3 if what came is not the data set; 6 if no place could be reached, with what to fetch by hand"""


def add(commands: Commands) -> None:
    parser = add_command(commands, "data", "list the data sets, get one, verify one, or look at its images", EXAMPLES)
    actions = parser.add_subparsers(required=True, metavar="list|get|verify|show", dest="action")
    listing = add_command(actions, "list", "list the data sets", EXAMPLES)
    listing.set_defaults(run=list_datasets)
    says = "download a benchmark, verify it, and put it in DomainBed's layout"
    getting = add_command(actions, "get", says, GET_EXAMPLES)
    getting.add_argument(
        "name", metavar="NAME", help="PACS, VLCS, OfficeHome, TerraIncognita, DomainNet, …, or hf:owner/set"
    )
    says = "folder that holds the data sets (default: data)"
    getting.add_argument("--root", metavar="DIR", default="data", help=says)
    says = "take it from an address, a folder or an archive of yours; may be given several times"
    getting.add_argument("--from", metavar="URL|DIR|ARCHIVE", dest="origins", action="append", default=[], help=says)
    hub_columns(getting)
    getting.set_defaults(run=get)
    says = "decode every image, count images, and find faults, duplicates and images that are nearly equal"
    verifying = add_command(actions, "verify", says, EXAMPLES)
    verifying.add_argument("path", metavar="PATH", help="a folder, a CSV index, or the name of a data set")
    verifying.add_argument("--root", metavar="DIR", help="folder that holds the data sets (default: data)")
    says = "look at all images, even if none changed since the last time"
    verifying.add_argument("--again", action="store_true", help=says)
    verifying.add_argument("--json", action="store_true", help="print all findings as JSON instead of text")
    says = "write the paths of images that can't be used to FILE, one per line, for other tools"
    verifying.add_argument("--list-bad", metavar="FILE", help=says)
    says = "draw how many images each class has in each domain"
    verifying.add_argument("--picture", metavar="FILE.png", help=says)
    for name in DECODED:
        add_option(verifying, TRAIN_OPTIONS[name])
    columns(verifying)
    verifying.set_defaults(run=verify)
    says = "a contact sheet of what the network will see, with and without augmentation"
    showing = add_command(actions, "show", says, SHOW_EXAMPLES)
    showing.add_argument("path", metavar="DATASET", help="a folder, a CSV index, or the name of a data set")
    showing.add_argument("--root", metavar="DIR", help="folder that holds the data sets (default: data)")
    says = "a picture or a page (default: the data set's name, .html)"
    showing.add_argument("--out", metavar="FILE.png|PAGE.html", help=says)
    says = "images of each class in each domain (default: 3)"
    showing.add_argument("--images", metavar="N", type=integer("images"), default=3, help=says)
    showing.add_argument("--domain", metavar="D", nargs="+", default=[], help="only these domains (default: all)")
    says = "only these classes (default: the first 20)"
    showing.add_argument("--class", metavar="C", nargs="+", default=[], dest="classes", help=says)
    for name in SEEN:
        add_option(showing, TRAIN_OPTIONS[name])
    columns(showing)
    showing.set_defaults(run=show)


def list_datasets(given: Any) -> int:  # noqa: ARG001
    from dspreg.data.registry import dataset_table

    print(dataset_table())
    return 0


def get(given: Any) -> int:
    from dspreg.data.digits import Digits
    from dspreg.data.registry import dataset_names
    from dspreg.data.sources import get_dataset

    if given.name.startswith("hf:"):
        return get_from_hub(given)
    dataset_with_columns(given.name, given)  # which refuses columns of anything else
    if given.name == Digits.name:
        print(f"{Digits.name}: made on the spot, nothing to get")
        return 0
    if given.name not in dataset_names():
        known = [name for name in dataset_names() if name != Digits.name]
        raise ConfigError(
            f"{given.name!r} can't be fetched.{did_you_mean(given.name, known)} Known: {', '.join(known)}"
        )
    with showing_progress() as (progress, decoding):
        found = get_dataset(given.name, given.root, given.origins, progress=progress, decoding=decoding, say=say)
    came = f", from {found.source}" if found.source else ""
    print(escape_terminal(f"{given.name}: {found.images:,} images in {found.folder}{came}"))
    for note in found.notes:
        print(escape_terminal(f"  {note}"))
    return 0


def get_from_hub(given: Any) -> int:
    """Into the cache, where every command looks for it."""
    from dspreg.data.hub_dataset import fetch_images
    from dspreg.download.manifest import NAME, read_manifest

    if given.origins:
        raise ConfigError(
            f"--from is for benchmarks; {given.name} comes from the hub, or from the one HF_ENDPOINT names"
        )
    ref = DatasetRef.parse(dataset_with_columns(given.name, given))
    with showing_progress() as (progress, _):
        folder = fetch_images(ref, progress)
    images = len(read_manifest(folder / NAME).files)
    print(escape_terminal(f"{ref}: {images:,} images in {folder}, from commit {folder.parent.name}"))
    return 0


def say(line: str) -> None:
    """On stderr, as all that is no result."""
    print(escape_terminal(line), file=sys.stderr, flush=True)


@contextmanager
def showing_progress() -> Iterator[tuple[Progress, Any]]:
    """Bars on a terminal; elsewhere a line now and then. Yields one for bytes and one for images."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        from dspreg.download.progress import ProgressLines

        yield ProgressLines(lambda line: say(f"  {line}")), None
        return
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    tasks: dict[str, Any] = {}
    shown = DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()
    with Progress(TextColumn("{task.description}"), BarColumn(), *shown, console=console, transient=True) as bar:

        def progress(name: str, done: int, total: int | None) -> None:
            if name not in tasks:
                tasks[name] = bar.add_task(escape_terminal(name), total=total)
            bar.update(tasks[name], completed=done, total=total)

        yield progress, lambda done, total: progress("verifying", done, total)


def verify(given: Any) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from dspreg.data.registry import dataset_names, open_dataset
    from dspreg.data.remember import recall_verification, remember_verification
    from dspreg.data.verify import verify as verify_dataset

    ref = guess_reference(given.path, dataset_names())
    with warnings.catch_warnings():
        if ref.kind != "hf":
            warnings.simplefilter("ignore", Notice)  # the verification reports them all
        data = open_dataset(dataset_with_columns(str(ref), given), given.root, lenient=True)
        if options := parse_given(given, DECODED):
            data.read_as(replace(data.reading, **options))
    if not given.again and (known := recall_verification(data)) is not None:
        put_verification(given, known.text, known.json)
        if not given.json:
            print("no file was touched since they were looked at; --again looks again")
        return 0 if known.ok else 3
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("decoding", total=None)
        found = verify_dataset(data, lambda done, total: bar.update(task, completed=done, total=total))
    remember_verification(data, found)
    put_verification(given, found.text(), found.as_json())
    return 0 if found.ok else 3


def show(given: Any) -> int:
    from dspreg.data.registry import dataset_names, open_dataset
    from dspreg.io.atomic_files import write_output

    out = Path(given.out) if given.out else None
    if out is not None and out.suffix.lower() not in (".png", ".html"):
        raise ConfigError(f"--out {str(out)!r}; wanted a name that ends in .png or .html")
    ref = dataset_with_columns(str(guess_reference(given.path, dataset_names())), given)
    data = open_dataset(ref, given.root)
    config = resolve_config(TrainConfig(dataset=ref, **parse_given(given, SEEN)), data)

    from dspreg.data.augmentation import require_augmentation
    from dspreg.data.contact_sheet import contact_sheet

    require_augmentation(config.augment)
    sheet = contact_sheet(data, config, images=given.images, domains=given.domain, classes=given.classes)
    place = out or Path(re.sub(r"[^\w.-]", "_", data.name)[:120] + ".html")
    write_output(place, sheet.png() if place.suffix.lower() == ".png" else sheet.html().encode())
    for reason in sheet.bad:
        say(f"dspreg: {reason}")
    print(escape_terminal(f"{data.name}: {' '.join(sheet.says)}"))
    print(f"see {escape_terminal(str(place))}")
    return 3 if sheet.bad else 0


def parse_given(given: Any, names: Iterable[str]) -> dict[str, Any]:
    """The options of a training that were said, as values."""
    said = {name: getattr(given, name) for name in names if getattr(given, name) is not None}
    return {name: parse_option(name, text, f"--{name.replace('_', '-')}") for name, text in said.items()}


def put_verification(given: Any, text: str, found: dict[str, Any]) -> None:
    """On stdout, and into the files that are asked for."""
    from dspreg.io.atomic_files import write_output

    if given.list_bad:
        files = [bad["file"] for bad in found["bad"] if bad["file"]]
        kept = [file for file in files if "\n" not in file]
        write_output(Path(given.list_bad), os.fsencode("".join(f"{file}\n" for file in kept)))
        if len(kept) < len(files):
            say(f"{len(files) - len(kept)} names with a line break in them are left out of {given.list_bad}")
    if given.picture:
        from dspreg.data.count_picture import draw_counts

        write_output(Path(given.picture), draw_counts(found["dataset"], found["counts"]))
    print(json.dumps(found, indent=1, ensure_ascii=True) if given.json else text)


def guess_reference(text: str, names: list[str]) -> DatasetRef:
    """The data set that was meant. Only this command accepts a path without `folder:` or `index:`."""
    ref = DatasetRef.parse(text)
    if text in names or ":" in text:
        return ref
    if Path(text).exists():
        return DatasetRef("index" if Path(text).is_file() else "folder", text)
    if "." not in text:  # else it may be an import path
        raise ConfigError(f"{text!r} is no folder, file or data set.{did_you_mean(text, names)} See data list")
    return ref
