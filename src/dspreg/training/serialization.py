"""Nested state ⇄ one safetensors file: tensors beside a JSON description, no pickle."""

from __future__ import annotations

import json
import math
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dspreg.errors import IntegrityError

# One entry of metadata, because safetensors writes several in an order that changes from process to process.
ENTRY = "dspreg"
# How JSON represents types that it lacks.
TENSOR, TUPLE, ITEMS, INFINITE = "$tensor", "$tuple", "$items", "$infinite"


def pack(state: Any, **about: str) -> bytes:
    """Dicts, lists, tuples, numbers, text, None and tensors as the bytes of one file; equal states give equal bytes."""
    tensors: dict[str, Tensor] = {}
    described = {"about": about, "state": _described(state, tensors)}
    # keys keep their order: it is the order of sums over parameters, and another order rounds differently
    return save(tensors, {ENTRY: json.dumps(described, allow_nan=False, ensure_ascii=False)})


def unpack(data: bytes, where: str) -> tuple[Any, dict[str, str]]:
    """The state and its description, as given to `pack`."""
    try:
        tensors = load(data)
        size = int.from_bytes(data[:8], "little")
        described = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][ENTRY])
        return _restored(described["state"], tensors), described["about"]
    except (SafetensorError, KeyError, ValueError, TypeError, RecursionError) as error:
        raise IntegrityError(f"{where} is damaged or not written by dspreg: {error}") from error


def _described(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Tensor):
        # a copy, because safetensors refuses tensors that share memory, as tied parameters do
        name = str(len(tensors))
        tensors[name] = value.detach().to("cpu", copy=True).contiguous()
        return {TENSOR: name}
    if isinstance(value, dict):
        if all(isinstance(key, str) and not key.startswith("$") for key in value):
            return {key: _described(each, tensors) for key, each in value.items()}
        return {ITEMS: [[_described(key, tensors), _described(each, tensors)] for key, each in value.items()]}
    if isinstance(value, tuple):
        return {TUPLE: [_described(each, tensors) for each in value]}
    if isinstance(value, list):
        return [_described(each, tensors) for each in value]
    if isinstance(value, float) and math.isinf(value):  # the best loss so far, before there is one
        return {INFINITE: "+" if value > 0 else "-"}
    if value is None or isinstance(value, str | bool | int | float):
        return value
    raise TypeError(f"can't save a {type(value).__name__}; keep tensors, numbers, text and containers of them as state")


def _restored(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, dict):
        if TENSOR in value:
            return tensors[value[TENSOR]]
        if TUPLE in value:
            return tuple(_restored(each, tensors) for each in value[TUPLE])
        if INFINITE in value:
            return float(f"{value[INFINITE]}inf")
        if ITEMS in value:
            return {_restored(key, tensors): _restored(each, tensors) for key, each in value[ITEMS]}
        return {key: _restored(each, tensors) for key, each in value.items()}
    if isinstance(value, list):
        return [_restored(each, tensors) for each in value]
    return value


def same(a: Any, b: Any) -> bool:
    """Whether two states are bitwise identical."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return a.dtype == b.dtype and a.shape == b.shape and torch.equal(_bits(a), _bits(b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


def _bits(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
