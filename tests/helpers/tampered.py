"""A run from a stranger: files changed and sealed again, so that every SHA-256 is right and only contents are wrong."""

import copy
import hashlib
import json
from dataclasses import replace
from pathlib import Path

from dspreg.training.model import MODEL
from dspreg.training.serialization import pack, unpack

MISSING = object()  # in place of a value: the field is taken out


def dumps(value):
    """As JSON, NaN and all."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def digest(value):
    return hashlib.sha256(dumps(value).encode()).hexdigest()


class Files:
    """run.json, records.jsonl and result.json of a finished run, to be changed and sealed."""

    def __init__(self, path):
        self.path = Path(path)
        self.run, self.result = (json.loads((self.path / f"{name}.json").read_text()) for name in ("run", "result"))
        self.records = [json.loads(line) for line in (self.path / "records.jsonl").read_text().splitlines()]

    def put(self, field, value):
        """`field`: names and numbers, the first of them `run`, `records` or `result`."""
        *way, last = field
        place = self.__dict__
        for name in way:
            place = place[name]
        if value is MISSING:
            del place[last]
        else:
            place[last] = copy.deepcopy(value)

    def seal(self, *, same_run=True, raw=lambda name, text: text):
        """Write them, every digest as it has to be; `raw` may change the text of a file before it is sealed."""
        if isinstance(self.run, dict):
            self.run["id"] = digest({k: v for k, v in self.run.items() if k not in ("id", "where")})
            if same_run and isinstance(self.result, dict):
                self.result["run"] = self.run["id"]
        texts = {"run.json": dumps(self.run), "records.jsonl": "".join(dumps(each) + "\n" for each in self.records)}
        for name, text in texts.items():
            written = raw(name, text).encode("utf-8", "surrogatepass")
            (self.path / name).write_bytes(written)
            if isinstance(self.result, dict) and isinstance(self.result.get("files"), dict):
                self.result["files"][name] = hashlib.sha256(written).hexdigest()
        if isinstance(self.result, dict):
            self.result = {k: v for k, v in self.result.items() if k != "sha256"}
            self.result["sha256"] = digest(self.result)
        (self.path / "result.json").write_text(raw("result.json", dumps(self.result)))


def change_description(run, change):
    """`change` is given run.json."""
    files = Files(run)
    change(files.run)
    files.seal()


def write_model(run, data, name="selected.safetensors"):
    """These bytes as a model of the run."""
    files = Files(run)
    (files.path / name).write_bytes(data)
    files.result["files"][name] = hashlib.sha256(data).hexdigest()
    files.seal()


def change_model(run, change, name="selected.safetensors"):
    """`change` is given what a model file holds: "built" and "tensors"."""
    saved, _ = unpack((Path(run) / name).read_bytes(), name)
    change(saved)
    write_model(run, model_bytes(saved["built"], saved["tensors"]), name)


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
        path.write_text(dumps(plan))
    described = json.loads((store.folder(run) / "run.json").read_text(encoding="utf-8"))
    described["where"] |= {"dataset": f"{SENTINEL}.Data", "algorithm": f"{SENTINEL}.Method"}
    (store.folder(run) / "run.json").write_text(dumps(described))
    failure = {"reason": "x", "attempts": 1, "reached": -1, "run": run.to_json() | {"algorithm": f"{SENTINEL}.Method"}}
    (store.path / "failures" / f"{run.id}.json").write_text(dumps(failure))
    return mark
