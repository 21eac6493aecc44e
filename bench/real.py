"""Where real images and weights are, and the experiment that all evidence starts from."""

from __future__ import annotations

import os
from typing import Any

from dspreg import Execution
from dspreg.training.experiment import Experiment, prepare_experiment

LITE0 = "tf_efficientnet_lite0"


def places() -> tuple[str, str]:
    """The folder that holds PACS, and Lite0's weights. Ends the program with code 3 where they are not given."""
    root, weights = (os.environ.get(name) for name in ("DSPREG_ROOT", "DSPREG_WEIGHTS"))
    if not root or not weights:
        print("set DSPREG_ROOT to the folder that holds PACS and DSPREG_WEIGHTS to Lite0's safetensors file")
        raise SystemExit(3)
    return root, weights


def without_sketch(image_size: int, **others: Any) -> Experiment:
    """PACS without sketch, and Lite0 with its weights unless `others` has another model."""
    root, weights = places()
    settings = {"dataset": "PACS", "targets": ("sketch",), "algorithm": "ERM", "trial": 0, "image_size": image_size}
    return prepare_experiment(settings | {"model": LITE0, "weights": weights} | others, Execution(root=root, workers=0))
