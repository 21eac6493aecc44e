"""`dspreg data`: which data sets there are, and whether the files are sound."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from dspreg.cli.parser import Commands, add_command
from dspreg.config.dataset_ref import DatasetRef
from dspreg.errors import ConfigError, Notice
from dspreg.io.text import did_you_mean

EXAMPLES = """examples:
  dspreg data list
  dspreg data verify PACS --root data
  dspreg data verify photos                a folder of domain/class/image
  dspreg data verify index:photos.csv"""


def add(commands: Commands) -> None:
    parser = add_command(commands, "data", "list the data sets, or verify one image by image", EXAMPLES)
    actions = parser.add_subparsers(required=True, metavar="list|verify", dest="action")
    listing = add_command(actions, "list", "list the data sets", EXAMPLES)
    listing.set_defaults(run=show)
    says = "decode every image, count images, and find duplicates across domains"
    verifying = add_command(actions, "verify", says, EXAMPLES)
    verifying.add_argument("path", metavar="PATH", help="a folder, a CSV index, or the name of a data set")
    verifying.add_argument("--root", metavar="DIR", help="folder that holds the data sets (default: data)")
    verifying.set_defaults(run=verify)


def show(given: Any) -> int:  # noqa: ARG001
    from dspreg.data.registry import dataset_table

    print(dataset_table())
    return 0


def verify(given: Any) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from dspreg.data.registry import dataset_names, open_dataset
    from dspreg.data.verify import verify as verify_dataset

    ref = guess_reference(given.path, dataset_names())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # the verification reports them all
        data = open_dataset(str(ref), given.root)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("decoding", total=None)
        found = verify_dataset(data, lambda done, total: bar.update(task, completed=done, total=total))
    print(found.text())
    return 0 if found.ok else 3


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
