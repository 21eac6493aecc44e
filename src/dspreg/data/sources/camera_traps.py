"""TerraIncognita from Caltech Camera Traps: which photographs DomainBed takes, and under which animal.

Its rule, as its script of 2024 has it: of the five lists of annotations that come with the images, taken together,
every image of the locations 38, 43, 46 and 100 goes to each of its animals that is one of the ten. Earlier scripts read
one list, of which there were two versions; a list of one's own is taken the same way. None of them limits the number.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dspreg.data.benchmarks import TerraIncognita
from dspreg.data.sources.arrange import Place
from dspreg.errors import DataError
from dspreg.io.atomic_files import parse_json, read_regular_file
from dspreg.io.text import join_few, plural

LARGEST = 2**29  # bytes of a list; the largest has about 100 MB


def arrange_camera_traps(trees: Sequence[Path], ready: Path, place: Place) -> None:
    """Put the photographs of the four locations where DomainBed has them.

    Raises:
        DataError: There are no annotations, or photographs that they name are missing.
    """
    lists = sorted(path for tree in trees for path in tree.rglob("*.json"))
    if not lists:
        raise DataError(f"there is no list of annotations (*.json) below {join_few([str(t) for t in trees], 2)}")
    images, labels, animals = read_annotations(lists)
    files = {path.name: path for tree in trees for path in tree.rglob("*.jpg")}
    missing = []
    for number, location, name in images:
        for animal in sorted({animals.get(label, "") for label in labels[number]} & set(TerraIncognita.classes)):
            target = ready / f"location_{location}" / animal / name
            if name not in files:
                missing.append(name)
            elif not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                place(files[name], target)
    if missing:
        raise DataError(f"{plural(len(missing), 'photograph')} of the annotations are missing: {join_few(missing, 3)}")


def read_annotations(
    lists: Sequence[Path],
) -> tuple[list[tuple[Any, str, str]], dict[Any, set[Any]], dict[Any, str]]:
    """All lists together: (id, location, file) of the images of the four locations, labels by id, names of labels."""
    wanted = {domain.removeprefix("location_") for domain in TerraIncognita.domains}
    images: list[tuple[Any, str, str]] = []
    labels: dict[Any, set[Any]] = defaultdict(set)
    animals: dict[Any, str] = {}
    for path in lists:
        content = parse_json(path, read_regular_file(path, limit=LARGEST))
        try:
            animals |= {each["id"]: each["name"] for each in content["categories"]}
            for each in content["annotations"]:
                labels[each["image_id"]].add(each["category_id"])
            images += [
                (each["id"], str(each["location"]), _file_name(each["file_name"]))
                for each in content["images"]
                if str(each["location"]) in wanted
            ]
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise DataError(f"{path} is no list of annotations: {type(error).__name__} {error}") from error
    return images, labels, animals


def _file_name(text: str) -> str:
    if "/" in text or "\\" in text or text.startswith(".") or not text.isprintable():
        raise DataError(f"{text[:100]!r} is no name of a photograph")
    return text
