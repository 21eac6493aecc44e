"""How many images make c trustworthy, and which estimator should be the default?

    DSPREG_ROOT=data DSPREG_WEIGHTS=tf_efficientnet_lite0.safetensors python bench/noise.py --out build/noise
    python bench/noise.py --out build/noise --table --figures build/noise

PACS without sketch, images to train on, as evaluation shows them; batches of 32, or two smaller ones where there are
fewer than 64 images per domain. One measurement, with its floor, for every number of images n, estimator and `of`; each
is a line of noise.jsonl, and start it again to resume. Images are nested: the 16 are among the 32, and all are among
those of the reference, `persample` at the largest n, so agreement with it is flattered the more the nearer n comes.
Ranks are compared over at most two million keyed parameters that both sides are sensitive to.
Lite0 comes with its weights, or with the trained ones of bench/trajectory.py by `--network`. Other networks are random:
their batch norm takes its statistics from 3×64 images, and scales that start at 0, which would silence whole residual
branches, become 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from plots.noise import OF, by_model, print_tables, save_plots
from real import LITE0, without_sketch
from rich.console import Console
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import dspreg
from dspreg import Algorithm, Batch, Profile
from dspreg.inference.adapt_bn import batch_norms
from dspreg.randomness import generator
from dspreg.sensitivity.statistics import rank_correlation

ESTIMATORS: dict[str, dict[str, Any]] = {
    "persample": {"estimator": "persample"},
    "signed": {"estimator": "signed", "draws": 1},
    "signed-4": {"estimator": "signed", "draws": 4},
    "minibatch": {"estimator": "minibatch"},
}
COMPARED = 2_000_000  # parameters whose ranks are compared
Record = dict[str, Any]


def network(model: str, trained: Path | None, size: int) -> Algorithm:
    """ERM at step 0, its network as the docstring says."""
    others = {} if model == LITE0 else {"model": model, "weights": "none"}
    algorithm = without_sketch(size, **others).algorithm()
    if trained is not None:
        algorithm.net.load_state_dict(load_file(trained))
    elif model != LITE0:
        pairs = zip(*algorithm.task.samples(0, 2).values(), strict=True)
        awaken(algorithm.net, [torch.cat([b.x for b in batches]) for batches in pairs])
    return algorithm


@torch.no_grad()
def awaken(net: nn.Module, images: Sequence[Tensor]) -> None:
    """Statistics of these images for every batch norm of a random network, and 1 for every scale that is 0."""
    norms = batch_norms(net)
    net.eval()
    for norm in norms:
        norm.weight[norm.weight == 0] = 1.0
        norm.reset_running_stats()
        norm.momentum, norm.training = None, True  # the average over all batches
    for x in images:
        net(x)
    net.eval()


def first(batches: Sequence[Batch], n: int) -> list[tuple[Tensor, Tensor]]:
    """The first n images in batches of 32; in two halves where that would be one batch, for reliability needs two."""
    x, y = (torch.cat(parts)[:n] for parts in zip(*((b.x, b.y) for b in batches[: -(-n // 32)]), strict=True))
    size = min(32, n // 2)
    return list(zip(x.split(size), y.split(size), strict=True))


def told(profile: Profile) -> Record:
    """The numbers of one measurement, over the parameters that some domain is sensitive to."""
    assert profile.null is not None
    assert profile.c_debiased is not None
    c, null, debiased = (profile.over_alive(v).double() for v in (profile.c, profile.null, profile.c_debiased))
    r = profile.reliability
    return {
        "alive": c.numel() / profile.c.numel(), "c": float(c.mean()), "null": float(null.mean()),
        "c_debiased": float(debiased.mean()), "reliability": r,
        "full": None if r is None or r <= -1 else 2 * r / (1 + r),  # of all batches and not of half: Spearman–Brown
        "over": float((c > null).double().mean() + (c == null).double().mean() / 2),  # ½ where nothing differs
        "above": float((c > np.quantile(null.numpy(), 0.95)).double().mean()),
    }  # fmt: skip


def compared(profile: Profile) -> Tensor:
    """c of the parameters whose ranks are compared, NaN for those that no domain is sensitive to."""
    c = torch.where(profile.alive().flat(), profile.c.flat(), torch.nan)
    if c.numel() <= COMPARED:
        return c
    return c[torch.randperm(c.numel(), generator=generator("noise", "compared"))[:COMPARED]]


def agreement(a: Tensor, b: Tensor) -> float:
    """Spearman's correlation over parameters alive in both."""
    both = ~(a.isnan() | b.isnan())
    return rank_correlation(a[both], b[both])


def measure_all(algorithm: Algorithm, options: argparse.Namespace, which: Record, console: Console) -> None:
    """Every cell that is not there yet; of each `of` the reference first."""
    out, largest = options.out, max([*options.images, options.reference or 0])
    tag = "-".join(str(v) for v in which.values() if v is not None)
    images = algorithm.task.samples(0, -(-largest // 32))
    few = {name: n for name, batches in images.items() if (n := sum(len(b) for b in batches)) < largest}
    if few:
        raise SystemExit(f"there are fewer than {largest} images: {few}")

    def kept(of: str, n: int) -> Path:
        return out / f"c-{tag}-{of}-{n}.safetensors"

    for of in options.of:
        most = options.most_output if of == "output" and options.most_output else largest
        reference = min(options.reference or largest, most)
        cells = [(n, e) for n in sorted(options.images) for e in options.estimators if n <= most]
        cells = list(dict.fromkeys([(reference, "persample"), *cells]))
        for n, name in cells:
            cell = which | {"of": of, "estimator": name, "n": n, "reference": reference}
            there = name != "persample" or kept(of, n).exists()
            if there and any(cell.items() <= record.items() for record in records(out)):
                continue
            started = time.process_time()
            domains = {d: first(batches, n) for d, batches in images.items()}
            profile = dspreg.measure(algorithm.net, domains, of=of, **ESTIMATORS[name])
            seconds = time.process_time() - started
            c, others = compared(profile), {}
            if name == "persample":
                save_file({"c": c}, kept(of, n))
                others = {o: load_file(kept(o, n))["c"] for o in OF if o != of and kept(o, n).exists()}
            record = cell | told(profile) | {"agreement": agreement(c, load_file(kept(of, reference))["c"])}
            record |= {"with": {o: agreement(c, other) for o, other in others.items()}, "seconds": seconds}
            with (out / "noise.jsonl").open("a") as file:
                print(json.dumps(record), file=file, flush=True)
            console.print(f"{of}, {name}, {n} images per domain: c {record['c']:.3f}, {seconds:.0f} s")


def records(out: Path) -> list[Record]:
    path = out / "noise.jsonl"
    return [json.loads(line) for line in path.open()] if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/noise"))
    parser.add_argument("--model", default=LITE0, help=f"{LITE0} or another of timm's, such as resnet50")
    parser.add_argument("--network", type=Path, help="safetensors file of a trained one, as bench/trajectory.py saves")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--images", type=int, nargs="+", default=[16, 32, 64, 128, 256, 512, 1024], help="per domain")
    parser.add_argument("--reference", type=int, help="n of the reference (default: the largest of --images)")
    parser.add_argument("--estimators", nargs="+", choices=list(ESTIMATORS), default=list(ESTIMATORS))
    parser.add_argument("--of", nargs="+", choices=OF, default=list(OF))
    parser.add_argument("--most-output", type=int, help="largest n of output, a backward pass for each class")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--table", action="store_true", help="show what is in --out, measure nothing")
    parser.add_argument("--figures", type=Path, metavar="DIR", help="also draw the pictures there")
    options = parser.parse_args()
    console = Console(width=130)
    if not options.table:
        warnings.simplefilter("ignore", dspreg.Notice)
        torch.set_num_threads(options.threads)
        options.out.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(options.network.read_bytes()).hexdigest()[:8] if options.network else None
        which = {"model": options.model, "network": digest, "image_size": options.image_size}
        algorithm = network(options.model, options.network, options.image_size)
        measure_all(algorithm, options, which, console)
    for model, rows in by_model(records(options.out)).items():
        print_tables(model, rows, console)
        if options.figures:
            save_plots(model, rows, options.figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
