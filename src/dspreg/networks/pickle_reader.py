"""A program: read a PyTorch checkpoint, tensors only, and write them as safetensors.

    python -m dspreg.networks.pickle_reader FILE OUT

A checkpoint is a pickle. `weights_only=True` builds nothing but tensors and plain containers out of it, and there is no
other way in; the process is one of its own, so that a file which upsets even that ends the process and nothing else. It
prints one line of JSON: the names of the tensors in their order, or an error.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor


def read_tensors(content: Any) -> dict[str, Tensor]:
    """The mapping with the most tensors: checkpoints have the weights beside the state of optimisers and counters.

    Raises:
        ValueError: There is none.
    """
    found = max(_mappings(content), key=len, default={})
    if not found:
        raise ValueError("there are no tensors by name in it")
    return found


def _mappings(content: Any, depth: int = 0) -> Iterator[dict[str, Tensor]]:
    if not isinstance(content, Mapping) or depth > 4:
        return
    yield {name: t for name, t in content.items() if isinstance(name, str) and isinstance(t, Tensor)}
    for inner in content.values():
        yield from _mappings(inner, depth + 1)


def describe(error: Exception) -> str:
    """In one line. torch's own advice is left out: it is to open the file without the protection."""
    if called := re.search(r"GLOBAL ([\w.]{1,100})", str(error)):
        return f"it would call {called[1]}"
    first = (str(error).splitlines() or [""])[0]
    return type(error).__name__ if "weights_only" in first else f"{type(error).__name__}: {first}"


def main(source: str, target: str) -> int:
    try:
        tensors = read_tensors(torch.load(source, map_location="cpu", weights_only=True))
        save_file({name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}, target)
    except Exception as error:  # whatever a damaged or hostile file makes torch raise
        print(json.dumps({"error": describe(error)}))
        return 1
    print(json.dumps({"names": list(tensors)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
