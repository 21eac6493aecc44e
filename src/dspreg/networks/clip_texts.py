"""Text heads by open_clip: what a CLIP network makes of texts about classes."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dspreg.errors import ConfigError, IntegrityError
from dspreg.io.atomic_files import sha256_of_file
from dspreg.io.text import did_you_mean, shorten
from dspreg.networks.hub import download_weights
from dspreg.networks.text_head import TextHead
from dspreg.randomness import untouched

CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
TEMPLATE = "a photo of a {}"


def make_text_head(
    model: str, classes: Sequence[str], templates: Sequence[str] = (TEMPLATE,), pretrained: str | None = None
) -> TextHead:
    """The texts of every class, embedded as CLIP does for a zero-shot classifier.

        w_c = n(mean_t n(f(t.format(c)))),  n(v) = v/‖v‖, f the text tower

    Args:
        model: A network of open_clip such as `"ViT-B-16"`, or a folder with its configuration and weights,
            `open_clip_config.json` and `open_clip_model.safetensors`.
        classes: By the names that the data set has for them; in texts an underscore is a space.
        templates: Texts with `{}` in the place of the class.
        pretrained: A tag of open_clip, such as `"openai"`, or a safetensors file. Of a folder the weights are its own.

    Raises:
        ConfigError: No such network, tag or file, or a template without a place for the class.
        ResourceError: The hub cannot be reached.
    """
    names, texts = tuple(classes), tuple(templates)
    if not names or len(set(names)) < len(names):
        raise ConfigError(f"classes {', '.join(names) or 'none'}; wanted at least one, each once")
    for text in texts:
        if text.count("{}") != 1 or text.replace("{}", "").count("{") + text.replace("{}", "").count("}"):
            raise ConfigError(
                f"template {shorten(text)}; wanted one {{}} in the place of the class, as in {TEMPLATE!r}"
            )
    if not texts:
        raise ConfigError(f"no template; wanted texts such as {TEMPLATE!r}")
    net, tokenizer, file = _load(model, pretrained)
    if getattr(net, "logit_bias", None) is not None:
        raise ConfigError(f"{model} compares by a sigmoid with a bias and not by CLIP's softmax; use a CLIP network")
    rows = []
    with torch.no_grad():
        for name in names:
            embedded = net.encode_text(tokenizer([t.replace("{}", name.replace("_", " ")) for t in texts]))
            rows.append(_unit(_unit(embedded.float()).mean(0)))
    about = {
        "model": model if pretrained is None or Path(pretrained).suffix else f"{model} {pretrained}",
        "templates": list(texts),
        "weights": sha256_of_file(file),
    }
    if Path(model).is_dir():
        about["model"] = Path(model).name
    return TextHead(names, torch.stack(rows).contiguous(), float(net.logit_scale.detach().exp()), about)


def _unit(v: Tensor) -> Tensor:
    return F.normalize(v, dim=-1)


def _load(model: str, pretrained: str | None) -> tuple[Any, Any, Path]:
    """The network in evaluation mode, its tokenizer and the file of its weights, which is always safetensors."""
    try:
        import open_clip
    except ImportError as missing:
        raise ConfigError("text heads need open_clip: pip install 'dspreg[clip]'") from missing
    folder = Path(model).expanduser()
    options: dict[str, Any] = {"load_weights": False, "pretrained_text": False}
    if folder.is_dir():
        if pretrained is not None:
            raise ConfigError(f"{model} is a folder with weights of its own; leave --pretrained out")
        name, file = f"local-dir:{folder}", folder / WEIGHTS
        for needed in (folder / CONFIG, file):
            if not needed.is_file():
                raise ConfigError(f"{folder} has no {needed.name}; wanted a folder that open_clip wrote")
    else:
        name = model
        if name not in open_clip.list_models():
            raise ConfigError(
                f"open_clip has no network {shorten(model)}.{did_you_mean(model, open_clip.list_models())} Known are "
                f"those of open_clip.list_models(); a folder with {CONFIG} and {WEIGHTS} will do, too"
            )
        file, quick = _weights_of(open_clip, name, pretrained)
        options["force_quick_gelu"] = quick
    try:
        with untouched(), _quiet():
            net = open_clip.create_model(name, **options).eval()
            open_clip.load_checkpoint(net, str(file), strict=True)
            return net, open_clip.get_tokenizer(name), file
    except (RuntimeError, ValueError, KeyError, OSError) as error:
        raise IntegrityError(f"open_clip can't make {model} of {file}: {shorten(error, 300)}") from error


def _weights_of(open_clip: Any, name: str, pretrained: str | None) -> tuple[Path, bool]:
    """The file of a tag or of the user's, and whether the network was trained with OpenAI's GELU."""
    tags = open_clip.list_pretrained_tags_by_model(name)
    if pretrained is None:
        raise ConfigError(f"which weights of {name}? Add --pretrained {'|'.join(tags[:4]) or 'FILE.safetensors'}")
    file = Path(pretrained).expanduser()
    if file.suffix:
        if not file.is_file() or file.suffix != ".safetensors":
            raise ConfigError(
                f"--pretrained {shorten(pretrained)}; wanted a safetensors file, or one of {', '.join(tags)}"
            )
        return file, False
    if pretrained not in tags:
        raise ConfigError(f"{name} has no weights {shorten(pretrained)}; its tags: {', '.join(tags) or 'none'}")
    about = open_clip.get_pretrained_cfg(name, pretrained)
    repo = str(about.get("hf_hub") or "").rstrip("/")
    if not repo:
        raise ConfigError(f"{name} {pretrained} is not on the hub as safetensors, and other formats are not opened")
    return download_weights(repo, f"{name} {pretrained}", WEIGHTS), bool(about.get("quick_gelu"))


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the warning that a network has no weights yet."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
