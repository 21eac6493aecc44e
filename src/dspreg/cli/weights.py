"""`dspreg weights`: download pretrained weights, convert a checkpoint, list what is there."""

from __future__ import annotations

from typing import Any

from dspreg.cli.parser import Commands, add_command
from dspreg.errors import ConfigError
from dspreg.io.text import align_columns, escape_terminal

SHOWN = 60  # tags of timm that are listed; there are well over a thousand

EXAMPLES = """examples:
  dspreg weights get resnet50.tv_in1k            into the hub's cache; later trainings need no network
  dspreg weights list                            what is in the cache, with SHA-256
  dspreg weights list 'resnet50*'                tags that timm knows
  dspreg weights convert model.pth --network tf_efficientnet_lite0
                                                 to model.safetensors, for --weights

a checkpoint of PyTorch (.pth, .pt, .bin) can run code when it is opened. convert reads tensors only, in a process of
its own, and refuses everything else; train and measure open safetensors alone."""


def add(commands: Commands) -> None:
    parser = add_command(commands, "weights", "get, convert or list pretrained weights", EXAMPLES)
    actions = parser.add_subparsers(required=True, metavar="get|convert|list", dest="action")
    getting = add_command(actions, "get", "download the weights of a timm network", EXAMPLES)
    getting.add_argument("name", metavar="NAME", help="a timm network with its tag, such as resnet50.tv_in1k")
    getting.set_defaults(run=get)
    converting = add_command(actions, "convert", "write the tensors of a checkpoint as safetensors", EXAMPLES)
    converting.add_argument("file", metavar="FILE", help="a checkpoint of PyTorch, or safetensors")
    says = "timm network that they are for: tensors get its names, and shapes are compared (default: names are kept)"
    converting.add_argument("--network", metavar="NAME", help=says)
    converting.add_argument("--out", metavar="FILE", help="the new file (default: FILE with .safetensors)")
    converting.set_defaults(run=convert)
    listing = add_command(actions, "list", "list the weights in the cache, or the tags that timm knows", EXAMPLES)
    listing.add_argument("pattern", metavar="PATTERN", nargs="?", help="of names in timm, such as 'resnet50*'")
    listing.set_defaults(run=show)


def get(given: Any) -> int:
    from dspreg.networks.stored_weights import get_weights

    found = get_weights(given.name)
    print(escape_terminal(f"{found.name}: {found.size / 1e6:,.1f} MB in {found.path}"))
    print(f"SHA-256 {found.sha256}")
    return 0


def convert(given: Any) -> int:
    from dspreg.networks.convert import convert_weights

    found = convert_weights(given.file, given.network, given.out)
    width = max(len(escape_terminal(old)) for old, _ in found.names)
    for old, new in found.names:
        print(f"{escape_terminal(old):<{width}}  →  {escape_terminal(new)}")
    print(escape_terminal(f"{len(found.names):,} tensors {found.how}, in {found.path}"))
    print(f"SHA-256 {found.sha256}")
    return 0


def show(given: Any) -> int:
    from dspreg.networks.stored_weights import list_stored, list_tags

    if given.pattern:
        tags = list(list_tags(given.pattern))
        if not tags:
            raise ConfigError(f"timm has no weights for {given.pattern!r}. Try a pattern: '*{given.pattern}*'")
        rows = [["name", "on the hub", ""], *([n, repo or "not on the hub", "here" * here] for n, repo, here in tags)]
        print("\n".join(line.rstrip() for line in align_columns(rows[: SHOWN + 1], left=3)))
        if len(tags) > SHOWN:
            print(f"and {len(tags) - SHOWN:,} more; narrow the pattern")
        return 0
    stored = list_stored()
    if not stored:
        print("no weights in the hub's cache; get some with dspreg weights get resnet50.tv_in1k")
        return 0
    table = [["name", "MB", "SHA-256"]]
    table += [[escape_terminal(each.name), f"{each.size / 1e6:,.1f}", each.sha256] for each in stored]
    print("\n".join(align_columns(table)))
    return 0
