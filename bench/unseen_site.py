"""Each domain of PACS forecast from the other three by `dspreg.estimate`, beside what the shipped model then gives.

    python bench/unseen_site.py --root data --weights tf_efficientnet_lite0.safetensors --out build/unseen-site

For each domain: the other three are taken for an engineer's sites, `dspreg.estimate` holds each of them out in turn and
trains the final model on all three; the fourth is what it calls a new site. Its images are given as `--new`, without
their classes, for the estimate without labels. Only then the final model is scored on the fourth with its labels.
EfficientNet-Lite0 with small images and few steps: it is the forecast that is looked at, and not how well one can do on
PACS. Four forecasts can show that the method fails, and not that it holds; `bench/forecast.py` has the coverage. Start
it again to resume; `--table` shows what is there already.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

import dspreg
from dspreg import Estimate, Execution

DOMAINS = ("art_painting", "cartoon", "photo", "sketch")
LEVELS = (0.8, 0.9)
FILE = "{}.json"  # what came of one domain, whole or not there


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder that holds PACS")
    parser.add_argument("--weights", type=Path, help="Lite0's safetensors file")
    parser.add_argument("--out", type=Path, default=Path("build/unseen-site"))
    parser.add_argument("--domains", nargs="+", choices=DOMAINS, default=list(DOMAINS), help="that are forecast")
    parser.add_argument("--methods", nargs="+", default=["SWA"])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="images of each site in a step")
    parser.add_argument("--check", action="store_true", help="also hold out every two of the three sites together")
    parser.add_argument("--table", action="store_true", help="train nothing")
    given = parser.parse_args()
    if not given.table:
        if given.weights is None:
            parser.error("--weights: Lite0's safetensors file is needed")
        for domain in given.domains:
            if not (given.out / FILE.format(domain)).exists():
                forecast(domain, given)
    print_table(given.out)
    return 0


def forecast(domain: str, given: Any) -> None:
    """One domain, from the other three; and then what it is."""
    pacs, place, started = (given.root / "PACS").absolute(), given.out / domain, time.monotonic()
    sites, fourth = place / "sites", place / "fourth"
    for name in DOMAINS:  # folders of links: a stranger's three sites, and the fourth apart from them
        folder = fourth if name == domain else sites
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(pacs / name, target_is_directory=True)
    how = Execution(threads=1, workers=0, device="cpu", layout="channels-last")
    found = dspreg.estimate(
        f"folder:{sites}", place / "answer", methods=given.methods, budget="9 days", model="tf_efficientnet_lite0",
        image_size=given.image_size, steps=given.steps, trials=1, check=given.check, new=f"folder:{fourth / domain}",
        options={"weights": str(given.weights.absolute()), "batch_size": given.batch, "evaluate_every": given.steps},
        execution=how,
        say=lambda text: print(f"{domain}: {text}", flush=True),
    )  # fmt: skip
    assert found is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dspreg.Notice)
        scored = dspreg.evaluate(place / "answer" / "model", dataset=f"folder:{fourth}", which="last", device="cpu")
    (truth,) = scored.domains
    assert (truth.domain, truth.role) == (domain, "unseen"), (truth.domain, truth.role)
    made = describe(found, truth.scores.images) | {
        "domain": domain, "images": truth.scores.images, "accuracy": truth.scores.accuracy,
        "seconds": time.monotonic() - started,
    }  # fmt: skip
    part = given.out / f"{domain}.part"
    part.write_text(json.dumps(made, indent=1))
    part.replace(given.out / FILE.format(domain))
    print(f"{domain}: {found.sentence()} It gave {100 * made['accuracy']:.1f} %.", flush=True)


def describe(found: Estimate, images: int) -> dict[str, Any]:
    """The forecast, made before the labels of the fourth were looked at."""
    assert found.new is not None
    of_images = {level: found.forecast.interval(level, images) for level in LEVELS}
    record = None if found.checked is None else [each.was_right(0.9) for each in found.checked]
    return {
        "sites": {each.site: each.accuracy for each in found.chosen.sites},
        "chosen": found.chosen.spec,
        "expected": found.forecast.expected,
        "intervals": {str(level): [each.low, each.high] for level, each in of_images.items()},
        "without_labels": {each.title: each.value for each in found.estimates_of_new()},
        "errors": {each.title: each.mean_error for each in found.estimates_of_new()},
        "oddness": found.oddness_of_new(),
        "check": record,
    }


def print_table(out: Path) -> None:
    there = [json.loads(path.read_text()) for d in DOMAINS if (path := out / FILE.format(d)).exists()]
    if not there:
        print(f"nothing has finished in {out} yet")
        return
    table = Table("fourth site", "the three, held out", "expected", "80 %", "90 %", "it gave", "within", "confidence")
    for each in there:
        held_out = ", ".join(f"{name} {100 * a:.0f}" for name, a in each["sites"].items())
        ends = [f"{100 * low:.0f} – {100 * high:.0f}" for low, high in (each["intervals"][str(x)] for x in LEVELS)]
        within = [x for x in LEVELS if each["intervals"][str(x)][0] <= each["accuracy"] <= each["intervals"][str(x)][1]]
        says = f"{100 * within[0]:.0f} %" if within else "no"
        unlabelled = each["without_labels"]["average thresholded confidence"]
        table.add_row(each["domain"], held_out, f"{100 * each['expected']:.0f}", *ends,
                      f"{100 * each['accuracy']:.1f}", says, f"{100 * unlabelled:.0f}")  # fmt: skip
    Console(width=140).print(table)
    for level in LEVELS:
        low_high = [each["intervals"][str(level)] for each in there]
        right = sum(low <= each["accuracy"] <= high for each, (low, high) in zip(there, low_high, strict=True))
        width = 100 * fmean(high - low for low, high in low_high)
        print(f"{100 * level:.0f} %: right {right} of {len(there)} times, {width:.0f} points wide on average")
    off = {title: fmean(abs(each["without_labels"][title] - each["accuracy"]) for each in there)
           for title in there[0]["without_labels"]}  # fmt: skip
    print("off by, on average: " + "; ".join(f"{title} {100 * value:.0f} points" for title, value in off.items()))
    print(f"{sum(each['seconds'] for each in there) / 60:.0f} minutes of the last starts")


if __name__ == "__main__":
    sys.exit(main())
