"""How long commands take until they say or do something: CPU seconds of fresh processes, medians.

    python bench/startup.py
    python bench/startup.py --rounds 3 --only help predict

On an idle machine the time on the wall is about the same, and is shown beside it. `train` ends before the batch of its
first step is read: libraries, data set, network. ResNet-18 starts from random weights and needs timm, which small-cnn
does not. The first time it also probes the layout; `again` finds what that probe found.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import numpy as np
from peer.data import CLASSES, make_photos
from peer.process_tree import Cost, measure_command
from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[1]
LAUNCH = str(ROOT / "bench" / "peer" / "launch_dspreg.py")
IMAGE = f"PACS/sketch/{CLASSES[0]}/0.jpg"
TRAIN = "train --dataset PACS --target sketch --root . --algorithm ERM --weights none --threads 1"
SMALL, RESNET = f"{TRAIN} --model small-cnn --image-size 28", f"{TRAIN} --model resnet18"
CASES = {  # name: arguments, exit code, seconds to stay below
    "python alone": (None, 0, None),
    "import torch": (None, 0, None),
    "help": ("--help", 0, 0.3),
    "a wrong flag": ("train --wrong", 2, 1.0),
    "a missing folder": ("train --dataset folder:missing --target a --out b", 3, 1.0),
    "predict, no such run": ("predict missing 0.jpg", 2, 1.0),
    "evaluate, no such run": ("evaluate missing", 2, 1.0),
    "predict, small-cnn": (f"predict small {IMAGE}", 0, 3.0),
    "predict, ResNet-18": (f"predict resnet {IMAGE}", 0, 3.0),
    "train to the first step, small-cnn": (f"{SMALL} --steps 1 --out begun", 0, 4.0),
    "train to the first step, ResNet-18": (f"{RESNET} --steps 5001 --out begun", 0, 4.0),
    "train to the first step, ResNet-18 again": (f"{RESNET} --steps 5001 --out begun", 0, 4.0),
}


def command(name: str) -> list[str]:
    if name == "python alone":
        return [sys.executable, "-c", "pass"]
    if name == "import torch":
        return [sys.executable, "-c", "import torch"]
    arguments = str(CASES[name][0]).split()
    if name.startswith("train"):
        return [sys.executable, LAUNCH, "--start-up", "--", *arguments]
    return [sys.executable, "-m", "dspreg.cli", *arguments]


def train_models(folder: Path, environment: Mapping[str, str]) -> None:
    """The runs that `predict` needs."""
    for out, options in (("small", SMALL), ("resnet", f"{RESNET} --image-size 64")):
        arguments = f"{options} --steps 1 --batch-size 2 --workers 0 --out {out}".split()
        run = [sys.executable, "-m", "dspreg.cli", *arguments]
        ended = subprocess.run(run, cwd=folder, env=dict(environment), capture_output=True, text=True, check=False)
        if ended.returncode:
            raise SystemExit(f"{' '.join(run)}\nended with exit code {ended.returncode}:\n{ended.stderr[-4000:]}")


def measure(names: list[str], rounds: int) -> dict[str, list[Cost]]:
    """Every case once per round, in turn, after one that is not counted."""
    found: dict[str, list[Cost]] = {name: [] for name in names}
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("DSPREG_")}
        places = {"HOME": home, "DSPREG_CACHE": str(folder / "cache"), "PYTHONPATH": str(ROOT / "src")}
        environment = {**kept, **places, "OMP_NUM_THREADS": "1"}
        make_photos(folder, 40, np.random.default_rng(0))
        if any(name.startswith("predict,") and CASES[name][1] == 0 for name in names):
            train_models(folder, environment)
        for n in range(rounds + 1):
            for name in names:
                shutil.rmtree(folder / "begun", ignore_errors=True)
                if name == "train to the first step, ResNet-18":
                    shutil.rmtree(folder / "cache" / "layouts", ignore_errors=True)
                cost = measure_command(command(name), environment, folder, ends=CASES[name][1])
                if n:  # the first one also reads libraries from the disk
                    found[name].append(cost)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", metavar="N", type=int, default=5)
    parser.add_argument(
        "--only", metavar="TEXT", nargs="+", default=[""], help="cases whose name has one of these in it"
    )
    given = parser.parse_args()
    names = [name for name in CASES if any(text in name for text in given.only)]
    table = Table(
        "until", "CPU s", "range", "wall s", "to stay below", title=f"medians of {given.rounds} fresh processes"
    )
    for name, costs in measure(names, given.rounds).items():
        cpu, bound = [cost.cpu for cost in costs], CASES[name][2]
        spread = f"{min(cpu):.2f}–{max(cpu):.2f}"
        wall = median(cost.wall for cost in costs)
        table.add_row(name, f"{median(cpu):.2f}", spread, f"{wall:.2f}", "" if bound is None else f"{bound:g}")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
