"""Runs and models as a stranger may have made them: changed, and sealed again so that every SHA-256 is right."""

import json
from dataclasses import replace
from pathlib import Path

from dspreg.io.atomic_files import canonical_json, sha256, sha256_of_file, write_json
from dspreg.runs.folder import identity
from dspreg.training.finalize import MODEL
from dspreg.training.serialization import pack, unpack


def reseal(run):
    """result.json with the SHA-256 of the files as they are now."""
    path = Path(run) / "result.json"
    result = json.loads(path.read_text(encoding="utf-8"))
    del result["sha256"]
    result["files"] = {name: sha256_of_file(Path(run) / name) for name in result["files"]}
    write_json(path, {**result, "sha256": sha256(canonical_json(result).encode())})


def change_description(run, change):
    """`change` is given run.json."""
    path = Path(run) / "run.json"
    described = json.loads(path.read_text(encoding="utf-8"))
    change(described)
    described["id"] = identity(described)
    write_json(path, described)
    reseal(run)


def change_model(run, change, name="selected.safetensors"):
    """`change` is given what a model file holds: "built" and "tensors"."""
    path = Path(run) / name
    saved, about = unpack(path.read_bytes(), str(path))
    change(saved)
    path.write_bytes(pack(saved, **about))
    reseal(run)


def write_model(run, data, name="selected.safetensors"):
    """These bytes as a model of the run."""
    (Path(run) / name).write_bytes(data)
    reseal(run)


def model_bytes(built, tensors):
    return pack({"built": built, "tensors": tensors}, format=MODEL)


SENTINEL = "sentinel_of_a_store"


def plant(store, run, place):
    """What a stranger may leave in a store whose `run` is unfinished: names of a module that lies at `place`.

    Returns:
        The file that the module makes when it is imported.
    """
    mark = Path(place) / "imported"
    (Path(place) / f"{SENTINEL}.py").write_text(f"from pathlib import Path\nPath({str(mark)!r}).touch()\n")
    store.plan([replace(run, algorithm=f"{SENTINEL}.Method"), replace(run, dataset=f"{SENTINEL}.Data", name=None)])
    for path in store.plans():  # that of the run itself, too
        plan = json.loads(path.read_text(encoding="utf-8"))
        plan["runs"] = [each | {"algorithm": f"{SENTINEL}.Method"} for each in plan["runs"]]
        write_json(path, plan)
    described = json.loads((store.folder(run) / "run.json").read_text(encoding="utf-8"))
    described["where"] |= {"dataset": f"{SENTINEL}.Data", "algorithm": f"{SENTINEL}.Method"}
    write_json(store.folder(run) / "run.json", described)
    write_json(
        store.path / "failures" / f"{run.id}.json",
        {"reason": "once", "attempts": 1, "reached": -1, "run": run.to_json() | {"algorithm": f"{SENTINEL}.Method"}},
    )
    return mark
