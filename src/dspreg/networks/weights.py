"""Pretrained weights from a safetensors file, which is not trusted: header and tensors must fit the model exactly."""

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
from dspreg.io.text import join_few

MAX_HEADER = 8 * 2**20  # bytes; the largest timm models have a few hundred thousand
MAX_HEAD_TENSORS = 8  # per classifier: a weight, a bias, and the five of a normalisation layer
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
    """Origin of the weights at the start of training. Written to every record."""

    source: str  # "none" | "file" | "hub" | "own": as a network of the user's own was created
    tag: str  # e.g. "resnet50.tv_in1k", or the file's name; "none"
    sha256: str | None  # of the file's bytes; of an own network, see `networks.own.describe_weights`


@dataclass(frozen=True)
class ExpectedWeights:
    """What a file of weights of `name` must contain."""

    name: str
    state: Mapping[str, Tensor]  # of the network without its head
    heads: tuple[str, ...] = ()  # modules whose tensors may be in the file and are ignored

    def is_head(self, tensor: str) -> bool:
        return tensor not in self.state and any(tensor.startswith(f"{head}.") for head in self.heads)


def read_weights(path: Path, expected: ExpectedWeights) -> tuple[dict[str, Tensor], str]:
    """The state of the network without its head, and the SHA-256 of the file.

    The header is compared with the model before the tensors are read, and the file is read once, so that the hash is
    that of the returned tensors. Only `num_batches_tracked`, which older files lack, may be missing.
    """
    with _opened(path) as (file, size):
        start, header = _read_header(path, file, size)
        _compare(path, header, expected)
        data = start + file.read(size - len(start))
    return _load_state(path, data, expected), hashlib.sha256(data).hexdigest()


def load_file(net: nn.Module, name: str, path: Path, heads: tuple[str, ...] = (), *, new_head: bool = False) -> str:
    """Load a file's weights into a network, and return the SHA-256 of the file.

    Args:
        net: The network.
        name: Its name, for messages.
        path: The file.
        heads: Modules that the file may contain and the network may lack.
        new_head: Keep the network's own head: the file has none, or one of another size.
    """
    state = net.state_dict()
    kept = {n: t for n, t in state.items() if new_head and any(n.startswith(f"{head}.") for head in heads)}
    body = {n: t for n, t in state.items() if n not in kept}
    read, sha256 = read_weights(path, ExpectedWeights(name, body, heads))
    net.load_state_dict(read | kept)
    return sha256


def count_outputs(path: Path, heads: Sequence[str]) -> int | None:
    """The number of outputs of the head in a file, by its first module's bias or weight; None without a head."""
    with _opened(path) as (file, size):
        _, header = _read_header(path, file, size)
    tensors = (f"{head}.{part}" for head in heads for part in ("bias", "weight"))
    shapes = [header[name]["shape"] for name in tensors if name in header]
    return shapes[0][0] if shapes and shapes[0] else None


@contextmanager
def _opened(path: Path) -> Iterator[tuple[BinaryIO, int]]:
    """A regular file and its size, or an error that names the problem."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"{path} is a folder; give the file in it, such as {path / 'model.safetensors'}")
        if not stat.S_ISREG(status.st_mode):
            raise ConfigError(f"{path} is not a regular file; give a safetensors file")
        with path.open("rb") as file:
            yield file, status.st_size
    except FileNotFoundError as error:
        raise ConfigError(
            f"there is no file {path}. Weights are 'default', 'none' or a safetensors file; "
            "a timm tag is part of the name of the network: 'resnet50.tv_in1k'"
        ) from error
    except OSError as error:
        raise ResourceError(f"{path} cannot be read: {error.strerror or error}") from error


def _read_header(path: Path, file: BinaryIO, size: int) -> tuple[bytes, dict[str, dict[str, Any]]]:
    """The first bytes of the file, and dtype, shape and offsets of every tensor."""
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if size < 8:
        _refuse(path, start, f"it has {size} bytes")
    if length > min(MAX_HEADER, size - 8):
        _refuse(path, start, f"its header would have {length} bytes, the file has {size}")
    start += file.read(length)
    try:
        header = json.loads(start[8:].decode(), object_pairs_hook=_refuse_duplicates)
        header.pop("__metadata__", None)
        ends = [_check_entry(entry) for entry in header.values()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        _refuse(path, start, f"its header cannot be read ({_clipped(error)})")
    expected = 8 + length + max(ends, default=0)
    if expected != size:
        _refuse(path, start, f"its header describes {expected} bytes, the file has {size}")
    return start, header


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):
        raise ValueError("a name occurs twice")  # readers differ in which of the two they use
    return entries


def _check_entry(entry: dict[str, Any]) -> int:
    """The end of a tensor's bytes, if its entry is valid: the file may come from anywhere."""
    numbers = [*entry["shape"], *entry["data_offsets"]]
    if any(type(n) is not int or n < 0 for n in numbers) or not isinstance(entry["dtype"], str):
        raise ValueError("a dtype, a shape or an offset is invalid")
    first, end = entry["data_offsets"]
    if (first == end) != (math.prod(entry["shape"]) == 0) or first > end:
        raise ValueError("a tensor's offsets do not fit its shape")
    return int(end)


def _refuse(path: Path, start: bytes, why: str) -> NoReturn:
    zipped_or_pickled = start.startswith(b"PK\x03\x04") or (start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05")
    if path.suffix.lower() in PICKLES or (start and zipped_or_pickled):
        raise IntegrityError(
            f"{path} is a pickle, not a safetensors file. Pickles can run any code and are not opened. If you trust "
            "it, load it yourself with torch.load and save its state dict with safetensors.torch.save_file"
        )
    raise IntegrityError(f"{path} is damaged or not a safetensors file: {why}. Download or save it again")


def _compare(path: Path, header: dict[str, dict[str, Any]], expected: ExpectedWeights) -> None:
    """Require every tensor of the network, with its name, shape and dtype, and no other tensor."""
    body = {name: entry for name, entry in header.items() if not expected.is_head(name)}
    missing = [n for n in expected.state if n not in body and not n.endswith("num_batches_tracked")]
    unexpected = [n for n in body if n not in expected.state]
    different = [
        f"{name} is {entry['dtype']} {entry['shape']} instead of {DTYPES.get(t.dtype, t.dtype)} {list(t.shape)}"
        for name, entry in body.items()
        if (t := expected.state.get(name)) is not None
        and (entry["shape"] != list(t.shape) or entry["dtype"] != DTYPES.get(t.dtype))
    ]
    faults = [
        f"{len(names)} {what} ({_first(names)})"
        for names, what in ((missing, "missing"), (unexpected, "unexpected"), (different, "of another shape or dtype"))
        if names
    ]
    if len(header) - len(body) > MAX_HEAD_TENSORS * len(expected.heads):
        faults.append(f"{len(header) - len(body)} belong to the head")
    if faults:
        head = f", with or without its head ({', '.join(expected.heads)})" if expected.heads else ""
        raise IntegrityError(
            f"{path} does not hold weights of {expected.name}: of its {len(header)} tensors and the network's "
            f"{len(expected.state)}, {'; '.join(faults)}. Give a file of this network{head}, or the name of the "
            "network that the file is for"
        )


def _load_state(path: Path, data: bytes, expected: ExpectedWeights) -> dict[str, Tensor]:
    try:
        tensors = load(data)
    except (SafetensorError, ValueError, KeyError) as error:
        _refuse(path, data[:8], _clipped(error))
    state = {name: tensors.get(name, initial) for name, initial in expected.state.items()}
    broken = [name for name, tensor in state.items() if tensor.is_floating_point() and not tensor.isfinite().all()]
    if broken:
        names = _first(broken)
        raise IntegrityError(f"{path} has NaN or infinity in {len(broken)} tensor(s), {names}; download it again")
    return state


def _first(names: Sequence[str]) -> str:
    return join_few([*map(_clipped, names[:3]), *names[3:]], 3)


def _clipped(text: object) -> str:
    """One short printable line: names in a file may be of any length and contain any characters."""
    line = "".join(c if c.isprintable() else "?" for c in str(text)[:121])
    return line if len(line) <= 120 else line[:119] + "…"
