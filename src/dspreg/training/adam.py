"""torch's Adam without torch's compiler, which takes a second and 150 MB to import."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

HIDDEN = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")  # from the compiler, which they import


class Adam(torch.optim.Adam):
    """To the bit torch's own.

    torch wraps some methods of its optimisers so that its compiler leaves them alone, and the wrappers import it. Here
    they are as they are written: nothing that dspreg compiles contains a step.
    """

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.no_grad():
            return STEP(self, closure)


STEP = inspect.unwrap(torch.optim.Adam.step)
for _name in HIDDEN:
    setattr(Adam, _name, inspect.unwrap(getattr(Optimizer, _name)))
