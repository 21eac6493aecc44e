"""Train on three domains of digits, test on the fourth, and look at how domain-sensitive each parameter is.

    python examples/quickstart.py --out demo

Every domain is the unseen one once, for ERM and for DSP-Reg. Ends in demo/index.html: accuracies, and c before and
after training beside its floor. About two minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import base64
import io
import time
import warnings
from pathlib import Path

import torch
from jinja2 import Environment
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import dspreg
from dspreg.algorithms import Task, parse
from dspreg.data import Digits
from dspreg.data.splits import split, steps_per_epoch
from dspreg.data.tensors import TensorDomains
from dspreg.networks import SmallCNN

ALGORITHMS = {"ERM": "ERM", "DSP-Reg": "DSPReg(weight=0.01)"}
SHOWN = "handwritten"  # the target whose c is drawn
LAYER = "featurizer.layers.6"  # the last convolution


def digits() -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    data = Digits()
    arrays = {name: data.arrays(name) for name in data.domains}
    return {n: (torch.tensor(x).permute(0, 3, 1, 2) / 127.5 - 1, torch.tensor(y)) for n, (x, y) in arrays.items()}


class Experiment:
    """Three source domains, split into what is trained on and what is held out, and the target."""

    def __init__(self, data: dict[str, tuple[torch.Tensor, torch.Tensor]], target: str, trial: int = 0):
        self.target, trained, self.held_out = data[target], {}, {}
        for position, (name, (x, y)) in enumerate(data.items()):
            inside, outside = split(len(y), trial, position)
            if name != target:
                trained[name], self.held_out[name] = (x[inside], y[inside]), (x[outside], y[outside])
        key = ("digits", target, trial)
        self.sources = TensorDomains(trained, *key)
        epoch = steps_per_epoch(self.sources.sizes, 32 * len(trained))
        self.task = Task(10, tuple(trained), epoch, SmallCNN, key, self.sources.samples)

    def profile(self, algorithm: dspreg.Algorithm) -> dspreg.Profile:
        samples = {n: [(b.x, b.y) for b in batches] for n, batches in self.sources.samples(0, 8).items()}
        return dspreg.measure(algorithm.net, samples)

    @torch.no_grad()
    def accuracies(self, algorithm: dspreg.Algorithm) -> tuple[float, float]:
        """On held-out images of the sources, mean over domains, and on the target."""
        algorithm.eval()
        sets = [*self.held_out.values(), self.target]
        each = [float((algorithm.predict(x).argmax(1) == y).float().mean()) * 100 for x, y in sets]
        algorithm.train()
        return sum(each[:-1]) / len(self.held_out), each[-1]


def train(experiment: Experiment, spec: str, steps: int, bar: Progress, label: str) -> tuple[dspreg.Algorithm, float]:
    """A trained stack, and the penalty's last recorded share of the gradient."""
    algorithm = parse(spec).setup(experiment.task, lambda params: torch.optim.Adam(params, lr=1e-3))
    line = bar.add_task(label, total=steps, loss="", share="")
    share = 0.0
    for t in range(steps):
        recorded = t % 50 == 49 or t == steps - 1
        log = dspreg.train_step(algorithm, experiment.sources.batches(t), record=recorded)
        if recorded:
            share = float(log.get("DSPReg.ratio", torch.zeros(())))
            bar.update(line, loss=f"loss {float(log['loss']):.3f}", share=f"penalty {share:.1%}" if share else "")
        bar.advance(line)
    return algorithm, share


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("demo"), help="folder for the pictures and the page")
    parser.add_argument("--steps", type=int, default=200, help="training steps of each run")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("once", dspreg.Notice)
    console, started = Console(), time.perf_counter()

    console.print("Making the digits: real handwriting and printed fonts, four domains.")
    data = digits()
    rows, profiles = [], {}
    columns = (TextColumn("{task.description:29}"), BarColumn(12), TextColumn("{task.percentage:>3.0f} %"))
    more = (TimeRemainingColumn(), TextColumn("{task.fields[loss]}  {task.fields[share]}"))
    with Progress(*columns, *more, console=console) as bar:
        for target in data:
            experiment = Experiment(data, target)
            for name, spec in ALGORITHMS.items():
                if target == SHOWN and name == "ERM":
                    fresh = parse(spec).setup(experiment.task, torch.optim.Adam)
                    profiles["before training"] = experiment.profile(fresh)
                algorithm, share = train(experiment, spec, options.steps, bar, f"{name}, without {target}")
                rows.append((target, name, *experiment.accuracies(algorithm), share))
                console.print(
                    f"{name}, unseen {target}: {rows[-1][3]:.1f} % there, {rows[-1][2]:.1f} % on held-out sources"
                )
                if target == SHOWN:
                    profiles[f"after {name}"] = experiment.profile(algorithm)
    table = Table("unseen", "method", "held out %", "unseen %", "penalty/gradient")
    for target, name, seen, unseen, share in rows:
        table.add_row(target, name, f"{seen:.1f}", f"{unseen:.1f}", f"{share:.1%}" if share else "")
    console.print(table)
    console.print(
        f"Held out: images of the three sources. DSP-Reg is {ALGORITHMS['DSP-Reg']}, ten times the paper's weight."
    )
    console.print("One seed each: a few points between methods mean nothing yet.")
    for name, profile in profiles.items():
        console.print(f"{name}: {profile}")
        profile.save(options.out / f"{name.replace(' ', '-')}.safetensors")
    page(options.out, rows, profiles, options.steps)
    console.print(f"{time.perf_counter() - started:.0f} s. Look at {options.out / 'index.html'}")


# The page, with its pictures inside.

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>dspreg on the digits</title>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse } td, th { padding: .25rem .9rem; text-align: left; border-bottom: 1px solid #8885 }
td.n { text-align: right; font-variant-numeric: tabular-nums } img { max-width: 100%; background: white }
figure { margin: 1.5rem 0 } figcaption { font-size: .9rem; opacity: .8 }
</style>
<h1>Digits: trained on three domains, tested on the fourth</h1>
<p>{{ steps }} steps each, one seed: a few points between methods mean nothing yet. DSP-Reg is <code>{{ spec }}</code>.
The penalty column is the length of its gradient over that of the loss, at the last step.</p>
<table><tr><th>unseen domain<th>method<th>sources, held out %<th>unseen domain %<th>penalty/gradient
{% for target, name, seen, unseen, share in rows %}
<tr><td>{{ target }}<td>{{ name }}<td class=n>{{ "%.1f"|format(seen) }}<td class=n>{{ "%.1f"|format(unseen) }}
<td class=n>{{ "%.1f %%"|format(100 * share) if share else "" }}
{% endfor %}</table>
<h2>How domain-sensitive the parameters are</h2>
<p>c is 0 where all source domains agree on how much a parameter matters, and √2 where one domain alone decides.
<em>null</em> is c of the same images dealt at random to three groups: what chance gives. Only what stands above it
says something about domains. Unseen domain: {{ shown }}.</p>
{% for name, figures in pictures %}<h3>{{ name }}</h3>{% for caption, image in figures %}
<figure><img alt="{{ caption }}" src="data:image/png;base64,{{ image }}"><figcaption>{{ caption }}</figcaption></figure>
{% endfor %}{% endfor %}</html>
"""


def page(out: Path, rows: list[tuple], profiles: dict[str, dspreg.Profile], steps: int) -> None:
    pictures = []
    for name, profile in profiles.items():
        figures = []
        for kind, layer in (("layers", None), ("map", LAYER), ("histogram", None)):
            buffer = io.BytesIO()
            profile.figure(kind, layer).savefig(buffer, dpi=130)
            (out / f"{kind}-{name.replace(' ', '-')}.png").write_bytes(buffer.getvalue())
            captions = {
                "layers": "c by layer: median and middle half",
                "map": "One layer",
                "histogram": "All parameters",
            }
            figures.append((captions[kind], base64.b64encode(buffer.getvalue()).decode()))
        pictures.append((name, figures))
    template = Environment(autoescape=True).from_string(PAGE)
    (out / "index.html").write_text(
        template.render(rows=rows, pictures=pictures, shown=SHOWN, steps=steps, spec=ALGORITHMS["DSP-Reg"])
    )


if __name__ == "__main__":
    main()
