"""Pretrained weights out of a safetensors file, which is believed only as far as it fits the model."""

from __future__ import annotations

import hashlib
import json
import math
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor, nn

from dspreg.errors import ConfigError, IntegrityError, ResourceError

LONGEST_HEADER = 8 * 2**20  # bytes; those of the largest timm models have a few hundred thousand
HEAD_TENSORS = 8  # at most this many per classifier: a weight, a bias, and a normalisation's five
PICKLES = {".pt", ".pth", ".bin", ".pkl", ".ckpt"}
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Weights:
    """Where the weights at the start of training came from. Goes into every record."""

    source: str  # "none" | "file" | "hub"
    tag: str  # e.g. "resnet50.tv_in1k", or the file's name; "none"
    sha256: str | None  # of the file's bytes


@dataclass(frozen=True)
class Wanted:
    """What a file must hold to be weights of `name`."""

    name: str
    state: Mapping[str, Tensor]  # of the network without its head
    heads: tuple[str, ...] = ()  # modules whose tensors may be in the file and are left there

    def is_head(self, tensor: str) -> bool:
        return tensor not in self.state and any(tensor.startswith(f"{head}.") for head in self.heads)


def read_weights(path: Path, wanted: Wanted) -> tuple[dict[str, Tensor], str]:
    """The state of the network without its head, and the SHA-256 of the file it came from.

    The header is compared with the model before the numbers are read, and the file is read once: what was hashed is
    what is returned. Only `num_batches_tracked` may be missing, which older files do not have.
    """
    with _opened(path) as (file, size):
        start, header = _header(path, file, size)
        _compare(path, header, wanted)
        data = start + file.read(size - len(start))
    return _state(path, data, wanted), hashlib.sha256(data).hexdigest()


def load_file(net: nn.Module, name: str, path: Path, heads: tuple[str, ...] = (), *, new_head: bool = False) -> str:
    """Put a file's weights into a network; returns the SHA-256 of the file.

    Args:
        net: The network.
        name: Its, for messages.
        path: Of the file.
        heads: Modules that the file may have and the network not.
        new_head: They are the network's own, too, and stay as they are: the file has none, or one of another size.
    """
    state = net.state_dict()
    kept = {n: t for n, t in state.items() if new_head and any(n.startswith(f"{head}.") for head in heads)}
    body = {n: t for n, t in state.items() if n not in kept}
    read, sha256 = read_weights(path, Wanted(name, body, heads))
    net.load_state_dict(read | kept)
    return sha256


def outputs_in(path: Path, heads: Sequence[str]) -> int | None:
    """How many outputs the head in a file has, by its first module's bias or weight; None where there is no head."""
    with _opened(path) as (file, size):
        _, header = _header(path, file, size)
    tensors = (f"{head}.{part}" for head in heads for part in ("bias", "weight"))
    shapes = [header[name]["shape"] for name in tensors if name in header]
    return shapes[0][0] if shapes and shapes[0] else None


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """An ordinary file and its size, or what is wrong with it."""
    try:
        found = path.stat()
        if stat.S_ISDIR(found.st_mode):
            raise ConfigError(f"{path} is a folder; give the file in it, such as {path / 'model.safetensors'}")
        if not stat.S_ISREG(found.st_mode):
            raise ConfigError(f"{path} is not an ordinary file; give a safetensors file")
        with path.open("rb") as file:
            yield file, found.st_size
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no file {path}. The weights are 'default', 'none' or a safetensors file; "
            "a tag of timm's belongs to the name of the network: 'resnet50.tv_in1k'"
        ) from error
    except OSError as error:
        raise ResourceError(f"{path} cannot be read: {error.strerror or error}") from error


def _header(path: Path, file: BinaryIO, size: int) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """The first bytes of the file, and what they say of every tensor: dtype, shape and place."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if size < 8:
        _refuse(path, start, f"it has {size} bytes")
    if length > min(LONGEST_HEADER, size - 8):
        _refuse(path, start, f"its header would have {length} bytes, the file has {size}")
    start += file.read(length)
    try:
        header = json.loads(start[8:].decode(), object_pairs_hook=_without_repetition)
        header.pop("__metadata__", None)
        ends = [_end(entry) for entry in header.values()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        _refuse(path, start, f"its header cannot be read ({_clipped(error)})")
    promised = 8 + length + max(ends, default=0)
    if promised != size:
        _refuse(path, start, f"its header tells of {promised} bytes, the file has {size}")
    return start, header


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name stands there twice")  # readers differ in which of the two they take
    return entries


def _end(entry: dict[str, Any]) -> int:
    """Where a tensor's bytes end, or an error: this comes from a file of unknown origin."""
    numbers = [*entry["shape"], *entry["data_offsets"]]
    if any(type(n) is not int or n < 0 for n in numbers) or not isinstance(entry["dtype"], str):
        raise ValueError("a dtype, a shape or a place is not one")
    first, end = entry["data_offsets"]
    if (first == end) != (math.prod(entry["shape"]) == 0) or first > end:
        raise ValueError("a tensor's place does not fit its shape")
    return int(end)


def _refuse(path: Path, start: bytes, why: str) -> NoReturn:
    zipped_or_pickled = start.startswith(b"PK\x03\x04") or (start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05")
    if path.suffix.lower() in PICKLES or (start and zipped_or_pickled):
        raise IntegrityError(
            f"{path} is a pickle, not a safetensors file. Pickles can run any code and are not opened. If you trust "
            "it, load it yourself with torch.load and save its state with safetensors.torch.save_file"
        )
    raise IntegrityError(f"{path} is damaged or not a safetensors file: {why}. Fetch or save it again")


def _compare(path: Path, header: dict[str, dict[str, Any]], wanted: Wanted) -> None:
    """Every tensor of the network is in the file, under its name, in its shape and dtype; and no other one."""
    body = {name: entry for name, entry in header.items() if not wanted.is_head(name)}
    missing = [n for n in wanted.state if n not in body and not n.endswith("num_batches_tracked")]
    unexpected = [n for n in body if n not in wanted.state]
    other = [
        f"{name} is {entry['dtype']} {entry['shape']} and not {DTYPES.get(t.dtype, t.dtype)} {list(t.shape)}"
        for name, entry in body.items()
        if (t := wanted.state.get(name)) is not None
        and (entry["shape"] != list(t.shape) or entry["dtype"] != DTYPES.get(t.dtype))
    ]
    faults = [
        f"{len(names)} {what} ({_first(names)})"
        for names, what in ((missing, "missing"), (unexpected, "unexpected"), (other, "of another shape or dtype"))
        if names
    ]
    if len(header) - len(body) > HEAD_TENSORS * len(wanted.heads):
        faults.append(f"{len(header) - len(body)} belong to the head")
    if faults:
        head = f", with or without its head ({', '.join(wanted.heads)})" if wanted.heads else ""
        raise IntegrityError(
            f"{path} does not hold weights of {wanted.name}: of its {len(header)} tensors and the network's "
            f"{len(wanted.state)}, {'; '.join(faults)}. Give the file of this network{head}, or name the network "
            "that the file is for"
        )


def _state(path: Path, data: bytes, wanted: Wanted) -> dict[str, Tensor]:
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        _refuse(path, data[:8], _clipped(error))
    state = {name: tensors.get(name, fresh) for name, fresh in wanted.state.items()}
    broken = [name for name, tensor in state.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    if broken:
        raise IntegrityError(f"{path} has NaN or infinity in {len(broken)} tensor(s), {_first(broken)}; fetch it again")
    return state


def _first(names: Sequence[str], count: int = 3) -> str:
    return ", ".join(_clipped(name) for name in names[:count]) + (", …" if len(names) > count else "")


def _clipped(text: object) -> str:
    """On one short line, whatever it is: names in a file may be of any length and have any characters."""
    line = "".join(c if c.isprintable() else "?" for c in str(text)[:121])
    return line if len(line) <= 120 else line[:119] + "…"
