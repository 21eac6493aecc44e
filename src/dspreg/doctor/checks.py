"""The machine and what is installed on it: every check is one function and takes no longer than a second."""

from __future__ import annotations

import os
import platform
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from dspreg import __version__
from dspreg.data.benchmarks import BENCHMARKS
from dspreg.data.cache import DISK_LIMIT, SHARED_MEMORY, cache_directory
from dspreg.devices import describe_device, resolve_device
from dspreg.doctor.findings import Finding
from dspreg.errors import ConfigError, DspregError
from dspreg.io.text import join_few, plural
from dspreg.networks.hub import find_cached
from dspreg.networks.timm_models import hub_location, pretrained_config
from dspreg.runs.status import ATTEMPTS, RunStatus, scan_store
from dspreg.runs.store import RunStore

GB = 1e9
PACKAGES = ("torch", "torchvision", "timm", "numpy", "safetensors", "pillow")
EXTRAS = {"onnx": "onnxruntime", "ray": "ray", "tensorboard": "tensorboard"}  # extra → what it brings
FEW_GB, TOO_FEW_GB = 10.0, 1.0  # free on a disk: two ResNet-50 models and two checkpoints are about a gigabyte
LITTLE_MEMORY = 8.0  # GB: ResNet-50 at 224 pixels with 3×32 images takes nine


def examine_machine(
    device: str = "auto", root: str | None = None, store: str | None = None, model: str = "resnet50.tv_in1k"
) -> Iterator[Finding]:
    """Look at everything in turn.

    Args:
        device: As `--device`.
        root: Folder of the data sets, if there is one.
        store: Of a sweep, if there is one.
        model: The backbone whose weights are looked for.
    """
    yield check_versions()
    yield check_device(device)
    yield check_cores()
    yield check_memory()
    yield from check_disks(store)
    yield check_shared_memory()
    yield check_weights(model)
    if root is not None:
        yield check_data(Path(root))
    yield (
        check_store(Path(store))
        if store is not None
        else Finding("store", "ok", "none given; --store DIR looks into one")
    )


def check_versions() -> Finding:
    found = [f"Python {platform.python_version()}", f"dspreg {__version__}"]
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    missing = [extra for extra, package in EXTRAS.items() if not is_installed(package)]
    says = ", ".join(found)
    if not missing:
        return Finding("versions", "ok", says)
    return Finding(
        "versions", "ok", f"{says}; without {', '.join(missing)}", f"pip install 'dspreg[{','.join(missing)}]'"
    )


def is_installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def check_device(asked: str) -> Finding:
    try:
        device = resolve_device(asked)
    except ConfigError as error:
        return Finding("device", "problem", str(error))
    says = f"{describe_device(device)}, for --device {asked}"
    if device.startswith("cuda"):
        free, total = torch.cuda.mem_get_info(device)
        return Finding("device", "ok", f"{says}; {free / GB:.1f} of {total / GB:.1f} GB free")
    if shutil.which("nvidia-smi") and not torch.cuda.is_available():
        why = "torch was built without CUDA" if torch.version.cuda is None else "torch sees no GPU"
        remedy = "check the driver with nvidia-smi, then reinstall torch for its CUDA version"
        return Finding("device", "notice", f"{says}; there is an NVIDIA driver, but {why}", remedy)
    if device == "cpu":
        remedy = "a ResNet-50 at 224 pixels wants a GPU; on a CPU take a smaller network or --image-size"
        return Finding("device", "notice", f"{says}; no GPU is here", remedy)
    return Finding("device", "ok", says)


def check_cores() -> Finding:
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cpu_quota()
    if quota is not None and quota < usable:
        remedy = f"give --threads {max(1, int(quota))}, or --jobs so that jobs × threads do not exceed it"
        return Finding("cores", "notice", f"{usable} are visible, {quota:g} may be used", remedy)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > usable:
        return Finding("cores", "notice", f"{usable}, with a load of {load:.1f}", "other programs slow trainings down")
    return Finding("cores", "ok", f"{usable}, with a load of {load:.1f}")


def cpu_quota(file: Path = Path("/sys/fs/cgroup/cpu.max")) -> float | None:
    """Cores that a container may use; None where there is no limit."""
    try:
        quota, period = file.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def check_memory() -> Finding:
    total, free = memory_limits()
    if total is None:
        return Finding("memory", "ok", "unknown on this system")
    says = f"{total / GB:.1f} GB" + (f", {free / GB:.1f} GB free" if free is not None else "")
    if total / GB < LITTLE_MEMORY:
        remedy = "ResNet-50 at 224 pixels with 3×32 images takes 9 GB: give a smaller --batch-size or --image-size"
        return Finding("memory", "notice", says, remedy)
    return Finding("memory", "ok", says)


def memory_limits(
    info: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup/memory.max")
) -> tuple[float | None, float | None]:
    """Bytes that there are, at most those of a container, and bytes that are free."""
    total = free = None
    with suppress(OSError, ValueError, IndexError):
        lines = dict(line.split(":", 1) for line in info.read_text().splitlines())
        total, free = (1024.0 * int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable"))
    with suppress(OSError, ValueError):  # "max" is no number
        limit = float(int(group.read_text()))
        total, free = (limit if each is None else min(each, limit) for each in (total, free))
    return total, free


def check_disks(store: str | None = None) -> Iterator[Finding]:
    """Free space where runs, decoded images and temporary files go; one line a disk."""
    places = {
        "runs": Path(store or "."),
        "decoded images": cache_directory(),
        "temporary files": Path(tempfile.gettempdir()),
    }
    by_disk: dict[tuple[int, float], list[str]] = {}
    for what, place in places.items():
        there = next(path for path in (place.absolute(), *place.absolute().parents) if path.exists())
        by_disk.setdefault((there.stat().st_dev, shutil.disk_usage(there).free / GB), []).append(what)
    for (_, free), names in by_disk.items():
        says = f"{free:.1f} GB free for {', '.join(names)}"
        if free < TOO_FEW_GB:
            yield Finding("disk", "problem", says, "free some, or give another --out, DSPREG_CACHE or TMPDIR")
        elif free < FEW_GB:
            yield Finding(
                "disk", "notice", says, "--keep none keeps no models; DSPREG_CACHE and TMPDIR name other disks"
            )
        else:
            yield Finding("disk", "ok", says)
    used = sum(path.stat().st_size for path in cache_directory().glob("??/*.rgb")) / GB
    yield Finding("cache", "ok", f"{used:.1f} of at most {DISK_LIMIT / GB:.0f} GB of decoded images (--cache)")


def check_shared_memory() -> Finding:
    if not SHARED_MEMORY.is_dir():
        return Finding("shared memory", "ok", "none; only --cache ram would use it")
    free = shutil.disk_usage(SHARED_MEMORY).free / GB
    if free < TOO_FEW_GB:
        remedy = "readers do without it; for --cache ram start a container with --shm-size 8g, or use --cache disk"
        return Finding("shared memory", "notice", f"{free:.2f} GB free", remedy)
    return Finding("shared memory", "ok", f"{free:.1f} GB free, for --cache ram; readers do without it")


def check_weights(model: str) -> Finding:
    try:
        repo, tag = hub_location(model, pretrained_config(model))
    except DspregError as error:
        return Finding("weights", "problem", str(error))
    if find_cached(repo) is not None:
        return Finding("weights", "ok", f"{tag} is in the hub's cache")
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        remedy = "give --weights FILE, or unset HF_HUB_OFFLINE for the first run"
        return Finding("weights", "notice", f"{tag} is not in the hub's cache, and HF_HUB_OFFLINE is set", remedy)
    return Finding(
        "weights", "notice", f"{tag} is not in the hub's cache", "the first run downloads it; or --weights FILE"
    )


def check_data(root: Path) -> Finding:
    if not root.is_dir():
        return Finding("data", "problem", f"{root} is no folder", "give the folder that holds the data sets as --root")
    there = [name for name, data in BENCHMARKS.items() if (root / data.subfolder).is_dir()]
    if not there:
        remedy = f"put {', '.join(BENCHMARKS)} there under their names, or use folder:PATH for images of your own"
        return Finding("data", "notice", f"none of the benchmarks is in {root}", remedy)
    return Finding("data", "ok", f"in {root}: {', '.join(there)}; `dspreg data verify NAME` decodes every image")


def check_store(path: Path) -> Finding:
    try:
        store = RunStore(path)
        store.check()
        found = scan_store(store, ATTEMPTS)
    except DspregError as error:
        return Finding("store", "problem", str(error))
    counts = Counter(found.summaries.values())
    says = f"{path}: " + (", ".join(f"{number:,} {name}" for name, number in counts.items()) or "no runs")
    damaged = [run for run, state in found.states.items() if state.status is RunStatus.DAMAGED]
    if damaged:
        remedy = f"put {join_few(damaged, 3)} back from a copy, or remove their folders to train them again"
        return Finding("store", "problem", f"{says}; {plural(len(damaged), 'run')} can't be read", remedy)
    left = [run for run, lease in found.leases.items() if not lease.alive]
    if left and not counts.get("running"):
        remedy = f"`dspreg sweep … --store {path}` goes on where they are"
        return Finding(
            "store", "notice", f"{says}; {plural(len(left), 'process', 'processes')} died in training", remedy
        )
    if counts.get("failed"):
        return Finding("store", "notice", says, f"`dspreg status {path}` says why; `dspreg retry {path}` tries again")
    return Finding("store", "ok", says)
