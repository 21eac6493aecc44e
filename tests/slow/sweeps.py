"""A sweep of 72 runs, killed ten times at random, and compared with one left alone.

    python tests/slow/sweeps.py

3 algorithms × 4 targets × 3 trials × 2 draws on the digits, each run a few steps, two at a time. Whom a kill hits is
drawn: the sweeper, one of the processes that train, or the whole group at once; when, too. A sweeper that is gone is
started again, now and then two at a time. In the end every run must be finished, trained to its last step once, and the
report of the store must be that of the undisturbed sweep to the byte. Exit code 1 if not.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

WHAT = ["--dataset", "digits", "--algorithms", "ERM", "CORAL", "DSPReg(refresh_steps=4, measure_batches=2)",
        "--trials", "3", "--draws", "2", "--only", "training"]  # fmt: skip
RUNS = 3 * 4 * 3 * 2
WHOM = ("sweeper", "worker", "group")


def dspreg(*words: str) -> list[str]:
    return [sys.executable, "-m", "dspreg.cli", *words]


def sweep(store: Path, steps: int, log: Path) -> subprocess.Popen[bytes]:
    """A sweeper in a group of its own."""
    settings = ["--set", f"steps={steps}", "--set", "evaluate_every=4", "--set", "batch_size=8"]
    how = ["--jobs", "2", "--save-every", "2", "--store", str(store)]
    with log.open("ab") as file:
        command = dspreg("sweep", *WHAT, *settings, *how)
        return subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True)


def workers(sweeper: int) -> list[int]:
    """The processes that train, forked from the sweeper's server: its grandchildren."""
    below: dict[int, list[int]] = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                stat = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            below.setdefault(int(stat[1]), []).append(int(place.name))
    return [grandchild for child in below.get(sweeper, []) for grandchild in below.get(child, [])]


def kill(sweeper: subprocess.Popen[bytes], whom: str, chance: random.Random) -> bool:
    """Whether there was somebody to kill."""
    if sweeper.poll() is not None:
        return False
    if whom == "group":
        os.killpg(sweeper.pid, signal.SIGKILL)
    elif whom == "sweeper":
        sweeper.kill()
    else:
        there = workers(sweeper.pid)
        if not there:
            return False
        os.kill(chance.choice(there), signal.SIGKILL)
    if whom != "worker":
        sweeper.wait()
    return True


def finished(store: Path) -> int:
    return len(list(store.glob("runs/*/result.json")))


def busy(store: Path) -> int:
    """Runs that have begun and have not ended: a kill is worth something only then."""
    return sum(1 for p in store.glob("runs/*/run.json") if not (p.parent / "result.json").exists())


def report(store: Path) -> bytes:
    return b"".join(
        subprocess.run(dspreg("report", str(store), "--format", form), check=True, stdout=subprocess.PIPE).stdout
        for form in ("text", "json")
    )


def disturbed(store: Path, steps: int, kills: int, chance: random.Random, log: Path) -> Counter[str]:
    """Sweep to the end, killing on the way; how often whom."""
    done: Counter[str] = Counter()
    running = [sweep(store, steps, log)]
    while sum(done.values()) < kills:
        wanted = (sum(done.values()) + 1) * RUNS / (kills + 2) + chance.uniform(-2, 2)  # spread over the whole sweep
        while finished(store) < wanted or not busy(store):
            time.sleep(0.05)
            if all(each.poll() is not None for each in running):
                running = [sweep(store, steps, log)]
        time.sleep(chance.uniform(0, 2))
        whom, at = chance.choice(WHOM), chance.choice(running)
        left = busy(store)
        if left and kill(at, whom, chance):
            done[whom] += 1
            print(f"killed the {whom} after {finished(store)} runs, {left} under way", flush=True)
        running = [each for each in running if each.poll() is None]
        while len(running) < 1 + (chance.random() < 0.3):
            running.append(sweep(store, steps, log))
    if not running:
        running.append(sweep(store, steps, log))
    for each in running:
        if each.wait() != 0:
            raise SystemExit(f"a sweeper ended with exit code {each.returncode}; see {log}")
    return done


def endings(store: Path) -> list[str]:
    """Of each run its id and what its files say of its end, without what a clock measured."""
    found = []
    for place in sorted(store.glob("runs/*")):
        records = [json.loads(line) for line in (place / "records.jsonl").read_text().splitlines()]
        for record in records:
            del record["seconds"]
        files = json.loads((place / "result.json").read_text())["files"]
        models = {name: files[name] for name in files if name.endswith(".safetensors") and "/" not in name}
        found.append(json.dumps([place.name, records, models], sort_keys=True))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0, help="of whom and when")
    parser.add_argument("--alone", type=Path, help="a store left alone, of an earlier call; made if it is not there")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        left_alone = options.alone or folder / "alone"
        if not left_alone.exists() and sweep(left_alone, options.steps, folder / "alone.log").wait() != 0:
            raise SystemExit((folder / "alone.log").read_text())
        killed = disturbed(folder / "killed", options.steps, options.kills, chance, folder / "killed.log")
        said = (folder / "killed.log").read_text()
        ids = {p.name for p in (folder / "killed" / "runs").iterdir()}
        checks = {
            f"{RUNS} runs, each in one folder": len(ids) == RUNS,
            "all finished and verified": f"{RUNS} of {RUNS} runs finished" in said.splitlines()[-1],
            "records and models those of the sweep left alone": endings(folder / "killed") == endings(left_alone),
            "report bytes those of the sweep left alone": report(folder / "killed") == report(left_alone),
            "nothing left over": not [*(folder / "killed").rglob("*.part"), *(folder / "killed").rglob("checkpoints")],
        }
        for what, right in checks.items():
            print(f"{'yes' if right else 'NO '}  {what}")
        total = ", ".join(f"{n} × the {whom}" for whom, n in sorted(killed.items()))
        print(f"{sum(killed.values())} kills: {total}")
        if not all(checks.values()):
            print(said)
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
