"""PACS → sketch on real images with a pretrained EfficientNet-Lite0: ERM and DSP-Reg, two seeds.

    DSPREG_ROOT=data DSPREG_WEIGHTS=tf_efficientnet_lite0.safetensors python bench/pacs.py --out runs/pacs

150 steps at 96 pixels is far from convergence, and two seeds say nothing about methods: this shows that the whole
chain works on real data, and what a step costs. Start it again to resume.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from pathlib import Path
from statistics import median

from real import places
from rich.console import Console
from rich.table import Table

import dspreg
from dspreg import Execution, ProgressBar

ALGORITHMS = ("ERM", "DSPReg")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/pacs"))
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=2)
    options = parser.parse_args()
    root, weights = places()
    warnings.simplefilter("ignore", dspreg.Notice)
    console = Console()
    table = Table(
        "method", "seed", "unseen sketch %", "sources %", "step", "s/step", "s/evaluation", "penalty/gradient"
    )
    for trial in range(options.seeds):
        for algorithm in ALGORITHMS:
            out = options.out / f"{algorithm}-{trial}"
            settings = {"dataset": "PACS", "targets": ("sketch",), "algorithm": algorithm, "trial": trial}
            settings |= {"model": "tf_efficientnet_lite0", "weights": weights, "image_size": 96}
            settings |= {"steps": options.steps, "evaluate_every": 50}
            callbacks = [ProgressBar(console, f"{algorithm}, seed {trial}")] if console.is_terminal else []
            result = dspreg.train(settings, Execution(root=root), out, callbacks=callbacks)
            lines, chosen = (out / "records.jsonl").read_text().splitlines(), result["selected"]
            records = list(map(json.loads, lines))
            seconds = {n: median(r["seconds"][n] for r in records) for n in ("step_seconds", "evaluate_seconds")}
            ratios = [r["log"]["DSPReg.ratio"] for r in records if "DSPReg.ratio" in r["log"]]
            shown = " ".join(f"{r:.2%}" for r in ratios)
            table.add_row(
                algorithm, str(trial), f"{100 * chosen['accuracy']['sketch']['in']:.1f}",
                f"{100 * chosen['validation']:.1f}", str(chosen["step"]), f"{seconds['step_seconds']:.2f}",
                f"{seconds['evaluate_seconds']:.1f}", shown,
            )  # fmt: skip
            console.print(f"{algorithm}, seed {trial}: done")
    console.print(table)
    console.print("Two seeds: nothing about accuracy is concluded. Penalty over gradient at each evaluation.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
