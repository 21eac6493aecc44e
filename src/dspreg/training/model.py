"""A trained stack as a file, and back."""

from __future__ import annotations

from torch import Tensor, nn

from dspreg.algorithms.base import Algorithm
from dspreg.errors import IntegrityError


def tensors_of(algorithm: Algorithm) -> dict[str, Tensor]:
    """What prediction needs, on the CPU: the network by its own names, and what layers hold besides as `stack.…`."""
    net = dict(algorithm.net.state_dict())
    inside = {id(t) for t in algorithm.net.state_dict(keep_vars=True).values()}
    others = {
        f"stack.{name}": t
        for name, t in algorithm.state_dict(keep_vars=True).items()
        if isinstance(t, Tensor) and id(t) not in inside
    }
    return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in (net | others).items()}


def load_tensors(algorithm: Algorithm, tensors: dict[str, Tensor], where: str) -> None:
    """Put back what `tensors_of` took, exactly: names, shapes, dtypes."""
    own = tensors_of(algorithm)
    for name in sorted({*own, *tensors}):
        ours, theirs = (str((tuple(d[name].shape), d[name].dtype)) if name in d else None for d in (own, tensors))
        if ours != theirs:
            raise IntegrityError(f"{where}: the tensor {name} is {theirs or 'missing'}; the model has {ours or 'none'}")
    algorithm.net.load_state_dict({n: t for n, t in tensors.items() if not n.startswith("stack.")})
    rest = {n.removeprefix("stack."): t for n, t in tensors.items() if n.startswith("stack.")}
    algorithm.load_state_dict(rest, strict=False)


class Model(nn.Module):
    """Images (B, 3, H, W), transformed, to logits (B, C): what a trained stack predicts."""

    def __init__(self, algorithm: Algorithm, classes: tuple[str, ...]):
        super().__init__()
        self.algorithm = algorithm
        self.classes = classes

    def forward(self, x: Tensor) -> Tensor:
        return self.algorithm.predict(x)
