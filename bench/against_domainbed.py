"""dspreg against DomainBed, end to end: the same data, network, weights, steps, splits and evaluations on both sides.

    git clone https://github.com/facebookresearch/DomainBed   # nothing of it is in this repository
    DSPREG_ROOT=data python bench/against_domainbed.py --domainbed DomainBed --json build/against.json
    python bench/against_domainbed.py --domainbed DomainBed --work step loading --quick

Sides alternate, round by round. One thread and CPU seconds of all processes of a command (`--clock cpu`), or all cores
and wall time (`--clock wall`). DomainBed runs by its own `train.py` with its own defaults, eight processes per loader
included; what stands around it is said in `bench/peer/launch_domainbed.py`. Runs are short, with as many evaluated
images per image trained on as in the protocol. Start-up is part of every run and also measured alone; `full length` has
it once and the rest as often as 5,001 steps of the protocol need. PACS and digits (MNIST/raw, four files) are those of
DSPREG_ROOT, or made images of their sizes.

Works: `pacs`, `pacs50` (ResNet-18 and -50), `digits`, `digits-small` (RotatedMNIST's shape, with DomainBed's network
and with ours), `domainnet` (six domains, 345 classes), `loading` (a network that computes nothing), `step` (ERM alone),
`memory`, `dsp-reg` (whole DSP-Reg runs against DomainBed's ERM). A work that `--json` has already is shown, not done
again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from statistics import median
from typing import Any

from clock import alternate, interval
from peer.process_tree import Cost, measure_command
from peer.stand_ins import make_importable
from peer.works import LOADING, MEMORY, MORE_EVALUATIONS, RUNS, Place, Work
from rich.console import Console
from rich.table import Table

from dspreg import Notice

PEER, SAME, NEEDED = "DomainBed", "dspreg", "dspreg, its own evaluations"
NETWORKS = ("resnet18", "resnet50", "tf_efficientnet_lite0", "vit_small_patch16_224")
DSP_REG = {  # c = 1 and no refresh, and one refresh on 32 images of each domain
    "DSP-Reg": "DSPReg(coefficients='ones')",
    "DSP-Reg, one refresh": "DSPReg(refresh_steps=2, measure_batches=1)",
    "DSP-Reg, half of the batch": "DSPReg(coefficients='ones', engine='finite_difference(part=0.5)')",
}
REFRESHED = 3 * 32  # images that the one refresh measures on
REFRESHES, MEASURED = 50, 3 * 512  # of 5,001 steps on PACS: every second epoch of 50 steps, so many images each
WORKS = (*RUNS, "loading", "step", "memory", "dsp-reg")
Found = dict[str, Any]


class Bench:
    """What was asked for, and where things lie."""

    def __init__(self, given: argparse.Namespace, place: Place, console: Console) -> None:
        self.given, self.place, self.console = given, place, console

    def small(self, work: Work) -> Work:
        if not self.given.quick:
            return work
        less = {"RotatedMNIST": 300, "DomainNet": 405}.get(work.dataset, 50)
        return replace(work, images=less, batch=4, steps=3)

    def measure(self, command: Callable[[], list[str]], *, weigh: bool = False) -> Cost:
        made = command()  # empties the folder of the run
        return measure_command(made, self.place.environment, self.place.folder, weigh=weigh)

    def rounds(self, sides: dict[str, Callable[[], list[str]]], *, rounds: int, weigh: bool = False) -> Found:
        """Every side once per round, in turn."""
        found: Found = {name: [] for name in sides}
        for n in range(rounds):
            for name, command in sides.items():
                cost = self.measure(command, weigh=weigh)
                found[name].append(asdict(cost))
                self.console.print(f"  round {n + 1} of {rounds}, {name}: {cost.cpu:.1f} s CPU, {cost.wall:.1f} s")
        return found

    def seconds(self, costs: list[Found]) -> list[float]:
        return [cost[self.given.clock] for cost in costs]

    # The works. Each returns what goes to the JSON file; `show_…` prints it.

    def run(self, name: str) -> Found:
        """A whole training: train, evaluate, select, save."""
        work = self.place.prepare(self.small(RUNS[name]))
        place = self.place
        sides = {
            PEER: lambda: place.domainbed(work),
            SAME: lambda: place.dspreg(work),
            NEEDED: lambda: place.dspreg(work, evaluate="needed"),
        }
        starts = {
            PEER: lambda: place.domainbed(work, start_up=True),
            SAME: lambda: place.dspreg(work, start_up=True),
        }
        runs = self.rounds(sides, rounds=self.given.rounds)
        start = self.rounds(starts, rounds=min(3, self.given.rounds))
        return {"work": str(work), "full": work.full_length, "runs": runs, "start": start | {NEEDED: start[SAME]}}

    def show_run(self, found: Found) -> None:
        table = Table(
            "side", f"{self.given.clock} s", "start-up", "DomainBed ÷ it", "range", "without start-up", "full length",
            "processes", "rounds", title=found["work"],
        )  # fmt: skip
        first, start = self.seconds(found["runs"][PEER]), self._start(found, PEER)
        for name, costs in found["runs"].items():
            seconds, own = self.seconds(costs), self._start(found, name)
            ratios = [a / b for a, b in zip(first, seconds, strict=True)]
            steady = [(a - start) / (b - own) for a, b in zip(first, seconds, strict=True)]
            long = found["full"]
            full = [
                (start + long * (a - start)) / (own + long * (b - own)) for a, b in zip(first, seconds, strict=True)
            ]
            low, high = interval(ratios)
            table.add_row(
                name, f"{median(seconds):.2f}", f"{own:.2f}", f"{median(ratios):.2f}×", f"{low:.2f}–{high:.2f}",
                f"{median(steady):.2f}×", f"{median(full):.2f}×", str(max(cost["processes"] for cost in costs)),
                str(len(seconds)),
            )  # fmt: skip
        self.console.print(table)

    def _start(self, found: Found, name: str) -> float:
        return median(self.seconds(found["start"][name]))

    def loading(self, _: str) -> Found:
        """Training images from a run, evaluated ones from what more evaluations cost."""
        work = self.place.prepare(self.small(LOADING))
        more = replace(work, evaluations=MORE_EVALUATIONS, steps=work.steps).sized(work.images)
        place = self.place
        sides = {
            PEER: lambda: place.domainbed(work),
            f"{PEER}, more": lambda: place.domainbed(more),
            f"{PEER}, start": lambda: place.domainbed(work, start_up=True),
            SAME: lambda: place.dspreg(work),
            f"{SAME}, more": lambda: place.dspreg(more),
            f"{SAME}, start": lambda: place.dspreg(work, start_up=True),
        }
        runs = self.rounds(sides, rounds=self.given.rounds)
        return {
            "work": f"{work}; and {MORE_EVALUATIONS} evaluations, {more.steps} steps", "images": work.images,
            "trained": work.trained_images, "trained_more": more.trained_images,
            "evaluations": work.evaluations, "evaluations_more": more.evaluations, "runs": runs,
        }  # fmt: skip

    def show_loading(self, found: Found) -> None:
        table = Table("images", "DomainBed, ms", "dspreg, ms", "DomainBed ÷ dspreg", "range", title=found["work"])
        each = {
            name: [loading_costs(found, *costs) for costs in zip(*self._loading_seconds(found, name), strict=True)]
            for name in (PEER, SAME)
        }
        for n, kind in enumerate(("to train on", "to evaluate on, of all domains")):
            ours, theirs = ([costs[n] for costs in each[name]] for name in (SAME, PEER))
            ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
            low, high = interval(ratios)
            cells = (f"{1e3 * median(theirs):.2f}", f"{1e3 * median(ours):.2f}", f"{median(ratios):.2f}×")
            table.add_row(kind, *cells, f"{low:.2f}–{high:.2f}")
        self.console.print(table)

    def _loading_seconds(self, found: Found, name: str) -> list[list[float]]:
        return [self.seconds(found["runs"][each]) for each in (name, f"{name}, more", f"{name}, start")]

    def step(self, _: str) -> Found:
        """Within this process, on one thread."""
        import torch
        from peer.steps import sides

        torch.set_num_threads(1)
        pixels, batch = (64, 4) if self.given.quick else (224, 8)
        self.place.prepare(self.small(RUNS["pacs"]))
        found: Found = {"work": f"ERM, {pixels} px, 3×{batch} images, CPU seconds of a step", "networks": {}}
        for network in NETWORKS:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Notice)  # that these are few images
                made = sides(network, self.place.data / "PACS", pixels, batch)
            timings = alternate(made, 2 * self.given.rounds)
            found["networks"][network] = {name: asdict(timing) for name, timing in timings.items()}
        return found

    def show_step(self, found: Found) -> None:
        table = Table("network", "side", "s", "of the plain loop", "range", "DomainBed ÷ it", title=found["work"])
        for network, timings in found["networks"].items():
            for name, timing in timings.items():
                low, high = interval(timing["ratios"])
                pairs = zip(timings["DomainBed"]["seconds"], timing["seconds"], strict=True)
                faster = median(a / b for a, b in pairs)
                cells = (f"{median(timing['seconds']):.3f}", f"{median(timing['ratios']):.3f}×")
                table.add_row(network, name, *cells, f"{low:.3f}–{high:.3f}", f"{faster:.2f}×")
        self.console.print(table)

    def memory(self, _: str) -> Found:
        """Peaks of whole runs; one or two rounds, since they hardly vary."""
        work = self.place.prepare(self.small(MEMORY))
        place = self.place
        sides = {
            PEER: lambda: place.domainbed(work),
            "dspreg, ERM": lambda: place.dspreg(work, evaluate="needed"),
            "dspreg, DSPReg": lambda: place.dspreg(work, "DSPReg(refresh_steps=2)", evaluate="needed"),
        }
        return {"work": str(work), "runs": self.rounds(sides, rounds=min(2, self.given.rounds), weigh=True)}

    def show_memory(self, found: Found) -> None:
        table = Table("side", "peak, GB", "of DomainBed", "processes seen", "at once", title=found["work"])
        peaks = {name: median(cost["memory"] for cost in costs) for name, costs in found["runs"].items()}
        for name, costs in found["runs"].items():
            seen, together = (max(cost[key] for cost in costs) for key in ("processes", "together"))
            table.add_row(name, f"{peaks[name]:.2f}", f"{peaks[name] / peaks[PEER]:.2f}×", str(seen), str(together))
        self.console.print(table)

    def dsp_reg(self, _: str) -> Found:
        """Runs without profiles; what a refresh costs is told by a run that has one."""
        work = self.place.prepare(self.small(RUNS["pacs"]))
        place = self.place
        sides: dict[str, Callable[[], list[str]]] = {PEER: lambda: place.domainbed(work)}
        for name, spec in DSP_REG.items():
            sides[name] = lambda spec=spec: place.dspreg(work, spec, evaluate="needed", more="--profile never")
        runs = self.rounds(sides, rounds=self.given.rounds)
        starts = {
            PEER: lambda: place.domainbed(work, start_up=True),
            "DSP-Reg": lambda: place.dspreg(work, "DSPReg", start_up=True, more="--profile never"),
        }
        return {
            "work": str(work),
            "full": work.full_length,
            "runs": runs,
            "start": self.rounds(starts, rounds=min(3, self.given.rounds)),
        }

    def show_dsp_reg(self, found: Found) -> None:
        table = Table("side", f"{self.given.clock} s", "of DomainBed's ERM", "full length", title=found["work"])
        seconds = {name: self.seconds(costs) for name, costs in found["runs"].items()}
        once = median(
            (a - b) / REFRESHED for a, b in zip(seconds["DSP-Reg, one refresh"], seconds["DSP-Reg"], strict=True)
        )
        long, start, own = found["full"], self._start(found, PEER), self._start(found, "DSP-Reg")
        for name, each in seconds.items():
            refreshing = 0.0 if name == PEER else REFRESHES * MEASURED * once
            begin = start if name == PEER else own
            full = [
                (begin + long * (b - begin) + refreshing) / (start + long * (a - start))
                for a, b in zip(seconds[PEER], each, strict=True)
            ]
            ratio = median(b / a for a, b in zip(seconds[PEER], each, strict=True))
            shown = "" if name == "DSP-Reg, one refresh" else f"{median(full):.2f}×"
            table.add_row(name, f"{median(each):.2f}", f"{ratio:.2f}×", shown)
        self.console.print(table)
        self.console.print(
            f"full length: 5,001 steps of 3×32 images with {REFRESHES} refreshes on {MEASURED:,} images each, at "
            f"{1e3 * once:.0f} ms per image (from the run with one), without profiles before and after"
        )


def loading_costs(found: Found, few: float, more: float, start: float) -> tuple[float, float]:
    """Seconds per image to train on and per image to evaluate on, from runs with few and with more evaluations."""
    # few − start = trained·a + evaluated·b, and the same with more: two equations
    trained, trained_more = found["trained"], found["trained_more"]
    evaluated, evaluated_more = (found[key] * found["images"] for key in ("evaluations", "evaluations_more"))
    both = trained * evaluated_more - trained_more * evaluated
    train = ((few - start) * evaluated_more - (more - start) * evaluated) / both
    evaluate = ((more - start) * trained - (few - start) * trained_more) / both
    return train, evaluate


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--domainbed", metavar="DIR", type=Path, required=True, help="a checkout of DomainBed")
    parser.add_argument("--work", nargs="+", choices=WORKS, default=WORKS, metavar="WORK", help=", ".join(WORKS))
    parser.add_argument("--rounds", metavar="N", type=int, default=5)
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu", help="one thread, or all cores")
    parser.add_argument("--json", metavar="FILE", type=Path, help="keep what was measured, and do what is missing")
    parser.add_argument("--quick", action="store_true", help="everything in small: whether it runs, not how fast")
    given = parser.parse_args()
    given.domainbed = given.domainbed.resolve()
    make_importable(given.domainbed)  # or ends here
    root = Path(os.environ["DSPREG_ROOT"]).resolve() if "DSPREG_ROOT" in os.environ else None
    kept: Found = json.loads(given.json.read_text()) if given.json and given.json.exists() else {}
    console = Console(width=140)
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(given, Place(given.domainbed, Path(folder), root, given.clock == "cpu"), console)
        for name in given.work:
            key = f"{name}, {given.clock}"
            kind = "run" if name in RUNS else name.replace("-", "_")
            if key not in kept:
                console.print(f"{name}:")
                kept[key] = getattr(bench, kind)(name)
                if given.json:
                    given.json.parent.mkdir(parents=True, exist_ok=True)
                    given.json.write_text(json.dumps(kept, indent=1))
            getattr(bench, f"show_{kind}")(kept[key])
    return 0


if __name__ == "__main__":
    sys.exit(main())
