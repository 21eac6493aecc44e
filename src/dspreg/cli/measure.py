"""`dspreg measure`: how domain-sensitive the parameters of a network are, how two profiles differ, and what c knows."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dspreg.cli.measure_text import comparison_text, held_out_text, profile_text
from dspreg.cli.options import (
    choose_device,
    dataset,
    dataset_with_columns,
    device_flag,
    integer,
    positive,
    trust,
    which,
)
from dspreg.cli.parser import Commands, add_command
from dspreg.config.measure_config import ESTIMATORS, OF, VARIANCES, MeasureConfig
from dspreg.errors import ConfigError
from dspreg.io.atomic_files import is_standard_output, make_folder, write_output
from dspreg.io.text import escape_terminal
from dspreg.runs.model_file import require_model

if TYPE_CHECKING:
    from dspreg.sensitivity import Comparison, Profile
    from dspreg.sensitivity.held_out import HeldOutComparison

T = TypeVar("T")

EXAMPLES = """examples:
  dspreg measure --model small-cnn --weights none --dataset digits --figures pictures
  dspreg measure --model resnet50.tv_in1k --dataset PACS --root data --out profile.safetensors --html page.html
  dspreg measure --model resnet18 --weights mine.safetensors --dataset folder:photos --images 256
  dspreg measure --model my_package.make_model --dataset folder:inbox --of fisher
  dspreg measure --model runs/site-4 --which last
  dspreg measure --model runs/site-4 --held-out site-4 --figures pictures
  dspreg measure --model resnet50.tv_in1k --dataset PACS --root data --held-out sketch --images 256
  dspreg measure --compare runs/site-4/profiles/start.safetensors runs/site-4/profiles/end.safetensors

folders are domain/class/image; with --of output or fisher, which need no labels, domain/image will do.
a run is measured on its training images, as in a refresh during training; any other network on all images.
null is c under random domain labels: what chance alone gives."""

USUAL = MeasureConfig()  # the defaults
CAPTIONS = {
    "layers.png": "c by layer: median and middle half, beside null",
    "histogram.png": "All parameters that some domain is sensitive to",
    "map.png": "One layer: {layer}",
}
HELD_OUT_CAPTION = "The change of sensitivities by tenths of c, and rank correlations with it"


def add(commands: Commands) -> None:
    parser = add_command(commands, "measure", "measure how domain-sensitive each parameter of a network is", EXAMPLES)
    parser.usage = (
        "dspreg measure --model NAME|RUN --dataset NAME [options], or dspreg measure --compare FILE FILE; "
        "all of them: dspreg measure --help"
    )
    group = parser.add_argument_group("what is measured")
    says = "a timm name, torchvision.NAME, small-cnn, a run's folder, or my_package.make_model that returns a module"
    group.add_argument("--model", metavar="NAME|RUN", help=says)
    says = "a safetensors file, none, or default: timm's pretrained weights (also: hub); your own model's as it comes"
    group.add_argument("--weights", metavar="FILE", help=says)
    which(group)
    trust(group)
    says = "measure nothing; compare two profiles of one network: which layers rose and which fell"
    group.add_argument("--compare", metavar=("BEFORE", "AFTER"), nargs=2, help=says)
    says = (
        "does c of the other domains say which parameters change on this one? Prints rank correlations, beside those "
    )
    says += "with held-out images of the other domains; see docs/use/measuring.md"
    group.add_argument("--held-out", metavar="DOMAIN", help=says)
    _add_images(parser.add_argument_group("on which images"))
    _add_estimation(parser.add_argument_group("how"))
    group = parser.add_argument_group("output")
    says = "write the profile, a safetensors file that dspreg.Profile.load reads; with --held-out, all numbers as JSON"
    group.add_argument("--out", metavar="FILE", help=says)
    says = "write layers.png, histogram.png and map.png; with --held-out held-out.png"
    group.add_argument("--figures", metavar="DIR", help=says)
    group.add_argument("--html", metavar="FILE", help="write one page with tables, pictures and what was measured")
    says = "the layer of map.png (default: that with the largest median c; with --compare, that which changed most)"
    group.add_argument("--layer", metavar="NAME", help=says)
    group.add_argument("--json", action="store_true", help="print the numbers as JSON instead of tables")
    parser.set_defaults(run=run, usual=parser.get_default)


def _add_images(group: Any) -> None:
    dataset(group)
    says = "only these domains, two or more (default: all; of a run its source domains)"
    group.add_argument("--domain", metavar="D", nargs="+", default=[], help=says)
    says = f"images per domain at most, sampled at random (default: {USUAL.images}; with fewer c is noisier)"
    group.add_argument("--images", metavar="N", type=integer("images"), default=USUAL.images, help=says)
    says = "height and width of images in pixels (default: by data set)"
    group.add_argument("--image-size", metavar="N", type=integer("image_size"), help=says)
    for what, says in (("mean", "subtracted from pixels of 0 to 1"), ("std", "by which they are then divided")):
        says += ", one number per channel (default: the network's own if known, else ImageNet's)"
        group.add_argument(f"--{what}", metavar=("R", "G", "B"), type=float, nargs=3, help=says)
    says = f"images per batch (default: {USUAL.batch})"
    group.add_argument("--batch", metavar="N", type=integer("batch_size"), default=USUAL.batch, help=says)
    says = "seed for sampling images, random signs or labels, and newly initialised layers (default: 0)"
    group.add_argument("--seed", metavar="N", type=integer("seed", 0), default=USUAL.seed, help=says)


def _add_estimation(group: Any) -> None:
    says = "what is differentiated: the loss, which needs labels, the outputs, or the loss of labels drawn from the "
    says += f"model's own predictions (default: {USUAL.of})"
    group.add_argument("--of", choices=OF, default=USUAL.of, help=says)
    says = f"how gradients are squared and averaged; see docs/use/measuring.md (default: {USUAL.estimator})"
    group.add_argument("--estimator", choices=ESTIMATORS, default=USUAL.estimator, help=says)
    group.add_argument(
        "--draws", metavar="N", type=integer("draws"), help="sign draws per batch, for --estimator signed"
    )
    says = (
        "Var(θ_k), which scales s and, with --eps 0, cancels in c: 1, or the variance over the models that a run kept "
    )
    says += f"with --keep all (default: {USUAL.variance})"
    group.add_argument("--variance", choices=VARIANCES, default=USUAL.variance, help=says)
    group.add_argument("--eps", metavar="X", type=positive, default=USUAL.eps, help="ε in c = √v/(s̄ + ε) (default: 0)")
    says = "measure only the parameters whose names match shell patterns such as 'blocks.6.*'"
    group.add_argument("--only", metavar="PATTERN", nargs="+", default=[], help=says)
    group.add_argument("--exclude", metavar="PATTERN", nargs="+", default=[], help="leave these parameters out")
    says = "skip null, which is c under random domain labels (the noise floor of c); takes less memory"
    group.add_argument("--no-null", action="store_true", help=says)
    device_flag(group)
    group.add_argument("--workers", metavar="N", type=integer("workers", 0), help="processes that read images")
    group.add_argument("--threads", metavar="N", type=integer("threads"), help="CPU threads (default: all cores)")


def run(given: Any) -> int:
    if (given.model is None) == (given.compare is None):
        raise ConfigError("give --model NAME|RUN to measure, or --compare BEFORE AFTER; see dspreg measure --help")
    places = {name: Path(getattr(given, name)) for name in ("out", "figures", "html") if getattr(given, name)}
    _make_room(places)
    if given.compare:
        return _compare(given, places)
    _check_model(given)
    return _measure(given, places) if given.held_out is None else _hold_out(given, places)


def _is_run(given: Any) -> bool:
    return Path(given.model).is_dir()


def _check_model(given: Any) -> None:
    """A run that is not there is said before torch is loaded, which takes seconds."""
    if not _is_run(given):
        if len(Path(given.model).parts) > 1:
            raise ConfigError(f"there is no folder {given.model}; give that of a run, or the name of a network")
        return
    if any((given.weights, given.image_size, given.mean, given.std)):
        text = "is a run, which has its own weights, image size, mean and std; leave those options out"
        raise ConfigError(f"{given.model} {text}")
    require_model(given.model, given.which)


def _make_room(places: dict[str, Path]) -> None:
    """Create the output folders first, rather than after an hour of measuring."""
    for name, path in places.items():
        if name != "figures" and path.is_dir():
            raise ConfigError(f"--{name} {path} is a folder; give a file in it, such as {path / 'profile.safetensors'}")
        make_folder(path if name == "figures" else path.parent)


def _measure(given: Any, places: dict[str, Path]) -> int:
    from dspreg.sensitivity.html import profile_page
    from dspreg.sensitivity.text_summary import rank_layers, summarize_profile

    profile = _profile(given)
    if "out" in places:
        profile.save(places["out"])
    found = summarize_profile(profile)
    layer = given.layer if given.layer is not None else rank_layers(profile)[0]["layer"]
    pictures = _pictures(profile, ("layers", "histogram", "map"), layer, places)
    if "html" in places:
        write_output(places["html"], profile_page(found, pictures).encode())
    _say(given, found, profile_text(found), places)
    return 0


def _hold_out(given: Any, places: dict[str, Path]) -> int:
    from dspreg.inference.held_out_run import compare_held_out_network, compare_held_out_run
    from dspreg.io.html import png
    from dspreg.sensitivity.html import held_out_page

    if given.layer is not None:
        raise ConfigError("--layer is for a map of one layer, which --held-out does not draw; leave it out")
    comparison: HeldOutComparison = _call_measure(
        given,
        partial(compare_held_out_network, held_out=given.held_out),
        partial(compare_held_out_run, held_out=given.held_out),
    )
    found = comparison.to_json()
    pictures = {}
    if "figures" in places or "html" in places:
        pictures[HELD_OUT_CAPTION] = png(comparison.figure())
    if "figures" in places:
        write_output(places["figures"] / "held-out.png", pictures[HELD_OUT_CAPTION])
    if "html" in places:
        write_output(places["html"], held_out_page(found, pictures).encode())
    if "out" in places:
        write_output(places["out"], f"{_json(found)}\n".encode())
    _say(given, found, held_out_text(found), places)
    return 0


def _profile(given: Any) -> Profile:
    from dspreg.inference.profile_run import profile_network, profile_run

    return _call_measure(given, profile_network, profile_run)


def _call_measure(given: Any, of_network: Callable[..., T], of_run: Callable[..., T]) -> T:
    """What one of two functions finds, of a network of a name or of a run's folder, with progress on a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    from dspreg.config.train_config import Execution
    from dspreg.inference.profile_run import MeasureProgress
    from dspreg.training.loop import reproducible

    device = choose_device(given.device, float64=True)
    config = MeasureConfig(
        mean=given.mean, std=given.std,
        dataset=dataset_with_columns(given.dataset, given) or None, root=given.root, name=given.name,
        domains=given.domain, images=given.images,
        batch=given.batch, of=given.of, estimator=given.estimator, draws=given.draws, eps=given.eps, only=given.only,
        variance=given.variance,
        exclude=given.exclude, null=not given.no_null, layer=given.layer, seed=given.seed, device=device,
        workers=given.workers,
    )  # fmt: skip
    console = Console(stderr=True)
    bar = Progress(console=console, transient=True, disable=not console.is_terminal)
    task = bar.add_task("reading images", total=None)

    def reading(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)
        if done == total:
            bar.stop()  # the next bar needs the terminal to itself

    progress = MeasureProgress(bar=console.is_terminal, reading=reading)
    how = Execution(device=device, threads=given.threads)
    with reproducible(how), nullcontext() if given.no_null and given.held_out is None else bar:
        if _is_run(given):
            return of_run(given.model, config, which=given.which, progress=progress, trust=given.trust)
        weights = "default" if given.weights in (None, "hub") else given.weights
        size = given.image_size
        return of_network(given.model, config, weights=weights, image_size=size, progress=progress)


def _compare(given: Any, places: dict[str, Path]) -> int:
    from dspreg.sensitivity import Profile
    from dspreg.sensitivity.html import comparison_page
    from dspreg.sensitivity.text_summary import summarize_comparison

    used = ("run", "command", "usual", "compare", "figures", "html", "layer", "json")
    others = [name for name, value in vars(given).items() if name not in used and value != given.usual(name)]
    if others:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise ConfigError(f"--compare reads two profiles and measures nothing; leave out {flags}")
    before, after = (Profile.load(path) for path in given.compare)
    comparison = before.compare(after)
    found = summarize_comparison(comparison)
    layer = given.layer if given.layer is not None else found["layers"][0]["layer"]
    pictures = _pictures(comparison, ("layers", "map"), layer, places)
    if "html" in places:
        names = (Path(given.compare[0]).name, Path(given.compare[1]).name)
        write_output(places["html"], comparison_page(found, pictures, names).encode())
    _say(given, found, comparison_text(found), places)
    return 0


def _pictures(
    of: Profile | Comparison, kinds: tuple[str, ...], layer: str, places: dict[str, Path]
) -> dict[str, bytes]:
    """PNGs by caption, if a page or a folder takes them; files, if there is a folder."""
    if "figures" not in places and "html" not in places:
        return {}
    from dspreg.io.html import png

    made = {}
    for kind in kinds:
        image = png(of.figure(kind, layer if kind == "map" else None))
        made[CAPTIONS[f"{kind}.png"].format(layer=layer or "(top)")] = image
        if "figures" in places:
            write_output(places["figures"] / f"{kind}.png", image)
    return made


def _say(given: Any, found: dict[str, Any], lines: Any, places: dict[str, Path]) -> None:
    # beside a file that was written to standard output, nothing else may stand there
    stream = sys.stderr if any(map(is_standard_output, places.values())) else sys.stdout
    if given.json:
        print(_json(found), file=stream)
        return
    print("\n".join(lines), file=stream)
    names = {"out": "profile" if given.held_out is None else "numbers", "figures": "pictures", "html": "page"}
    for name, path in places.items():
        print(f"{names[name]}: {escape_terminal(str(path))}", file=stream)


def _json(found: dict[str, Any]) -> str:
    return json.dumps(found, indent=1, ensure_ascii=True, sort_keys=True, allow_nan=False)
