"""All parts of a round of faults, one after the other; a part that has its figures already is left out.

    python tests/faults/campaign.py faults --results build/faults.jsonl
    python tests/faults/campaign.py soak --results evidence/reliability/figures.jsonl

`faults` takes up to 45 minutes on two cores, `soak` some hours, to be left in the background: started again, it goes on
with the part that was under way. Figures count for the revision they were made with. Exit code 1 if a part fails; the
others are run all the same.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from faults.results import RECORD, ROOT, command, read_results, revision

FAULTS = {
    "every_operation": "",
    "mutants": "",
    "kill": "--runs 300 --processes 2",
    "damage": "--checkpoints 500 --flips 300",
    "claims": "--claims 20000 --processes 4 --zombies 20 --clocks 20",
    "environment": "",
    "strace_check": "--points 50",
    "store_machine": "--examples 100",
    "soak": "--runs 60",
}
SOAK = {
    "every_operation": "--refuse-every 1",
    "mutants": "",
    "kill": "--runs 3000 --processes 2",
    "damage": "--checkpoints 500 --flips 1000",
    "claims": "--claims 100000 --processes 4 --zombies 50 --clocks 100",
    "environment": "--sizes 30",
    "strace_check": "--points 500",
    "store_machine": "--examples 500",
    "soak": "--runs 3000 --picture docs/images/soak.png",
}
SLOW = {"sweeps": "tests/slow/sweeps.py --kills 18", "ray": "tests/slow/ray_nodes.py"}  # these say it in words
ROUNDS = {"faults": FAULTS, "soak": SOAK}


def has_figures(results: Path, name: str, words: str) -> bool:
    now = revision()
    typed = SLOW[name] if name in SLOW else command(name, words.split())
    return any(
        line["part"] == name and line["command"].endswith(typed) and line["revision"] == now and line["passed"]
        for line in read_results(results)
    )


def run_slow(name: str, results: Path) -> int:
    """A script of tests/slow, whose last line is its figure."""
    started = time.monotonic()
    done = subprocess.run([sys.executable, *SLOW[name].split()], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    print(done.stdout, end="")
    line = {
        "part": name,
        "command": f"python {SLOW[name]}",
        "seed": 0,
        "revision": revision(),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M"),
        "seconds": round(time.monotonic() - started, 1),
        "cores": os.cpu_count(),
        "passed": done.returncode == 0,
        "figures": {"said": (done.stdout.strip().splitlines() or [""])[-1]},
    }
    with results.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, sort_keys=True, ensure_ascii=False) + "\n")
    return done.returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("round", choices=ROUNDS)
    parser.add_argument("--results", type=Path, default=RECORD)
    parser.add_argument("--only", nargs="+", metavar="PART")
    parser.add_argument("--again", action="store_true", help="parts that have their figures, too")
    options = parser.parse_args()
    parts = ROUNDS[options.round] | (dict.fromkeys(SLOW, "") if options.round == "soak" else {})
    options.results.parent.mkdir(parents=True, exist_ok=True)
    failed = []
    for name, words in parts.items():
        if options.only and name not in options.only:
            continue
        if not options.again and has_figures(options.results, name, words):
            print(f"{name}: has its figures")
            continue
        print(f"--- {name} {words}", flush=True)
        if name in SLOW:
            code = run_slow(name, options.results)
        else:
            script = f"tests/faults/{name}.py"
            code = subprocess.run(
                [sys.executable, script, *words.split(), "--results", str(options.results.absolute())], cwd=ROOT
            ).returncode
        failed += [name] if code else []
    print(f"failed: {', '.join(failed)}" if failed else "all parts passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
