"""`dspreg data`: which data sets there are, and whether the files are sound."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from dspreg.cli.parser import Commands, described
from dspreg.errors import ConfigError, Notice
from dspreg.io.text import did_you_mean

EXAMPLES = """examples:
  dspreg data list
  dspreg data verify PACS --root data
  dspreg data verify photos                a folder of domain/class/image
  dspreg data verify index:photos.csv"""


def add(commands: Commands) -> None:
    parser = described(commands, "data", "list the data sets, or verify one image by image", EXAMPLES)
    actions = parser.add_subparsers(required=True, metavar="list|verify", dest="action")
    listed = described(actions, "list", "list the data sets", EXAMPLES)
    listed.set_defaults(run=show)
    verified = described(actions, "verify", "decode every image, count, and find copies across domains", EXAMPLES)
    verified.add_argument("path", metavar="PATH", help="a folder, a CSV index, or the name of a data set")
    verified.add_argument("--root", metavar="DIR", help="folder that holds the data sets (default: data)")
    verified.set_defaults(run=verify)


def show(given: Any) -> int:  # noqa: ARG001
    from dspreg.data.named import listing

    print(listing())
    return 0


def verify(given: Any) -> int:
    from rich.console import Console
    from rich.progress import Progress

    from dspreg.data.named import dataset_named, known_names
    from dspreg.data.verify import verify as verified

    text = given.path
    if ":" not in text and Path(text).exists() and text not in known_names():
        text = f"index:{text}" if Path(text).is_file() else f"folder:{text}"
    elif ":" not in text and "." not in text and text not in known_names():
        raise ConfigError(f"{text!r} is no folder, file or data set.{did_you_mean(text, known_names())} See data list")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)  # the report says them all
        data = dataset_named(text, given.root)
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("decoding", total=None)
        report = verified(data, lambda done, total: bar.update(task, completed=done, total=total))
    print(report.text())
    return 0 if report.ok else 3
