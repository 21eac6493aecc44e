"""Training the classifier before everything else, with a learning rate of its own."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from dspreg.algorithms.base import Algorithm, Direction, Log
from dspreg.algorithms.stack import regroup
from dspreg.batches import Batch
from dspreg.vectors import ParamVector, trainable


class ClassifierFirst:
    """For a layer that moves the classifier alone up to a step, and everything from then on.

    Args:
        layer: Whose `configure_optimizer` and `update` call this one's.
        last: The last step of the classifier alone; below 0 there is none.
        lr: Its learning rate until then.
    """

    def __init__(self, layer: Algorithm, last: int, lr: float):
        self.layer, self.last, self.lr = layer, last, lr

    def configure_optimizer(self) -> None:
        regroup(self.layer.stack.optimizer, [p for p in self.layer.net.classifier.parameters() if p.requires_grad])

    def update(self, direction: Direction, batches: Sequence[Batch]) -> Log:
        layer, t = self.layer, self.layer.t
        optimizer, net = layer.stack.optimizer, layer.net
        warming_up = t <= self.last
        head = {id(p) for p in net.classifier.parameters()}
        usual = {name: value for name, value in optimizer.param_groups[0].items() if name != "params"}
        for group in optimizer.param_groups[1:]:
            if any(id(p) in head for p in group["params"]):
                group.update(usual | ({"lr": self.lr} if warming_up else {}))
        if t == self.last + 1 and layer.stack.first_time(layer, "forget"):
            for p in net.classifier.parameters():
                optimizer.state.pop(p, None)
        if not warming_up:
            return layer.base.update(direction, batches)

        def of_classifier(batches: Sequence[Batch]) -> tuple[Tensor, ParamVector]:
            loss, g = direction(batches)
            names = {name for name, p in trainable(net).items() if id(p) in head}
            return loss, ParamVector((name, t) for name, t in g.items() if name in names)

        return layer.base.update(of_classifier, batches)
