"""The state of a module that was not written for our contract: optimisers and attributes that no state_dict has."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

NOT_STATE = {"training", "hparams"}
PLAIN = (bool, int, float, str)
# how a saved value is laid out
STATE_DICT, PARTS, ITEMS, VALUE, DRAWS = "state_dict", "parts", "items", "value", "draws"


def saved_attributes_of(module: nn.Module) -> dict[str, Any]:
    """What its modules hold beside parameters and buffers, as nested dictionaries, lists, numbers, text and tensors.

    Optimisers and what schedules them, generators of random numbers, tensors, arrays, numbers, containers of those,
    modules in plain lists, and objects of plain classes, such as a moving average. What is of no such kind, such as a
    function, is taken to be the same in a new instance.
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
    if isinstance(value, np.ndarray):
        return {VALUE: torch.from_numpy(value.copy())} if value.dtype.kind in "biuf" else None
    if isinstance(value, torch.optim.Optimizer | nn.Module):
        return {STATE_DICT: value.state_dict()}
    if isinstance(value, GENERATORS):
        return {DRAWS: _plain(_state_of(value))}
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):  # a scheduler, or the scale of losses
        state = value.state_dict()
        return {STATE_DICT: {name: each for name, each in state.items() if _save(each, module) is not None}}
    if isinstance(value, dict):
        found = {key: _save(each, module) for key, each in value.items()}
        return {ITEMS: found} if all(type(key) in PLAIN for key in found) and None not in found.values() else None
    if isinstance(value, set | frozenset):
        value = sorted(value, key=repr)  # of strings the order is another in every process
    if isinstance(value, list | tuple | deque):
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
        if not isinstance(now, dict):
            return restored
        now.clear()  # and filled again: a defaultdict knows how it makes what is missing
        now.update(restored)
        return now
    if ITEMS in saved:
        same = isinstance(now, list | tuple) and len(now) == len(saved[ITEMS])
        items = [_restore(now[i] if same else None, each, module) for i, each in enumerate(saved[ITEMS])]
        if isinstance(now, deque):
            return deque(items, now.maxlen)
        if isinstance(now, set | frozenset):
            return type(now)(items)
        return tuple(items) if isinstance(now, tuple) else items
    if DRAWS in saved:
        _set_state(now, saved[DRAWS])
        return now
    value = saved[VALUE]
    if not isinstance(value, Tensor):
        return value
    if isinstance(now, np.ndarray):
        return value.cpu().numpy().copy()
    where = now.device if isinstance(now, Tensor) else next(module.parameters()).device
    return value.to(where, copy=True)


def _is_plain_object(value: Any) -> bool:
    """Of a class of the module's own package: it holds numbers, and torch and numpy do not know it."""
    package = type(value).__module__.partition(".")[0]
    return hasattr(value, "__dict__") and not callable(value) and package not in ("builtins", "torch", "numpy")


GENERATORS = (torch.Generator, np.random.RandomState, np.random.Generator, random.Random)


def _state_of(generator: Any) -> Any:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state() if hasattr(generator, "get_state") else generator.getstate()


def _set_state(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, torch.Generator):
        generator.set_state(state.cpu())
    elif isinstance(generator, np.random.RandomState):
        generator.set_state(state)
    else:
        generator.setstate(state)


def _plain(state: Any) -> Any:
    """Numbers of numpy's as Python's; those of 64 bits have no sign, and tensors have one."""
    if isinstance(state, dict):
        return {name: _plain(each) for name, each in state.items()}
    if isinstance(state, tuple):
        return tuple(map(_plain, state))
    return state.tolist() if isinstance(state, np.ndarray | np.generic) else state
