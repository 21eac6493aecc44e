"""Weights of others as safetensors under timm's names: `dspreg weights convert`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from safetensors.torch import load_file as load_tensors
from safetensors.torch import save
from torch import Tensor

from dspreg.errors import ConfigError, DspregError, IntegrityError
from dspreg.io.atomic_files import sha256, write
from dspreg.io.text import join_few, shorten
from dspreg.networks.timm_models import create_with_head, pretrained_config
from dspreg.randomness import untouched

PATIENCE = 600  # seconds for one file
PREFIXES = ("module.", "_orig_mod.", "model.", "backbone.", "encoder.", "net.", "network.", "state_dict.")
KINDS = {"weight", "bias", "running_mean", "running_var"}  # what names end in
COUNTER = "num_batches_tracked"  # older files lack it, and it has no weight


@dataclass(frozen=True)
class Conversion:
    """What came of a file.

    Attributes:
        path: The new file.
        sha256: Of its bytes.
        names: Pairs of a name in the old file and in the new one, in order.
        how: By which rule they were paired.
    """

    path: Path
    sha256: str
    names: tuple[tuple[str, str], ...]
    how: str


def convert_weights(source: str | Path, network: str | None = None, out: str | Path | None = None) -> Conversion:
    """Write the tensors of a PyTorch checkpoint as safetensors.

    Args:
        source: A file of `torch.save`, or safetensors.
        network: A timm name whose names the tensors get, and with which their shapes are compared; None: they keep
            theirs, without what wrappers put before them.
        out: The new file; `source` with `.safetensors` unless given.

    Raises:
        IntegrityError: The file holds more than tensors, or is damaged.
        ConfigError: The tensors are not those of the network.
    """
    path = Path(source)
    target = Path(out) if out is not None else path.with_suffix(".safetensors")
    if not path.is_file():
        raise ConfigError(f"there is no file {path}; give a checkpoint of PyTorch, such as model.pth")
    if target.exists() and target.samefile(path):
        raise ConfigError(f"{path} would be replaced by its conversion; give another file with --out")
    tensors = _read(path)
    pairs, how = pair_names(tensors, None if network is None else _state(network), str(path))
    data = save({new: tensors[old] for old, new in pairs})
    write(target, data)
    return Conversion(target, sha256(data), tuple(pairs), how)


def _state(network: str) -> dict[str, Tensor]:
    pretrained_config(network)  # names the nearest one, if there is none
    with untouched():
        return dict(create_with_head(network, None, None)[0].state_dict())


def _read(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, by a process of its own, in the file's order."""
    with tempfile.TemporaryDirectory(prefix="dspreg-") as folder:
        target = Path(folder, "tensors.safetensors")
        if path.suffix == ".safetensors":
            return _load(path)
        command = [sys.executable, "-m", "dspreg.networks.pickle_reader", os.fspath(path.absolute()), os.fspath(target)]
        try:
            ran = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired as error:
            raise IntegrityError(f"{path} could not be read within {PATIENCE} seconds") from error
        try:
            said = json.loads(ran.stdout.decode().splitlines()[-1])
        except (ValueError, IndexError) as error:
            raise IntegrityError(
                f"reading {path} ended the process that read it (exit code {ran.returncode})"
            ) from error
        if "error" in said:
            raise IntegrityError(
                f"{path} holds more than tensors, or is damaged, and is not opened: {str(said['error'])[:200]}. It "
                "may run code when it is opened in another way; save its state_dict() alone where you trust it"
            )
        tensors = _load(target)
        return {name: tensors[name] for name in said["names"]}


def _load(path: Path) -> dict[str, Tensor]:
    try:
        return dict(load_tensors(path))
    except DspregError:
        raise
    except Exception as error:  # safetensors raises errors of several kinds
        raise IntegrityError(f"{path} can't be read as safetensors: {shorten(error, 200)}") from error


def pair_names(
    tensors: Mapping[str, Tensor], state: Mapping[str, Tensor] | None, path: str
) -> tuple[list[tuple[str, str]], str]:
    """Which tensor of a file is which of a network: by name, by name without wrappers, or by order and shape.

    Returns:
        Pairs (name in the file, name in the network), and the rule in words.

    Raises:
        ConfigError: They can't be paired; names the first that does not fit.
    """
    bare = _without_prefixes(list(tensors))
    if state is None:
        return list(zip(tensors, bare, strict=True)), "names kept" if bare == list(tensors) else "prefixes removed"
    wanted = [name for name in state if not name.endswith(COUNTER)]
    for names, how in ((list(tensors), "by name"), (bare, "by name, prefixes removed")):
        if set(names) <= set(state) and set(wanted) <= set(names):
            pairs = list(zip(tensors, names, strict=True))
            _check_shapes(pairs, tensors, state, path)
            return pairs, how
    kept = [name for name in tensors if not name.endswith(COUNTER)]
    if len(kept) != len(wanted):
        missing = [name for name in wanted if name not in bare]
        raise ConfigError(
            f"{path} has {len(kept)} tensors where the network has {len(wanted)}, and {join_few(missing, 3)} are not "
            "among them by name. Give the network that the file is for"
        )
    pairs = list(zip(kept, wanted, strict=True))
    _check_shapes(pairs, tensors, state, path)
    _check_kinds(pairs, path)
    return pairs, "in order, every shape equal"


def _check_shapes(
    pairs: Sequence[tuple[str, str]], tensors: Mapping[str, Tensor], state: Mapping[str, Tensor], path: str
) -> None:
    for old, new in pairs:
        if tensors[old].shape != state[new].shape:
            raise ConfigError(
                f"{path} has {shorten(old)} with the shape {list(tensors[old].shape)}, where {new} of the network has "
                f"{list(state[new].shape)}. Give the network that the file is for"
            )


def _check_kinds(pairs: Sequence[tuple[str, str]], path: str) -> None:
    """Refuse a file in another order, such as that of the alphabet: scale and shift of a norm have one shape."""
    for old, new in pairs:
        kind, other = old.rpartition(".")[2], new.rpartition(".")[2]
        if kind != other and {kind, other} <= KINDS:
            raise ConfigError(
                f"{path} has its tensors in another order than the network: {shorten(old)!r} would be {new}. Give a "
                "file in the order of the network's own state_dict(), or one with its names"
            )


def _without_prefixes(names: list[str]) -> list[str]:
    """Without what wrappers such as DataParallel put before every name."""
    while names and (prefix := next((p for p in PREFIXES if all(name.startswith(p) for name in names)), None)):
        names = [name.removeprefix(prefix) for name in names]
    return names
