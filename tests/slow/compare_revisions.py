"""Did a change move a result? Trains every method with the code of two revisions and compares the files.

    python tests/slow/compare_revisions.py a116559            # that revision against the working tree
    python tests/slow/compare_revisions.py v0.1 v0.2          # two revisions

Every method of the catalogue and ten stacks train on the digits, a few steps each. Model files, profiles, run.json and
records have to be equal; times are left out, and so are the model cards, whose words may change. Exit code 1 if
anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
METHODS = [
    "ARM", "CORAL", "DANN", "DSPReg", "ERM", "Fish", "Fishr", "GGA", "GGAL", "GMDG", "GroupDRO", "GSAM", "IRM", "MIRO",
    "MixStyle", "Mixup", "MLDG", "MMD", "MTL", "RSC", "SAGM", "SagNet", "SAM", "VREx",
]  # fmt: skip
STACKS = [
    "CORAL+DSPReg(refresh_steps=10)",
    "SAM+DSPReg(refresh_steps=10)",
    "Mixup+DSPReg(refresh_steps=10,estimator='signed',draws=2)",
    "MTL+DSPReg(refresh_steps=10)",
    "ARM+DSPReg(refresh_steps=10,measure_batches=2)",
    "DSPReg(engine='lazy(3)',refresh_steps=10,coefficients='shuffled')",
    "DSPReg(engine='momentum(beta=0.9)',refresh_steps=10)",
    "IRM+DSPReg(engine='lookahead',refresh_steps=10,of='output',measure_batches=1)",
    "MixStyle+MIRO+SAGM",
    "Fishr+GroupDRO",
]
PROGRAM = """
import sys
from dspreg.cli import main
for place, spec in enumerate(sys.argv[2:]):
    code = main(["train", "--dataset", "digits", "--target", "print", "--steps", sys.argv[1], "--evaluate-every", "12",
                 "--threads", "1", "--algorithm", spec, "--out", f"{place:02d}"])
    assert code in (0, None), (spec, code)
"""


def train_all(source: Path, out: Path, specs: list[str], steps: int) -> None:
    """Train in one process with the package that lies in `source`."""
    out.mkdir(parents=True)
    environment = {**os.environ, "PYTHONPATH": str(source / "src")}
    with (out / "log.txt").open("w") as log:
        subprocess.run(
            [sys.executable, "-c", PROGRAM, str(steps), *specs],
            cwd=out, env=environment, check=True, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of everything that a training decides, by file name."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        if path.parent.name == "profiles":
            content = without_format(path.read_bytes())
        elif path.suffix == ".safetensors" or path.name == "run.json":
            content = path.read_bytes()
        elif path.suffix == ".jsonl":
            content = "\n".join(map(without_times, path.read_text().splitlines())).encode()
        else:  # locks, the model card, and result.json, which holds digests of all the others
            continue
        found[path.relative_to(folder).as_posix()] = hashlib.sha256(content).hexdigest()
    return found


def without_format(profile: bytes) -> bytes:
    """The description and the tensors of a profile; since its second version it starts with a digest."""
    size = 8 + int.from_bytes(profile[:8], "little")
    header = json.loads(profile[8:size])
    (text,) = header.pop("__metadata__").values()
    return json.dumps([header, json.loads(text[text.index("{") :])], sort_keys=True).encode() + profile[size:]


def without_times(line: str) -> str:
    record = {name: value for name, value in json.loads(line).items() if "seconds" not in name}
    return json.dumps(record, sort_keys=True)


def checkout(revision: str, folder: Path) -> Path:
    """The source of a revision, as it was committed."""
    archive = folder.with_suffix(".tar")
    with archive.open("wb") as file:
        subprocess.run(["git", "archive", revision, "src"], cwd=ROOT, stdout=file, check=True)
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", help="a revision")
    parser.add_argument("after", nargs="?", help="another one (default: the working tree)")
    parser.add_argument("--steps", type=int, default=36)
    parser.add_argument("--out", type=Path, help="keep the runs here; those of `before` are used again")
    parser.add_argument("--only", nargs="+", help="specs to train (default: all methods and ten stacks)")
    given = parser.parse_args()
    specs = given.only or METHODS + STACKS
    out = (given.out or Path(tempfile.mkdtemp(prefix="compare-"))).resolve()
    out.mkdir(parents=True, exist_ok=True)
    sides = {}
    for side, revision in (("before", given.before), ("after", given.after)):
        runs = out / side
        if not (side == "before" and (runs / f"{len(specs) - 1:02d}" / "result.json").exists()):
            source = ROOT if revision is None else checkout(revision, out / f"source-{side}")
            train_all(source, runs, specs, given.steps)
        sides[side] = [digests(runs / f"{place:02d}") for place in range(len(specs))]
    differ = 0
    for spec, before, after in zip(specs, sides["before"], sides["after"], strict=True):
        names = [name for name in sorted(before | after) if before.get(name) != after.get(name)]
        differ += bool(names)
        says = f"differ: {', '.join(names)}" if names else f"{len(before)} files equal"
        print(f"{spec:80s}  {before.get('last.safetensors', 'missing')[:12]}  {says}")
    print(f"{len(specs) - differ} of {len(specs)} equal in all files")
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
