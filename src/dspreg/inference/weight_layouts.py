"""Weights under names that other people's code knows: timm's, or those of a plain `nn.Sequential`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from torch import Tensor, nn

from dspreg.errors import ConfigError
from dspreg.networks.backbones import SmallCNN
from dspreg.networks.network import Network
from dspreg.networks.pretrained import TimmFeaturizer
from dspreg.networks.timm_models import create_with_head
from dspreg.randomness import untouched

READ = "from safetensors.torch import load_file\n"
LOAD = 'model.load_state_dict(load_file("FILE"))\nmodel.eval()\n'


@dataclass(frozen=True)
class Layout:
    """One way to name the tensors of a network.

    Attributes:
        tensors: By those names.
        fresh: Makes a network that they can be loaded into, with other weights in it.
        code: The same for people: Python that needs no dspreg and leaves `model`. FILE stands for the file.
    """

    tensors: dict[str, Tensor]
    fresh: Callable[[], nn.Module]
    code: str


def layouts(net: Network, name: str, image_size: int, channels: int = 3) -> Iterator[Layout]:
    """Ways to name the tensors of `net`, the most convenient first.

    Args:
        net: A backbone and a linear classifier.
        name: Of the backbone.
        image_size: It was made for.
        channels: Of its images.
    """
    features, head = net.featurizer, net.classifier
    if isinstance(features, TimmFeaturizer) and features.features != "default":
        raise ConfigError(
            f"{name} was trained with features={features.features}, which timm's network alone does not return; use "
            "--format torch.export or onnx"
        )
    if isinstance(features, SmallCNN) and isinstance(head, nn.Linear):
        yield _sequential(features, head, channels)
    elif isinstance(features, TimmFeaturizer) and isinstance(head, nn.Linear):
        yield from _whole(features.model, head, name, image_size, channels)
        yield _apart(features.model, head, name, image_size, channels)
    else:
        kinds = f"{type(features).__name__} and {type(head).__name__}"
        raise ConfigError(
            f"the network is made of {kinds}, which others can't make without dspreg; use --format torch.export or onnx"
        )


def _sequential(features: SmallCNN, head: nn.Linear, channels: int) -> Layout:
    """small-cnn: its layers and the classifier, one after the other."""

    def fresh() -> nn.Sequential:
        with untouched():
            return nn.Sequential(*SmallCNN(channels).layers, nn.Linear(head.in_features, head.out_features))

    # torch prints modules as they are called; `bias` is said by new versions and not known to old ones
    lines = "".join(f"    nn.{module!r},\n".replace(", bias=True", "") for module in fresh())
    code = f"from torch import nn\n{READ}\nmodel = nn.Sequential(\n{lines})\n"
    return Layout(_tensors(nn.Sequential(*features.layers, head)), fresh, code + LOAD)


def _whole(backbone: nn.Module, head: nn.Linear, name: str, image_size: int, channels: int) -> Iterator[Layout]:
    """A network of timm with its own head, where that is one linear layer and nothing else."""

    def fresh() -> nn.Module:
        with untouched():
            return create_with_head(name, image_size, head.out_features, channels)[0]

    with untouched():
        model, call = create_with_head(name, image_size, head.out_features, channels)
    theirs, ours = model.state_dict(), _tensors(backbone)
    missing = sorted(theirs.keys() - ours.keys())
    place = missing[0].rpartition(".")[0] if missing else ""
    if ours.keys() - theirs.keys() or missing != [f"{place}.bias", f"{place}.weight"]:
        return
    tensors = ours | _tensors(head, f"{place}.")
    if any(tensors[key].shape != theirs[key].shape for key in theirs):
        return
    yield Layout(tensors, fresh, f"import timm\n{READ}\nmodel = {call}\n" + LOAD)


def _apart(backbone: nn.Module, head: nn.Linear, name: str, image_size: int, channels: int) -> Layout:
    """A network of timm without its head, and a linear layer behind it: `0.…` and `1.…`."""

    def fresh() -> nn.Module:
        with untouched():
            return nn.Sequential(
                create_with_head(name, image_size, 0, channels)[0], nn.Linear(head.in_features, head.out_features)
            )

    with untouched():
        _, call = create_with_head(name, image_size, 0, channels)
    linear = f"nn.Linear({head.in_features}, {head.out_features})"
    code = f"import timm\nfrom torch import nn\n{READ}\nmodel = nn.Sequential({call}, {linear})\n"
    return Layout(_tensors(nn.Sequential(backbone, head)), fresh, code + LOAD)


def _tensors(module: nn.Module, start: str = "") -> dict[str, Tensor]:
    # copies: safetensors refuses tensors that share memory
    return {start + name: t.detach().cpu().clone().contiguous() for name, t in module.state_dict().items()}
