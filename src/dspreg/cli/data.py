"""`dspreg data`: which data sets there are, get one, and whether the files are sound."""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dspreg.cli.options import columns, dataset_with_columns
from dspreg.cli.parser import Commands, add_command
from dspreg.config.dataset_ref import DatasetRef
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

exit codes: 0; 3 if there is an error, which a training would refuse. Warnings are what it would say and go on."""

GET_EXAMPLES = """examples:
  dspreg data get PACS                                   from the first place that has it, into data/PACS
  dspreg data get OfficeHome --root /datasets
  dspreg data get VLCS --from VLCS.tar.gz                an archive that you have
  dspreg data get DomainNet --from downloads             a folder with its archives
  dspreg data get TerraIncognita --from https://…/images.tar.gz --from https://…/annotations.tar.gz
  dspreg data get RotatedMNIST --from mnist              MNIST's four files, packed or not

downloads are resumed, archives are unpacked beside the final folder, every image is decoded, and the folder gets its
name when everything is right. manifest.tsv in it lists path, size and SHA-256 of every file.
exit codes: 0; 3 if what came is not the data set; 6 if no place could be reached, with what to fetch by hand"""


def add(commands: Commands) -> None:
    parser = add_command(commands, "data", "list the data sets, get one, or verify one image by image", EXAMPLES)
    actions = parser.add_subparsers(required=True, metavar="list|get|verify", dest="action")
    listing = add_command(actions, "list", "list the data sets", EXAMPLES)
    listing.set_defaults(run=show)
    says = "download a benchmark, verify it, and put it in DomainBed's layout"
    getting = add_command(actions, "get", says, GET_EXAMPLES)
    getting.add_argument("name", metavar="NAME", help="PACS, VLCS, OfficeHome, TerraIncognita, DomainNet, …")
    says = "folder that holds the data sets (default: data)"
    getting.add_argument("--root", metavar="DIR", default="data", help=says)
    says = "take it from an address, a folder or an archive of yours; may be given several times"
    getting.add_argument("--from", metavar="URL|DIR|ARCHIVE", dest="origins", action="append", default=[], help=says)
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
    columns(verifying)
    verifying.set_defaults(run=verify)


def show(given: Any) -> int:  # noqa: ARG001
    from dspreg.data.registry import dataset_table

    print(dataset_table())
    return 0


def get(given: Any) -> int:
    from dspreg.data.digits import Digits
    from dspreg.data.registry import dataset_names
    from dspreg.data.sources import get_dataset

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
