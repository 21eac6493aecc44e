"""Train on three domains of digits, test on the fourth, and look at how domain-sensitive each parameter is.

    python examples/quickstart.py --out demo

Every domain is the target once, for ERM and for DSP-Reg: eight trainings, each resumed where it was if you start it
again. Ends in demo/index.html: what to expect on a further domain, the images, accuracies on the unseen domain, and c
before and after training beside its null. About three minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table

import dspreg
from dspreg.io.html import inline, png, render_page
from dspreg.reporting.expected import expected_by_rows, expected_sentence
from dspreg.reporting.html.dots import draw_dots
from dspreg.reporting.html.page import report_style

ALGORITHMS = {"ERM": "ERM", "DSP-Reg": "DSPReg(weight=0.01)"}
PROFILED = "handwritten"  # the target whose c is drawn
LAYER = "featurizer.layers.6"  # the last convolution


class Lines(dspreg.Callback):
    """Where there is no terminal for a progress bar: a line per evaluation."""

    def __init__(self, title: str):
        self.title = title

    def on_evaluation(self, record: dict) -> None:
        loss, validation = record["log"]["loss"], record["validation"]
        print(f"{self.title}: step {record['step']}, loss {loss:.3f}, source validation {validation:.1%}", flush=True)


def train(target: str, name: str, steps: int, out: Path, console: Console) -> tuple[str, str, float, float, float]:
    """One row of the table: target, method, accuracies in per cent, the penalty's share of the gradient."""
    title = f"{name}, target {target}"
    callback = dspreg.ProgressBar(console, title) if console.is_terminal else Lines(title)
    config = dspreg.TrainConfig(dataset="digits", targets=(target,), algorithm=ALGORITHMS[name], steps=steps)
    execution = dspreg.Execution(profile="always" if target == PROFILED else "never")
    share = ShareOfPenalty()
    selected = dspreg.train(config, execution, out, callbacks=[callback, share])["selected"]
    unseen = selected["accuracy"][target]["in"]
    console.print(f"{title}: {unseen:.1%} on the target, {selected['validation']:.1%} source validation")
    return target, name, 100 * selected["validation"], 100 * unseen, share.last


class ShareOfPenalty(dspreg.Callback):
    """The length of the penalty's gradient over that of the loss, at the last evaluation; 0 without a penalty."""

    last = 0.0

    def on_evaluation(self, record: dict) -> None:
        self.last = record["log"].get("DSPReg.ratio", 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the runs, the pictures and the page")
    parser.add_argument("--steps", type=int, default=200, help="training steps of each run")
    options = parser.parse_args()
    warnings.simplefilter("ignore", dspreg.Notice)
    console, started = Console(), time.perf_counter()
    data = dspreg.open_dataset("digits")
    console.print("Four domains of digits: real handwriting and printed fonts. Each is the target once.")
    runs = {(target, name): options.out / "runs" / f"{name}-{target}" for target in data.domains for name in ALGORITHMS}
    rows = [train(*which, options.steps, out, console) for which, out in runs.items()]

    table = Table("target", "method", "source validation %", "target %", "penalty/gradient")
    for target, name, seen, unseen, share in rows:
        table.add_row(target, name, f"{seen:.1f}", f"{unseen:.1f}", f"{share:.1%}" if share else "")
    console.print(table)
    console.print(f"DSP-Reg is {ALGORITHMS['DSP-Reg']}, ten times the paper's weight.")
    console.print("One seed each: a few points between methods mean nothing yet.")
    profiles = {"before training": dspreg.Profile.load(runs[PROFILED, "ERM"] / "profiles/start.safetensors")}
    for name in ALGORITHMS:
        profiles[f"after {name}"] = dspreg.Profile.load(runs[PROFILED, name] / "profiles/end.safetensors")
    for name, profile in profiles.items():
        console.print(f"{name}: {profile}")
    write_page(options.out, rows, profiles, options.steps)
    console.print(f"{time.perf_counter() - started:.0f} s. Look at {options.out / 'index.html'}")


# The page, with its pictures inside.

PAGE = """
<header><h1>Digits: trained on three domains, tested on the fourth</h1></header>
<p><strong>{{ sentence }}</strong></p>
<p>{{ steps }} steps each, one seed: a few points between methods mean nothing yet.
DSP-Reg is <code>{{ spec }}</code>.</p>
<section><h2>The four domains</h2>
<p class="quiet">The same ten classes, drawn differently. Each domain is the target once: training never sees it.</p>
{{ picture("one image of each class and domain", images) }}</section>
<section><h2>Accuracy on the target</h2>
<p class="quiet">In %, of the model selected by accuracy on held-out images of the three sources.</p>
<div class="grid names">{% for target, dots in accuracies %}
<figure><figcaption>{{ target }}</figcaption>{{ dots|safe }}</figure>
{% endfor %}</div>
<div class="wide"><table><thead><tr><th>target<th>method<th class=n>source validation %<th class=n>target %
<th class=n>penalty/gradient</tr></thead>
{% for target, name, seen, unseen, share in rows %}
<tr><td>{{ target }}<td>{{ name }}<td class=n>{{ "%.1f"|format(seen) }}<td class=n>{{ "%.1f"|format(unseen) }}
<td class=n>{{ "%.1f %%"|format(100 * share) if share else "" }}
{% endfor %}</table></div>
<p class="quiet">penalty/gradient: the length of the penalty's gradient over that of the loss, at the last step.</p>
</section>
<section><h2>How domain-sensitive the parameters are</h2>
<p>c is 0 where all source domains agree on how much a parameter matters, and √2 where one domain alone decides.
<em>null</em> is c under random domain labels: the same images dealt at random to three groups. Only what exceeds it
says something about domains. Target: {{ profiled }}.</p>
{% for name, figures in pictures %}<h3>{{ name }}</h3>{% for caption, image in figures %}{{ picture(caption, image) }}
{% endfor %}{% endfor %}</section>"""


def write_page(out: Path, rows: list[tuple], profiles: dict[str, dspreg.Profile], steps: int) -> None:
    pictures = []
    for name, profile in profiles.items():
        figures = []
        for kind, layer, caption in (
            ("layers", None, "c by layer: median and middle half of the parameters"),
            ("map", LAYER, "one layer, every parameter a cell"),
            ("histogram", None, "all parameters"),
        ):
            image = png(profile.figure(kind, layer))
            (out / f"{kind}-{name.replace(' ', '-')}.png").write_bytes(image)
            figures.append((caption, inline(image)))
        pictures.append((name, figures))
    selected = dspreg.select_rows(dspreg.load_runs(out / "runs"))
    values = {
        "images": inline(png(draw_domains())), "accuracies": draw_dots(selected), "rows": rows,
        "sentence": expected_sentence(expected_by_rows(selected)), "pictures": pictures,
        "profiled": PROFILED, "steps": steps, "spec": ALGORITHMS["DSP-Reg"],
    }  # fmt: skip
    (out / "index.html").write_text(render_page("dspreg on the digits", PAGE, **report_style(), **values))


def draw_domains() -> Figure:
    """A row per domain, a column per class."""
    data = dspreg.open_dataset("digits")
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    for row, domain in zip(figure.subplots(len(data.domains), data.num_classes), data.domains, strict=True):
        images = data.domain(domain)
        first = {label: i for i, (_, label) in reversed(list(enumerate(images)))}
        for label, axes in enumerate(row):
            axes.imshow(np.asarray(images[first[label]][0]))
            axes.set_xticks([])
            axes.set_yticks([])
        row[0].set_ylabel(domain, rotation=0, ha="right", va="center")
    return figure


if __name__ == "__main__":
    main()
