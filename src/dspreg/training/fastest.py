"""How a run computes what it computes: memory layout, and batch norm folded into convolutions or not.

Both change results by rounding only, so they are part of a run's environment and not of its settings. `auto` becomes
what a run was begun with. For a new run it is what is fastest here, and a short probe finds the layout.
"""

from __future__ import annotations

import platform
import time
import warnings
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from dspreg.config.train_config import CHANNELS_FIRST, CHANNELS_LAST, FOLDED, Execution, TrainConfig
from dspreg.errors import IntegrityError, Notice, ResourceError
from dspreg.io.atomic_files import canonical_json, make_folder, read_json, sha256, write_json
from dspreg.io.user_cache import user_cache
from dspreg.networks.fold_batch_norm import fold_batch_norm
from dspreg.networks.own import is_own_network
from dspreg.networks.pretrained import Backbone, TimmFeaturizer
from dspreg.networks.timm_models import create_with_head
from dspreg.randomness import untouched

SMALLEST = 64  # pixels: below, steps are short and either layout will do
IMAGES, ROUNDS = 12, 3  # fewer images stay in the processor's cache, where both are alike
SECONDS = 2.0  # of CPU time per thread; no further round after that
PAYS = 0.95  # of the time on channels-first images
CLEAR = 0.04  # from that: no further round is needed
WARM_UP = 1  # images of the passes that are not counted: libraries are loaded, and memory is there


def describe_computation(execution: Execution) -> dict[str, str | bool]:
    """What an environment says of it. Where it is as it always was there is nothing to say: older runs have none."""
    found = {"layout": CHANNELS_LAST} if execution.layout == CHANNELS_LAST else {}
    folded = {"batch_norm": FOLDED} if execution.fold_bn == "always" else {}
    return found | folded | ({"compile": True} if execution.compile else {})


def keep_begun(execution: Execution, environment: Mapping[str, Any]) -> Execution:
    """With `auto` replaced by what the environment of a run says."""
    if execution.layout == "auto":
        execution = replace(execution, layout=environment.get("layout", CHANNELS_FIRST))
    if execution.fold_bn == "auto":
        fold = "always" if environment.get("batch_norm") == FOLDED else "never"
        execution = replace(execution, fold_bn=fold)
    return execution


def choose_folding(execution: Execution, config: TrainConfig, backbone: Backbone) -> Execution:
    """With `auto` replaced for a run that has not begun: on a CPU in fp32, if the network has frozen batch norm."""
    if execution.fold_bn != "auto":
        return execution
    fold = _pays_to_fold(execution) and config.frozen_bn and backbone.has_batch_norm
    return replace(execution, fold_bn="always" if fold else "never")


def choose_layout(execution: Execution, config: TrainConfig, threads: int) -> Execution:
    """With `auto` replaced for a run that has not begun: on a CPU by a probe, elsewhere as it always was.

    Args:
        execution: With the device resolved.
        config: With every option filled in.
        threads: CPU threads of the run.
    """
    if execution.layout != "auto":
        return execution
    layout = CHANNELS_FIRST
    small = config.model == "small-cnn" or is_own_network(config.model)  # or of no known size
    if execution.device == "cpu" and not small and config.image_size >= SMALLEST:
        fold = _pays_to_fold(execution)
        share = layout_share(config.model, config.image_size, config.frozen_bn, fold, threads, config.channels)
        layout = CHANNELS_LAST if share < PAYS else CHANNELS_FIRST
        if layout == CHANNELS_LAST:
            says = f"{config.model} at {config.image_size} pixels takes {share:.2f} of the time so, by a short probe"
            warnings.warn(f"--layout auto is {layout} here: {says}", Notice, stacklevel=2)
    return replace(execution, layout=layout)


def layout_share(model: str, image_size: int, frozen_bn: bool, fold: bool, threads: int, channels: int = 3) -> float:
    """What `probe_layouts` measured, kept in the user's cache for this processor and torch: later runs start at once.

    It also lets runs that are begun at different times, on a machine more or less busy, be computed in the same way.
    """
    asked = {"model": model, "image_size": image_size, "frozen_bn": frozen_bn, "fold": fold, "threads": threads}
    asked |= {} if channels == 3 else {"channels": channels}
    asked |= {"processor": _processor(), "torch": torch.__version__, "images": IMAGES}
    place = user_cache("layouts") / f"{sha256(canonical_json(asked).encode())}.json"
    with suppress(OSError, IntegrityError, KeyError, TypeError):
        found = read_json(place)
        if found["asked"] == asked and isinstance(found["share"], float):
            return found["share"]
    share = probe_layouts(model, image_size, frozen_bn, fold, threads, channels)
    with suppress(OSError, IntegrityError, ResourceError):
        make_folder(place.parent)
        write_json(place, {"asked": asked, "share": share})
    return share


@lru_cache
def _processor() -> str:
    """Its name, as far as the system tells."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _pays_to_fold(execution: Execution) -> bool:
    """Measured on CPUs; under autocast nothing is folded."""
    plain = execution.device == "cpu" and execution.precision == "fp32"
    return execution.fold_bn != "never" and plain and not execution.compile  # which fuses by itself


def probe_layouts(model: str, image_size: int, frozen_bn: bool, fold: bool, threads: int, channels: int = 3) -> float:
    """CPU time of a pass and its gradient on channels-last images, divided by that on channels-first ones.

    1 for a network whose convolutions do not overlap, such as a transformer's patches.
    """
    with untouched():
        made = create_with_head(model, image_size, 0, channels)[0]
        net = TimmFeaturizer(made, 0, frozen_bn=frozen_bn)  # of any width
        images = torch.rand(IMAGES, channels, image_size, image_size)
    if not any(isinstance(m, nn.Conv2d) and m.kernel_size != m.stride for m in net.modules()):
        return 1.0
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        first, last = images, images.contiguous(memory_format=torch.channels_last)
        gradient_seconds(net, first[:WARM_UP], fold)
        gradient_seconds(net, last[:WARM_UP], fold)
        shares: list[float] = []
        started = time.process_time()  # on a busy machine a round takes longer, and says no less
        while len(shares) < ROUNDS and (not shares or _is_open(shares, time.process_time() - started, threads)):
            shares.append(gradient_seconds(net, last, fold) / gradient_seconds(net, first, fold))
    finally:
        torch.set_num_threads(before)
    return median(shares)


def _is_open(shares: list[float], seconds: float, threads: int) -> bool:
    """Whether another round may decide otherwise, and there is time for it."""
    return abs(median(shares) - PAYS) < CLEAR and seconds < threads * SECONDS


def gradient_seconds(net: nn.Module, images: Tensor, fold: bool) -> float:
    """CPU time of a pass and its gradient."""
    started = time.process_time()
    with fold_batch_norm() if fold else nullcontext():
        out = net(images).square().mean()
    torch.autograd.grad(out, [p for p in net.parameters() if p.requires_grad], allow_unused=True)
    return time.process_time() - started
