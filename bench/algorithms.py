"""What every method costs in ERM steps, and what all of them do in a short run on the embedded digits.

    python bench/algorithms.py                               # a step of each, one thread
    python bench/algorithms.py --write                       # and leave it where `dspreg algorithms` reads it
    python bench/algorithms.py --only SWA EMA --write        # of these alone; the others stay as they are
    python bench/algorithms.py --part digits --out build/digits   # 200 steps of all, and of ten stacks; resumable

A step is the mean of two, because DANN takes two kinds in turn. Steps are taken after every warm-up; the refreshes of
DSP-Reg are not in it (docs/understand/engines.md has them). GGA searches in a window of the run and is ERM outside of
it: a step with 5 tries is timed, scaled to all of them, and weighted by the window's share of 5,001 steps.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from clock import alternate, interval
from rich.console import Console
from rich.table import Table

from dspreg import Algorithm, Batch, Execution, Notice, load, train, train_step
from dspreg.algorithms import GGA
from dspreg.algorithms.registry import PUBLISHED, algorithms
from penalty import stack

NETWORK, PIXELS, IMAGES, ROUNDS = "resnet18", 64, 8, 30
AFTER_WARM_UP = 2_051
TRIES = 5
AT_WORK = {"SWA": "SWA(start=0)"}  # its mean starts later
COSTS = Path(__file__).parents[1] / "src/dspreg/algorithms/costs.json"
STACKS = (
    "CORAL+DSPReg", "Mixup+DSPReg", "SAM+DSPReg", "SAGM+DSPReg", "Fishr+DSPReg", "ARM(width=16)+DSPReg", "MTL+DSPReg",
    "DANN+DSPReg", "MixStyle+CORAL+SAM", "Mixup+CORAL+SAM+DSPReg",
)  # fmt: skip


def two_steps(algorithm: Algorithm, batches: list[Batch]) -> None:
    for _ in range(2):
        train_step(algorithm, batches)


def at(spec: str, t: int) -> Callable[[], object]:
    """Two steps of a stack that has taken t."""
    algorithm, batches = stack(spec, NETWORK, PIXELS, IMAGES)
    algorithm.stack.steps = t
    return lambda: two_steps(algorithm, batches)


def steps(console: Console, rounds: int, out: Path | None, only: Sequence[str] = ()) -> None:
    names = ["ERM", *(name for name in only or algorithms() if name != "ERM")]
    sides = {name: at(AT_WORK.get(name, name), AFTER_WARM_UP) for name in names}
    if "GGA" in names:
        sides[f"GGA, {TRIES} tries"] = at(f"GGA(start=0, end=100000, tries={TRIES})", 0)
    found = alternate(sides, rounds)
    case = f"ResNet-18, {PIXELS} px, 3×{IMAGES} images"
    table = Table("method", "s", "of ERM", "95 % of the median", "rounds", title=f"two steps, {case}")
    for name, timing in found.items():
        table.add_row(name, *timing.cells)
    of_erm = {name: told(timing.ratios) for name, timing in found.items() if name in names}
    if "GGA" in names:
        gga = GGA()
        share, looks = (gga.end - gga.start + 1) / PUBLISHED, (gga.tries + 1) / (TRIES + 1)
        searching = [1 + looks * (ratio - 1) for ratio in found[f"GGA, {TRIES} tries"].ratios]
        of_erm["GGA"] = told([share * ratio + 1 - share for ratio in searching])
        table.add_row(f"GGA, {gga.tries} tries", "", f"{median(searching):.0f}×", "computed", "")
        table.add_row("GGA, whole run", "", f"{of_erm['GGA']['median']:.2f}×", f"{share:.1%} of it searching", "")
    console.print(table)
    if out:
        about = {"case": f"{case}, one thread, {rounds} rounds", "command": "python bench/algorithms.py"}
        if only:
            before = json.loads(out.read_text())
            if any(before[name] != value for name, value in about.items()):
                sys.exit(f"the others were measured on {before['case']}, these on {about['case']}; give --rounds")
            of_erm = before["of_erm"] | of_erm
        out.write_text(json.dumps(about | {"of_erm": of_erm}, indent=1, sort_keys=True, ensure_ascii=False) + "\n")


def told(ratios: list[float]) -> dict[str, float]:
    low, high = interval(ratios)
    return {"median": round(median(ratios), 3), "low": round(low, 3), "high": round(high, 3)}


def digits(console: Console, out: Path, length: int, only: Sequence[str] = ()) -> None:
    """Every method and ten stacks on the digits, trained without print."""
    table = Table("spec", "as run", "validation", "print", "s/step", "penalties, mean of the last steps", "from ERM")
    erm: dict[str, torch.Tensor] = {}
    same = []
    for spec in ("ERM", *(name for name in only or (*algorithms(), *STACKS) if name != "ERM")):
        folder = out / spec
        settings = {"dataset": "digits", "targets": ("print",), "algorithm": spec, "steps": length}
        train(settings, Execution(threads=1, profile="never"), folder)
        records = [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]
        weights = load(folder, "last")[0].algorithm.net.state_dict()  # the average, where that predicts
        erm = erm or weights
        shared = [name for name in erm if name in weights and weights[name].shape == erm[name].shape]
        moved = max(float((weights[name] - erm[name]).abs().max()) for name in shared)
        same += [spec] if spec != "ERM" and moved == 0 else []
        last = records[-1]
        table.add_row(
            spec, algorithm_of(folder), f"{last['validation']:.1%}", f"{last['accuracy']['print']['in']:.1%}",
            f"{mean(r['seconds']['step_seconds'] for r in records[1:]):.3f}", penalties(last), f"{moved:.1e}",
        )  # fmt: skip
    console.print(table)
    console.print("identical to ERM: " + (", ".join(same) or "none"))
    if same:
        sys.exit(1)


def algorithm_of(folder: Path) -> str:
    return str(json.loads((folder / "run.json").read_text())["settings"]["algorithm"])


def penalties(record: dict[str, Any]) -> str:
    """All that layers note of their terms."""
    log = {name: value for name, value in record["log"].items() if name != "loss"}
    return ", ".join(f"{name} {value:.3g}" for name, value in sorted(log.items())) or "–"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("steps", "digits"), default="steps")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", nargs="+", default=(), metavar="METHOD", choices=tuple(algorithms()))
    parser.add_argument("--write", action="store_true", help="into the catalogue")
    parser.add_argument("--steps", type=int, default=200, help="for --part digits")
    parser.add_argument("--out", type=Path, default=Path("build/digits"), help="for --part digits")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", Notice)
    console = Console(width=None if sys.stdout.isatty() else 220)
    if options.part == "steps":
        steps(console, options.rounds, COSTS if options.write else None, options.only)
    else:
        digits(console, options.out, options.steps, options.only)


if __name__ == "__main__":
    main()
