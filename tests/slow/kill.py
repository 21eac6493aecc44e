"""Train, kill with SIGKILL at random moments, start again until it ends, and compare with a run left alone.

    python tests/slow/kill.py --runs 30

Every run is killed at least twice, wherever it happens to be: importing nothing (the process is forked from one that
has torch loaded), measuring, stepping, evaluating, writing a checkpoint or finishing. Prints one line per run and ends
with exit code 1 if any ending differs in a single bit.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch

from dspreg.training import train
from helpers import tiny

torch.set_num_threads(1)  # a process with a pool of threads can't be forked safely
LEAST = 2


def forked(root: Path, out: Path, **how: object) -> int:
    """A process of its own group that trains."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        code = 1
        try:
            warnings.simplefilter("ignore")
            train(tiny.settings(root), tiny.execution(**how), out)
            code = 0
        finally:
            os._exit(code)
    return child


def ended(child: int, seconds: float) -> bool:
    """Whether it came to its end by itself; otherwise it is killed, with the processes that read its images."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            return True
        time.sleep(0.001)
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:  # it has not made its group yet
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def killed_until_done(root: Path, out: Path, duration: float, chance: random.Random, **how: object) -> int:
    """How often it had to be killed before it ended."""
    kills = 0
    while True:
        patience = chance.uniform(0, duration / 2) if kills < LEAST or chance.random() < 0.5 else 10 * duration
        if ended(forked(root, out, **how), patience):
            return kills
        kills += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        root = tiny.make_images(folder / "woods")
        warnings.simplefilter("ignore")
        train(tiny.settings(root, steps=2), tiny.execution(profile="auto"), folder / "warm")  # what is loaded late
        started = time.monotonic()
        ended(forked(root, folder / "alone", profile="auto"), 600)
        duration = time.monotonic() - started
        expected = tiny.ending(folder / "alone")
        total = different = 0
        for i in range(options.runs):
            how = {"profile": "auto", "save_every": chance.choice([1, 3, 5, None]), "workers": chance.choice([0, 0, 1])}
            kills = 0
            while kills < LEAST:  # it was quicker than its killer: once more, in a new folder
                out = folder / f"run-{i}-{time.monotonic_ns()}"
                kills = killed_until_done(root, out, duration, chance, **how)
            same = tiny.ending(out) == expected
            total, different = total + kills, different + (not same)
            print(f"run {i + 1:2}: killed {kills} times, {'the same bits' if same else 'DIFFERENT'}  {how}", flush=True)
    print(f"{options.runs} runs, {total} kills, {options.runs - different} endings bit-identical to the run left alone")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
