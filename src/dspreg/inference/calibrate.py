"""Temperature scaling: one number that makes the probabilities of a trained model honest on new images of its sources.

    p = softmax(z / T)      T minimises the mean over the sources of the mean −log p(true class) on held-out images

It changes no prediction, only how sure the model says it is. Guo et al., ICML 2017. On a domain that nobody has seen a
model is usually surer than it should be, calibrated or not: T is right for the sources.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from dspreg.errors import ConfigError, DataError, Notice
from dspreg.inference.evaluate_run import DomainScores, evaluate_run
from dspreg.inference.metrics import scores_of
from dspreg.io.text import join_few
from dspreg.protocol.description import RunDescription
from dspreg.runs.calibration_file import LEAST, MOST, read_calibration, write_calibration
from dspreg.runs.folder import RunFolder
from dspreg.runs.model_file import model_file


@dataclass(frozen=True)
class Calibration:
    """What `calibrate_run` found, and wrote into calibration.json of the run.

    Attributes:
        temperature: What logits are divided by.
        images: Held-out images of the sources it was found on.
        log_loss: Mean over the sources, before and after.
        calibration_error: The same of the expected calibration error.
    """

    temperature: float
    images: int
    log_loss: tuple[float, float]
    calibration_error: tuple[float, float]


def calibrate_run(
    run: str | Path,
    *,
    which: str = "selected",
    dataset: str | None = None,
    root: str | None = None,
    name: str | None = None,
    device: str = "auto",
    workers: int | None = None,
    batch: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    trust: Sequence[str] = (),
) -> Calibration:
    """Find the temperature of a finished run on the held-out images of its sources, and keep it in the run.

    From then on `dspreg.load`, `predict`, `evaluate` and `export` divide its logits by it. The target is not looked at.
    Arguments as in `dspreg.evaluate`.

    Raises:
        ConfigError: The run held no images out.
    """
    folder = RunFolder(run)
    trained = RunDescription.from_json(folder.description())
    if trained.config.holdout == 0:
        raise ConfigError(
            f"{folder.path} held no images out (holdout=0), on which its probabilities could be compared with what is "
            "true. Calibrate a run of the same settings that did"
        )
    file = model_file(run, which)
    found = evaluate_run(
        run, dataset=dataset, root=root, name=name, domains=trained.sources, which=which, device=device,
        workers=workers, batch=batch, progress=progress, trust=trust,
    )  # fmt: skip
    missing = sorted({*trained.sources} - {each.domain for each in found.sources})
    if missing:
        raise DataError(
            f"{found.dataset} has not the images of {join_few([*map(repr, missing)])} that the run was trained "
            "with, so "
            "that it is not known which of them were held out. Give the run's own data set"
        )
    temperature, judged = fit_temperature(found.sources, found.temperature)
    kept = read_calibration(folder)
    kept[file.relative_to(folder.path).as_posix()] = {
        "sha256": (folder.result(weights=False) or {})["files"][file.relative_to(folder.path).as_posix()],
        "temperature": temperature,
        "images": judged.images,
        "log_loss": list(judged.log_loss),
        "calibration_error": list(judged.calibration_error),
    }
    write_calibration(folder, kept)
    return judged


def fit_temperature(domains: Sequence[DomainScores], before: float = 1.0) -> tuple[float, Calibration]:
    """The best temperature for these domains, each counting as much.

    Args:
        domains: With their answers.
        before: The temperature that these have in them.
    """
    from scipy.optimize import minimize_scalar

    plain = [(each.answers.labels, before * each.answers.log_p) for each in domains if each.answers is not None]

    def loss(log_t: float) -> float:
        return float(np.mean([_log_loss(labels, z / math.exp(log_t)) for labels, z in plain]))

    all_right = all(np.array_equal(z.argmax(1), labels) for labels, z in plain)  # the surer, the better, without end
    ends = math.log(LEAST), math.log(MOST)
    found = minimize_scalar(loss, bounds=ends, method="bounded", options={"xatol": 1e-10})
    temperature = math.exp(found.x)
    if all_right or min(abs(found.x - end) for end in ends) < 1e-3:
        text = "no temperature is the best, as when every held-out image is recognised: it stays 1"
        warnings.warn(text, Notice, stacklevel=3)
        temperature = 1.0
    errors = tuple(
        float(np.mean([scores_of(torch.from_numpy(z / t), torch.from_numpy(y)).calibration_error for y, z in plain]))
        for t in (1.0, temperature)
    )
    images = sum(len(labels) for labels, _ in plain)
    losses = loss(0.0), loss(math.log(temperature))
    return temperature, Calibration(temperature, images, losses, (errors[0], errors[1]))


def _log_loss(labels: np.ndarray, z: np.ndarray) -> float:
    top = z.max(1)
    return float(
        np.mean(top + np.log(np.exp(z - top[:, None]).sum(1)) - np.take_along_axis(z, labels[:, None], 1)[:, 0])
    )
