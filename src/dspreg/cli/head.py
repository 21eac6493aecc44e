"""`dspreg head`: a classifier made of texts, for a training to start from."""

from __future__ import annotations

from typing import Any

from dspreg.cli.options import columns, dataset_with_columns
from dspreg.cli.parser import Commands, add_command
from dspreg.errors import ConfigError
from dspreg.io.text import escape_terminal, plural

EXAMPLES = """examples:
  dspreg head make --model ViT-B-16 --pretrained openai --dataset PACS --out pacs.safetensors
  dspreg head make --model ViT-B-16 --pretrained openai --classes dog elephant --template "a photo of a {}" \\
      --template "a drawing of a {}" --out head.safetensors
  dspreg train --model vit_base_patch16_clip_quickgelu_224.openai --head pacs.safetensors --dataset PACS --target sketch

the image tower is timm's network of the same weights; see docs/use/backbones.md. Needs open_clip: pip install
'dspreg[clip]'."""


def add(commands: Commands) -> None:
    parser = add_command(commands, "head", "make a text head, the zero-shot classifier of a CLIP network", EXAMPLES)
    actions = parser.add_subparsers(required=True, metavar="make", dest="action")
    making = add_command(actions, "make", "embed texts about classes, and write them as a classifier", EXAMPLES)
    says = "a network of open_clip, such as ViT-B-16, or a folder with its configuration and weights"
    making.add_argument("--model", metavar="NAME", required=True, help=says)
    making.add_argument("--pretrained", metavar="TAG", help="of open_clip, such as openai, or a safetensors file")
    whose = making.add_mutually_exclusive_group(required=True)
    whose.add_argument("--classes", metavar="NAME", nargs="+", help="by the names that the data set has for them")
    whose.add_argument("--dataset", metavar="NAME", help="a data set, as in dspreg train, whose classes are meant")
    making.add_argument("--root", metavar="DIR", help="folder that holds the data sets (default: data)")
    says = "text with {} in the place of the class; of several the mean is taken (default: 'a photo of a {}')"
    making.add_argument("--template", metavar="TEXT", action="append", default=[], help=says)
    making.add_argument("--out", metavar="FILE", required=True, help="the new file, of safetensors")
    columns(making)
    making.set_defaults(run=make)


def make(given: Any) -> int:
    if not given.out.endswith(".safetensors"):
        raise ConfigError(f"--out {given.out!r}; a head is a file that ends in .safetensors")
    classes = tuple(given.classes or ())
    if given.dataset:
        from dspreg.data.registry import open_dataset

        classes = open_dataset(dataset_with_columns(given.dataset, given), given.root, None).classes
    from dspreg.networks.clip_texts import TEMPLATE, make_text_head

    head = make_text_head(given.model, classes, given.template or [TEMPLATE], given.pretrained)
    sha256 = head.save(given.out)
    size = head.weight.shape[1]
    print(
        escape_terminal(
            f"{plural(len(classes), 'class', 'classes')} × {size} numbers, scale {head.logit_scale:.4g}, in {given.out}"
        )
    )
    print(f"SHA-256 {sha256}")
    return 0
