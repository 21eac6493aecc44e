"""Runs DomainBed's own `domainbed.scripts.train` for `bench/against_domainbed.py`; what stands after `--` is for it.

    python bench/peer/launch_domainbed.py CHECKOUT --steps 14 --evaluations 2 [--weights FILE] -- --dataset PACS …

The program, its loaders with eight processes each, its evaluations and its files are as they are. Around it:

- `wilds` need not be installed (`stand_ins.py`).
- `pretrained=True` loads the file of weights that both sides start from, instead of downloading one.
- `--network` puts a network of ours in the place of DomainBed's, where both sides are to train the same small one.
- Loaders end after the batches that the run asks them for. They would read 16 batches ahead, endlessly, which a run of
  5,001 steps does not notice, but which would be most of what a short one reads: the peer must not pay for its length.

`--start-up` ends where the first batch is asked for: libraries, data set, network, and all processes of the loaders.
"""

from __future__ import annotations

import argparse
import runpy
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from stand_ins import make_importable


def load_weights(make: Any, weights: Path | None, *_: Any, pretrained: bool = False, **others: Any) -> Any:
    """Instead of a function of torchvision that makes a network."""
    network = make(**others)
    if pretrained and weights is not None:
        from safetensors.torch import load_file

        network.load_state_dict(load_file(weights))
    return network


def put_network(name: str) -> None:
    """Let DomainBed train a network of ours."""
    from small_networks import make_featurizer

    from domainbed import networks

    def make(shape: Any, _hparams: Any) -> Any:
        made = make_featurizer(name, shape[0])
        made.n_outputs = made.width
        return made

    networks.Featurizer = make


def limit_loaders(steps: int, evaluations: int) -> None:
    """Loaders of training end after `steps` batches, those of evaluation after so many passes."""
    from domainbed.lib import fast_data_loader

    def batches(self: Any) -> Iterator[Any]:
        training = self.sampler.sampler.replacement
        left = steps if training else evaluations * len(self.sampler)
        while left > 0:
            if not len(self.sampler):
                raise ValueError("a domain has fewer training images than a batch, for which DomainBed waits forever")
            for batch in self.sampler:
                yield batch
                left -= 1
                if left == 0:
                    return

    fast_data_loader._InfiniteSampler.__iter__ = batches


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--evaluations", type=int, required=True)
    parser.add_argument("--weights", type=Path)
    parser.add_argument("--network")
    parser.add_argument("--start-up", action="store_true")
    split = sys.argv.index("--")
    given, arguments = parser.parse_args(sys.argv[1:split]), sys.argv[split + 1 :]
    make_importable(given.checkout)
    import torchvision.models

    for name in ("resnet18", "resnet50"):
        setattr(torchvision.models, name, partial(load_weights, getattr(torchvision.models, name), given.weights))
    if given.network:
        put_network(given.network)
    limit_loaders(0 if given.start_up else given.steps, 0 if given.start_up else given.evaluations)
    sys.argv = ["train", "--steps", str(given.steps), *arguments]
    try:
        runpy.run_module("domainbed.scripts.train", run_name="__main__")
    except RuntimeError as error:
        if not (given.start_up and isinstance(error.__cause__, StopIteration)):  # the first batch, of none
            raise


if __name__ == "__main__":
    main()
