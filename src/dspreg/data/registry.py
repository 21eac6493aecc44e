"""From what the user writes after `--dataset` to a data set."""

from __future__ import annotations

from pathlib import Path

from dspreg.config.dataset_ref import DatasetRef
from dspreg.data.base import DomainDataset
from dspreg.data.benchmarks import BENCHMARKS
from dspreg.data.csv_index import Index
from dspreg.data.digits import Digits
from dspreg.data.folders import Folder
from dspreg.data.hub_dataset import HubDataset
from dspreg.data.mnist import MNIST_SETS
from dspreg.errors import ConfigError
from dspreg.io.importing import Trust, import_object, is_import_path
from dspreg.io.text import nearest

ROOT = "data"


def dataset_names() -> list[str]:
    """The data sets that are known by name."""
    return [Digits.name, *BENCHMARKS, *MNIST_SETS]


def dataset_class(text: str) -> type[DomainDataset] | None:
    """The class of a data set whose domains and classes are known before its files are there."""
    return Digits if text == Digits.name else BENCHMARKS.get(text) or MNIST_SETS.get(text)


def open_dataset(
    text: str,
    root: str | Path | None = None,
    name: str | None = None,
    *,
    trust: Trust = None,
    lenient: bool = False,
) -> DomainDataset:
    """Open the data set a text stands for.

    Args:
        text: `"digits"`, one of the five benchmarks, RotatedMNIST or ColoredMNIST, `"folder:PATH"`, `"index:FILE.csv"`,
            `"hf:owner/set"`, or the import path of your own `DomainDataset`, which is called with `root`.
        root: Where the benchmarks lie, `data` unless given; for an index, what its paths are relative to.
        name: Of a folder or an index in records and tables.
        trust: For a text that a file holds: modules that it may name besides dspreg's own, as in `dspreg.load`.
        lenient: Leave out what a folder or an index has at fault, and keep it as `faults`, instead of refusing.
    """
    ref = DatasetRef.parse(text)
    ref.check_name(name)
    if ref.kind == "folder":
        return Folder(ref.target, name, dict(ref.says).get("group"), lenient=lenient)
    if ref.kind == "index":
        return Index(ref.target, root, name, dict(ref.says), lenient=lenient)
    if ref.kind == "hf":
        return HubDataset(ref)
    if text == Digits.name:
        return Digits()
    if text in BENCHMARKS:
        return BENCHMARKS[text](ROOT if root is None else root)
    if text in MNIST_SETS:
        return MNIST_SETS[text](ROOT if root is None else root)
    if is_import_path(text):
        return _import_dataset(text, trust)(ROOT if root is None else root)
    known = dataset_names()
    near = nearest(text, known, 0.7)
    if near is None and Path(text).is_dir():
        near = f"folder:{text}"
    raise ConfigError(
        f"unknown data set {text!r}.{f' Did you mean {near!r}?' if near else ''} Known: {', '.join(known)}. "
        f"For your own images write folder:PATH or index:FILE.csv, for one of the hub hf:owner/set, "
        f"for your own class its import path, e.g. 'my_data.Mine'."
    )


def _import_dataset(text: str, trust: Trust) -> type[DomainDataset]:
    found = import_object(text, trust)
    if not (isinstance(found, type) and issubclass(found, DomainDataset)):
        raise ConfigError(f"{text!r} is not a class of data sets. Derive it from dspreg.DomainDataset.")
    return found


def dataset_table() -> str:
    """One line per data set: name, domains, classes, images, and what to write for it."""
    rows = [("name", "domains", "classes", "images", "--dataset")]
    rows.append((Digits.name, "4", "10", "4,797", f"{Digits.name}, nothing to download"))
    for name, made in BENCHMARKS.items():
        images = f"{sum(made.counts.values()):,}"
        where = f"{name} --root DIR, with DIR/{made.subfolder}"
        rows.append((name, str(len(made.domains)), str(len(made.classes)), images, where))
    for name, digits in MNIST_SETS.items():
        where = f"{name} --root DIR, with DIR/{digits.subfolder}"
        rows.append((name, str(len(digits.domains)), str(len(digits.classes)), "70,000", where))
    rows.append(("the hub's", "any", "any", "any", "hf:owner/set, on the Hugging Face hub"))
    rows.append(("your folders", "any", "any", "any", "folder:PATH, with PATH/domain/class/image.jpg"))
    rows.append(("your table", "any", "any", "any", "index:FILE.csv, with columns path,label,domain"))
    rows.append(("your class", "any", "any", "any", "my_data.Mine, a DomainDataset here or on PYTHONPATH"))
    widths = [max(len(row[i]) for row in rows) for i in range(4)]
    return "\n".join(
        f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}  {row[4]}"
        for row in rows
    )
