"""`dspreg export`: a trained run for other programs."""

from __future__ import annotations

from typing import Any

from dspreg.cli.options import trust, which
from dspreg.cli.parser import Commands, add_command
from dspreg.io.text import escape_terminal
from dspreg.runs.model_file import require_model

EXAMPLES = """examples:
  dspreg export runs/print --format safetensors             weights for timm's own network
  dspreg export runs/print --format torch.export            a program that needs torch alone
  dspreg export runs/print --format onnx --normalise        takes images of values 0 … 1

the file is read back and its logits are compared with the run's before it appears."""


def add(commands: Commands) -> None:
    parser = add_command(commands, "export", "write a trained run as a file for other programs", EXAMPLES)
    parser.add_argument("run_folder", metavar="RUN", help="the folder that dspreg train left")
    parser.add_argument("--format", choices=("safetensors", "torch.export", "onnx"), required=True, help="of the file")
    says = "default: RUN/exported/WHICH.safetensors, .pt2 or .onnx; WHICH-normalising with --normalise"
    parser.add_argument("--out", metavar="FILE", help=says)
    says = "normalise inside: images of values 0 … 1 go in (not for safetensors)"
    parser.add_argument("--normalise", action="store_true", help=says)
    which(parser)
    trust(parser)
    parser.set_defaults(run=run)


def run(given: Any) -> int:
    require_model(given.run_folder, given.which)  # before torch is loaded, which takes seconds

    from dspreg.inference.export import SIZES, export

    made = export(
        given.run_folder, given.format, given.out, which=given.which, normalise=given.normalise, trust=given.trust
    )
    sizes = ", ".join(map(str, SIZES))
    print(f"{escape_terminal(str(made.path))}, {made.path.stat().st_size:,} bytes")
    print(f"read back: the logits of batches of {sizes} images differ by {made.difference:.1e} of the largest, at most")
    print(f"\n{made.code.replace('FILE', made.path.name).rstrip()}")
    return 0
