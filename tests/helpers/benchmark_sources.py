"""The benchmarks in miniature, as their authors and the hub pack them."""

import hashlib
import io
import json
import tarfile
import zipfile

import numpy as np

from dspreg.data import PACS, VLCS, DomainNet, OfficeHome, TerraIncognita
from helpers.images import encoded, picture

ARCHIVE_SOURCES = (PACS, VLCS, OfficeHome, TerraIncognita, DomainNet)


def original_files(made, each=3):
    """What DomainBed would have: image files by `domain/class/name`, names in no order that rows could have."""
    files, seed = {}, 0
    for domain in made.domains:
        for place, name in enumerate(made.classes):
            for i in range(each + (place % 2 if each > 1 else 0)):
                seed += 1
                digest = hashlib.md5(f"{domain}{name}{i}".encode()).hexdigest()[:6]
                files[f"{domain}/{name}/{'pic_' if i % 2 else 'Pic-'}{digest}.jpg"] = encoded(picture(seed, (8, 6)))
    return files


def counts_of(made, files):
    return {domain: sum(path.startswith(f"{domain}/") for path in files) for domain in made.domains}


def zip_of(files):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        for name, content in files.items():
            packed.writestr(name, content)
    return out.getvalue()


def tar_of(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz", compresslevel=1) as packed:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return out.getvalue()


def below(folder, files):
    return {f"{folder}/{path}": content for path, content in files.items()}


def archives_of(made, files):
    """The archives that the catalogue names, by their names there, in their own layout."""
    if made is PACS:
        return {"PACS.zip": zip_of({**below("kfold", files), "__MACOSX/kfold/._x": b"x"})}
    if made is VLCS:
        return {"VLCS.tar.gz": tar_of(below("VLCS", files))}
    if made is OfficeHome:
        extra = {"OfficeHomeDataset_10072016/ImageInfo.csv": b"a,b\n"}
        return {"office_home.zip": zip_of(below("OfficeHomeDataset_10072016", files) | extra)}
    if made is TerraIncognita:
        return camera_trap_archives(files)
    doubles = duplicates_of(files)
    packed = {"domain_net_duplicates.txt": "".join(f"{path}\n" for path in doubles).encode()}
    for domain in made.domains:
        here = {path: content for path, content in {**files, **doubles}.items() if path.startswith(f"{domain}/")}
        packed[f"{domain}.zip"] = zip_of(here)
    return packed


def duplicates_of(files):
    """Images that DomainBed leaves out, three of them."""
    chosen = list(files)[:: len(files) // 3][:3]
    return {path.replace(".jpg", "_again.jpg"): files[path] for path in chosen}


def camera_trap_archives(files):
    """All photographs in one folder, five lists of annotations, and what DomainBed leaves out."""
    parts = ("cis_test", "cis_val", "train", "trans_test", "trans_val")
    animals = [*TerraIncognita.classes, "car", "deer"]
    lists = {part: {"images": [], "annotations": [], "categories": [
        {"id": i + 5, "name": name} for i, name in enumerate(animals)]} for part in parts}  # fmt: skip
    photographs = {}

    def add(number, part, location, name, content, *what):
        photographs[f"eccv_18_all_images_sm/{name}"] = content
        # locations are numbers in some lists and text in others
        place = int(location) if number % 2 else location
        lists[part]["images"].append({"id": f"id{number}", "file_name": name, "location": place})
        for i, animal in enumerate(what):
            note = {"id": f"n{number}.{i}", "image_id": f"id{number}", "category_id": animals.index(animal) + 5}
            lists[part]["annotations"].append(note)

    for number, (path, content) in enumerate(files.items()):
        domain, animal, name = path.split("/")
        twice = [animal, animal] if number % 3 == 0 else [animal]  # two animals of a kind are one image
        add(number, parts[number % 5], domain.removeprefix("location_"), name, content, *twice)
    add(9001, "train", "7", "elsewhere.jpg", b"x", "dog")
    add(9002, "train", "38", "other_animal.jpg", b"x", "deer")
    add(9003, "train", "38", "nothing.jpg", b"x")
    notes = {
        f"eccv_18_annotation_files/{part}_annotations.json": json.dumps(each).encode() for part, each in lists.items()
    }
    return {"eccv_18_all_images_sm.tar.gz": tar_of(photographs), "eccv_18_annotations.tar.gz": tar_of(notes)}


def table_of(files, made, *, names=True, shuffled=0):
    """Two Parquet tables as `datasets` writes them, rows in no order; labels are numbers, named in the metadata."""
    import pyarrow as pa
    from pyarrow import parquet

    order = np.random.default_rng(shuffled).permutation(len(files))
    paths = [list(files)[i] for i in order]
    classes = [*made.classes[::-1]]  # the hub's own order of labels
    features = {
        "image": {"_type": "Image"},
        "domain": {"dtype": "string", "_type": "Value"},
        "label": {"names": classes, "_type": "ClassLabel"},
    }
    found = {}
    for number, part in enumerate((paths[: len(paths) // 2], paths[len(paths) // 2 :])):
        table = pa.table({
            "image": [{"bytes": files[p], "path": p.split("/")[2] if names else None} for p in part],
            "domain": [p.split("/")[0] for p in part],
            "label": [classes.index(p.split("/")[1]) for p in part],
        })  # fmt: skip
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
        out = io.BytesIO()
        parquet.write_table(table, out)
        found[f"data/train-0000{number}-of-00002.parquet"] = out.getvalue()
    return found
