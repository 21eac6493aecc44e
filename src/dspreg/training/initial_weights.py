"""Start from the weights of a finished run: `--init RUN`."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from dspreg.config.train_config import NOTHING, TrainConfig
from dspreg.data.transforms import Unchanged
from dspreg.errors import ConfigError, Notice
from dspreg.io.atomic_files import sha256_of_file
from dspreg.kinds import CLASSES
from dspreg.networks.network import Featurizer, Network
from dspreg.networks.pretrained import Backbone
from dspreg.protocol.description import RunDescription
from dspreg.runs.folder import RunFolder
from dspreg.runs.model_file import model_file
from dspreg.specs import parse_stack
from dspreg.training.model import tensors_of
from dspreg.training.stored_model import load_model_file, read_model_file
from dspreg.training.trained_part import merge_adapters

PARTS = ("featurizer.", "classifier.")


@dataclass(frozen=True)
class InitialWeights:
    """What a run starts from.

    Attributes:
        path: The folder of the run, as it was given.
        sha256: Of the model's file, by which records know it.
        tensors: Of featurizer and classifier, with averaged weights where those predict.
        classes: What the classifier's outputs mean.
        trained_on: Fingerprint → name of every domain that it was trained on.
    """

    path: str
    sha256: str
    tensors: Mapping[str, Tensor]
    classes: tuple[str, ...]
    trained_on: Mapping[str, str]

    def require_unseen(self, targets: Mapping[str, str]) -> None:
        """Refuse weights that have seen a domain which is held out here: its accuracy would say nothing.

        Args:
            targets: Domain → fingerprint.

        Raises:
            ConfigError: Names the domain.
        """
        for name, fingerprint in targets.items():
            if fingerprint in self.trained_on:
                raise ConfigError(
                    f"--init {self.path} was trained on {self.trained_on[fingerprint]!r}, whose images are those of "
                    f"{name!r}, which is held out here. Start from a run that held it out, too"
                )

    def load_into(self, net: Network, classes: Sequence[str]) -> None:
        """Copy them into a new network: the features, and the classifier if its classes are these.

        Raises:
            ConfigError: It is another network.
        """
        same_classes = self.classes == tuple(classes)
        own = {n: t for n, t in net.state_dict().items() if n.startswith(PARTS if same_classes else PARTS[0])}
        theirs = {n: t for n, t in self.tensors.items() if n.startswith(PARTS if same_classes else PARTS[0])}
        for name in sorted({*own, *theirs}):
            ours, given = (tuple(d[name].shape) if name in d else None for d in (own, theirs))
            if ours != given:
                raise ConfigError(
                    f"--init {self.path}: its tensor {name} is {given or 'missing'}, and this network has {ours}: "
                    "it is "
                    "another network. Give the same --model and --image-size"
                )
        if not same_classes:
            text = f"--init {self.path} knows other classes: the classifier starts anew, the features as they are there"
            warnings.warn(text, Notice, stacklevel=2)
        net.load_state_dict({**net.state_dict(), **theirs})

    def load_features_into(self, featurizer: Featurizer) -> None:
        """The same for a featurizer alone."""
        head = PARTS[0]
        featurizer.load_state_dict({n.removeprefix(head): t for n, t in self.tensors.items() if n.startswith(head)})


def read_initial_weights(config: TrainConfig, backbone: Backbone) -> InitialWeights | None:
    """The selected model of the run that `init` names, verified; None without one.

    Raises:
        ConfigError: There is no such finished run, or it is of another network.
    """
    if config.init == NOTHING:
        return None
    path = Path(config.init)
    file = model_file(path)
    typed = tuple(term.name.partition(".")[0] for term in parse_stack(config.algorithm) if "." in term.name)
    model, transform = load_model_file(file, "cpu", trust=typed)
    how, _ = read_model_file(file)
    for name, ours, theirs in (
        ("model", config.model, how["model"]),
        ("image_size", config.image_size, how["image_size"]),
        ("features", config.features, how.get("features", "default")),
    ):
        if ours != theirs:
            flag = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"--init {path} was trained with {flag} {theirs}, and this is {ours}: add {flag} {theirs}"
            )
    if isinstance(transform, Unchanged) or model.kind != CLASSES:
        raise ConfigError(f"--init {path} is no classifier of images; take a run that is")
    if [*transform.mean, *transform.std] != [*backbone.mean, *backbone.std]:
        raise ConfigError(f"--init {path} normalises images by another mean and std than this network; use --weights")
    merge_adapters(model)
    tensors = {n: t for n, t in tensors_of(model.algorithm).items() if n.startswith(PARTS)}
    about = RunDescription.from_json(RunFolder(path).description())
    trained_on = {about.fingerprints[name]: name for name in about.sources}
    return InitialWeights(str(config.init), sha256_of_file(file), tensors, model.classes, trained_on)
