"""The state of a module that was not written for our contract: optimisers and attributes that no state_dict has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

NOT_STATE = {"training", "hparams"}
PLAIN = (bool, int, float, str)
STATE_DICT, PARTS, ITEMS, VALUE = "state_dict", "parts", "items", "value"  # how a saved value is laid out


def saved_attributes_of(module: nn.Module) -> dict[str, Any]:
    """What its modules hold beside parameters and buffers, as nested dictionaries, lists, numbers, text and tensors.

    Optimisers, tensors, numbers, containers of those, modules in plain lists, and objects of plain classes, such as a
    moving average. What is of no such kind, such as a function, is taken to be the same in a new instance.
    """
    found: dict[str, Any] = {}
    for path, name, value in _attributes(module):
        saved = _save(value, module)
        if saved is not None:
            found[f"{path}:{name}"] = saved
    return found


def restore_attributes(module: nn.Module, saved: dict[str, Any]) -> None:
    """Inverse of `saved_attributes_of`, for a new instance of the same class."""
    modules = dict(module.named_modules())
    for place, value in saved.items():
        path, _, name = place.rpartition(":")
        holder = modules[path]
        setattr(holder, name, _restore(vars(holder).get(name), value, module))


def _attributes(module: nn.Module) -> Iterator[tuple[str, str, Any]]:
    for path, each in module.named_modules():
        for name, value in vars(each).items():
            if not name.startswith("_") and name not in NOT_STATE:
                yield path, name, value


def _save(value: Any, module: nn.Module) -> dict[str, Any] | None:
    """A tagged dictionary; None for what is no state."""
    if value is None or type(value) in PLAIN:
        return {VALUE: value}
    if isinstance(value, np.generic):
        return {VALUE: value.item()}
    if isinstance(value, Tensor):
        return {VALUE: value.detach().clone()}
    if isinstance(value, torch.optim.Optimizer | nn.Module):
        return {STATE_DICT: value.state_dict()}
    if isinstance(value, dict):
        found = {key: _save(each, module) for key, each in value.items()}
        return {ITEMS: found} if all(type(key) in PLAIN for key in found) and None not in found.values() else None
    if isinstance(value, list | tuple):
        each = [_save(one, module) for one in value]
        return {ITEMS: each} if None not in each else None
    if _is_plain_object(value):
        found = {name: _save(each, module) for name, each in vars(value).items()}
        return {PARTS: {name: each for name, each in found.items() if each is not None}}
    return None


def _restore(now: Any, saved: dict[str, Any], module: nn.Module) -> Any:
    """The value to set; what is there already is changed in place where it has a state of its own."""
    if STATE_DICT in saved:
        now.load_state_dict(saved[STATE_DICT])
        return now
    if PARTS in saved:
        for name, each in saved[PARTS].items():
            setattr(now, name, _restore(vars(now).get(name), each, module))
        return now
    if ITEMS in saved and isinstance(saved[ITEMS], dict):
        before = now if isinstance(now, dict) else {}
        restored = {key: _restore(before.get(key), each, module) for key, each in saved[ITEMS].items()}
        return type(now)(restored) if isinstance(now, dict) else restored
    if ITEMS in saved:
        same = isinstance(now, list | tuple) and len(now) == len(saved[ITEMS])
        items = [_restore(now[i] if same else None, each, module) for i, each in enumerate(saved[ITEMS])]
        return tuple(items) if isinstance(now, tuple) else items
    value = saved[VALUE]
    if not isinstance(value, Tensor):
        return value
    where = now.device if isinstance(now, Tensor) else next(module.parameters()).device
    return value.to(where, copy=True)


def _is_plain_object(value: Any) -> bool:
    """Of a class of the module's own package: it holds numbers, and torch and numpy do not know it."""
    package = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and not callable(value) and package not in ("builtins", "torch", "numpy")
