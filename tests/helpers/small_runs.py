"""Runs of two steps on a folder of tiny images, for tests of what is done with a trained run."""

import numpy as np
from PIL import Image

from dspreg.config.train_config import Execution
from dspreg.training import train

DOMAINS, CLASSES, EACH = ("dawn", "dusk", "noon"), ("cat", "dog", "owl"), 12
EXECUTION = Execution(threads=1, profile="never", workers=0, cache="none", check_images="never")


def photos(folder, domains=DOMAINS, classes=CLASSES, each=EACH, seed=0):
    """folder/domain/class/n.png, 16 pixels; colours differ by class and brightness by domain."""
    random = np.random.default_rng(seed)
    for d, domain in enumerate(domains):
        for c, name in enumerate(classes):
            place = folder / domain / name
            place.mkdir(parents=True)
            for n in range(each):
                pixels = random.integers(0, 120, (16, 16, 3)) + 40 * d
                pixels[..., c % 3] += 50
                Image.fromarray(pixels.astype(np.uint8)).save(place / f"{n}.png")
    return folder


def trained(folder, out, **settings):
    """A finished run; `noon` is its target."""
    given = {
        "dataset": f"folder:{folder}", "targets": ("noon",), "algorithm": "ERM", "model": "small-cnn",
        "weights": "none", "image_size": 28, "steps": 2, "batch_size": 4, "lr": 1e-3, "augment": False,
        "augment_validation": False,
    }  # fmt: skip
    train(given | settings, EXECUTION, out)
    return out


def bits(module):
    """Every tensor, flag and momentum of a module: what must be as before."""
    tensors = {name: (t.dtype, t.detach().numpy().tobytes()) for name, t in module.state_dict(keep_vars=True).items()
               if hasattr(t, "dtype")}  # fmt: skip
    modules = {n: (m.training, getattr(m, "momentum", None), len(m._forward_hooks)) for n, m in module.named_modules()}
    grads = {name: p.grad is None for name, p in module.named_parameters()}
    return tensors, modules, grads
