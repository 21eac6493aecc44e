"""A training small enough to be run hundreds of times, in which every kind of state matters."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from dspreg.config.train_config import Execution
from dspreg.errors import Preempted
from dspreg.io.atomic_files import sha256_of_file
from dspreg.runs.folder import RunFolder

DOMAINS = ("ash", "birch", "cedar", "elm")
CLASSES = ("cat", "dog", "fox")

# Dropout, batch norm that moves, Adam, weights of domains, c, a running mean of gradients, augmentation.
SETTINGS = {
    "targets": ("elm",),
    "algorithm": "GroupDRO"
    "+DSPReg(weight=0.05, refresh_steps=5, measure_batches=1, engine='momentum', estimator='signed')",
    "model": "test_resnet",
    "weights": "none",
    "image_size": 24,
    "steps": 14,
    "batch_size": 4,
    "lr": 3e-3,
    "weight_decay": 1e-4,
    "dropout": 0.2,
    "frozen_bn": False,
    "split": "domainbed",
    "evaluate_every": 4,
}


def make_images(root: Path, per_class: int = 9, seed: int = 0) -> Path:
    """domain/class/image: a class is a colour, a domain a ground, and both are noisy."""
    random = np.random.default_rng(seed)
    for d, domain in enumerate(DOMAINS):
        for c, name in enumerate(CLASSES):
            folder = root / domain / name
            folder.mkdir(parents=True)
            for i in range(per_class + d):  # domains of different sizes
                pixels = random.integers(0, 120, (20, 26, 3)) + 40 * d
                pixels[5:15, 5:15, c] += 100
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{i:02d}.png")
    return root


def settings(root: Path, **changes) -> dict:
    return {"dataset": f"folder:{root}", **SETTINGS, **changes}


def execution(**changes) -> Execution:
    return Execution(
        **{
            "threads": 1,
            "workers": 0,
            "cache": "none",
            "save_every": 3,
            "check_images": "never",
            "profile": "never",
            **changes,
        }
    )


def ending(out: Path) -> dict:
    """All that a finished run says, without what a clock measured."""
    folder = RunFolder(out)
    assert folder.result() is not None, f"{out} is not finished"
    records = [{k: v for k, v in record.items() if k != "seconds"} for record in folder.records]
    files = {
        str(p.relative_to(out)): sha256_of_file(p)
        for p in sorted(out.rglob("*"))
        if p.is_file() and p.name not in ("lock", "records.jsonl", "result.json", "run.json")
    }
    result = {k: v for k, v in folder.result().items() if k != "files"}
    return json.loads(json.dumps({"records": records, "files": files, "result": result}))


def stop_at(moment: int):
    """A `pause` that stops the trainer at its n-th call: between steps, or between batches of an evaluation."""
    calls = iter(range(10_000))

    def pause():
        if next(calls) == moment:
            raise Preempted("stopped by the test")

    return pause
