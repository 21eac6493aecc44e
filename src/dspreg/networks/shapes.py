"""Networks that have shapes and no numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# To find that a tensor without numbers keeps its shape when it is filled, torch would import its compiler.
FILL = {getattr(nn.init, name) for name in dir(nn.init) if name.endswith("_") and not name.startswith("_")}
FILL |= {Tensor.normal_, Tensor.uniform_, Tensor.erfinv_, Tensor.clamp_}


@contextmanager
def shapes_alone() -> Iterator[None]:
    """Within it, tensors are made on the device `meta`, where they take no memory, and are not initialised."""
    with torch.device("meta"), Unfilled():
        yield


class Unfilled(TorchFunctionMode):
    """Leaves tensors on `meta` as they are."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        named = kwargs or {}
        if func in FILL:
            filled = args[0] if args else named["tensor"]
            if filled.is_meta:
                return filled
        return func(*args, **named)
