"""Draw the pictures of docs/understand/concepts.md into docs/images.

python docs/draw_concepts.py            # a minute on one core; domains, step, selection and sensitivity, or those named

Domains, selection and sensitivity are drawn from the embedded digits and from networks that are trained here.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import dspreg
from dspreg.data import Digits

IMAGES = Path(__file__).resolve().parent / "images"
BLUE, ORANGE, GREY, INK = "#3949ab", "#ef6c00", "#9e9e9e", "#212121"
mpl.use("agg")
mpl.rcParams.update({
    "font.size": 13, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY, "text.color": INK,
    "figure.facecolor": "white", "savefig.facecolor": "white", "savefig.dpi": 110,
})  # fmt: skip


def save(figure: Figure, name: str) -> None:
    figure.savefig(IMAGES / f"concept-{name}.png", bbox_inches="tight", metadata={"Software": None})
    plt.close(figure)


def domains() -> None:
    """Each domain is the target once; sources are cut into a part to train on and one to validate on."""
    digits = Digits()
    figure = plt.figure(figsize=(10, 6.4))
    grid = figure.add_gridspec(2, 1, height_ratios=[1, 2], hspace=0.25)
    top = grid[0].subgridspec(1, 4, wspace=0.15)
    for place, name in enumerate(digits.domains):
        x, y = digits.arrays(name)
        shown = [x[np.flatnonzero(y == label)[3]] for label in (2, 5, 7, 8)]
        axes = figure.add_subplot(top[place])
        axes.imshow(np.vstack([np.hstack(shown[:2]), np.hstack(shown[2:])]))
        axes.set_title(name, fontsize=13)
        axes.axis("off")
    axes = figure.add_subplot(grid[1])
    for row, target in enumerate(digits.domains):
        for column, name in enumerate(digits.domains):
            left = column + 0.06
            if name == target:
                _bar(axes, left, row, 0.88, ORANGE, "target: tested on")
            else:
                _bar(axes, left, row, 0.68, BLUE, "in: trained on")
                _bar(axes, left + 0.7, row, 0.18, "#9fa8da", "out")
        axes.text(-0.05, row, f"training {row + 1}", ha="right", va="center")
    axes.set(xlim=(-0.02, 4.02), ylim=(3.5, -0.6))
    axes.axis("off")
    axes.text(
        2, 3.75, "out: held out from training; the mean over the sources selects step and hyper-parameters", ha="center"
    )
    save(figure, "domains")


def _bar(axes: Axes, left: float, row: int, width: float, colour: str, text: str) -> None:
    axes.add_patch(
        FancyBboxPatch((left, row - 0.28), width, 0.56, boxstyle="round,pad=0,rounding_size=0.04", color=colour)
    )
    axes.text(
        left + width / 2, row, text, ha="center", va="center", fontsize=11, color=INK if text == "out" else "white"
    )


def step() -> None:
    """A step is five functions; a layer replaces some and passes the others through."""
    arrows = ("build", "forward", "loss", "gradient", "update")
    taken = ("task", "batches", "outputs", "objective", "direction")
    made = ("network", "outputs", "scalar", "direction", "log")
    layers = {"ERM": arrows, "CORAL": ("loss",), "DSPReg": ("build", "gradient", "update")}
    figure, axes = plt.subplots(figsize=(11, 4.8))
    for column, (arrow, enters, leaves) in enumerate(zip(arrows, taken, made, strict=True)):
        axes.text(2 * column + 1, 4.55, arrow, ha="center", fontsize=14, weight="bold", color=BLUE)
        axes.text(2 * column + 1, 4.0, f"{enters}\n→ {leaves}", ha="center", va="center", fontsize=11)
        if column:
            ends = (2 * column - 0.22, 4.68), (2 * column + 0.22, 4.68)
            axes.add_patch(FancyArrowPatch(*ends, arrowstyle="-|>", mutation_scale=16, color=INK))
    for row, (name, own) in enumerate(layers.items()):
        axes.text(-0.45, 0.35 + row, name, ha="right", va="center", fontsize=14)
        for column, arrow in enumerate(arrows):
            at, mine = 2 * column + 1, arrow in own
            axes.add_patch(FancyBboxPatch(
                (at - 0.75, 0.05 + row), 1.5, 0.6, boxstyle="round,pad=0,rounding_size=0.1",
                facecolor=BLUE if mine else "white", edgecolor=BLUE if mine else "#cfd8dc",
                linestyle="-" if mine else "--",
            ))  # fmt: skip
            axes.text(
                at,
                0.35 + row,
                arrow if mine else "passed on",
                ha="center",
                va="center",
                fontsize=11,
                color="white" if mine else "#78909c",
            )
    axes.text(5, -0.55, "filled: the layer replaces the function, and may call that of the layer below", ha="center")
    axes.set(xlim=(-1.9, 10.2), ylim=(-0.8, 5))
    axes.axis("off")
    save(figure, "step")


def selection() -> None:
    """One training on the digits, and which of its steps each rule quotes."""
    settings = {
        "dataset": "digits",
        "targets": ("sign",),
        "algorithm": "ERM",
        "steps": 121,
        "evaluate_every": 10,
        "lr": 3e-3,
    }
    with tempfile.TemporaryDirectory() as folder:
        dspreg.train(settings, out=f"{folder}/run")
        (run,) = dspreg.load_runs(f"{folder}")
    steps = np.array([record["step"] for record in run.records])
    source = 100 * np.array([record["validation"] for record in run.records])
    target = 100 * np.array([record["accuracy"]["sign"]["in"] for record in run.records])
    oracle = 100 * run.records[-1]["accuracy"]["sign"]["out"]
    best, half = int(source.argmax()), steps >= steps[-1] / 2
    figure, axes = plt.subplots(figsize=(10, 5))
    axes.plot(steps, source, color=BLUE, lw=2)
    axes.plot(steps, target, color=ORANGE, lw=2)
    axes.text(steps[-1] + 3, source[-1], "sources, out\n(validation)", color=BLUE, va="center")
    axes.text(steps[-1] + 3, target[-1] + 5, "target, in", color=ORANGE, va="center")
    axes.axvline(steps[best], color=BLUE, ls=":", lw=1.5)
    axes.plot(steps[best], target[best], "o", ms=11, color=ORANGE, zorder=3)
    axes.annotate(
        f"training: {target[best]:.1f} %,\nat the step that the sources select",
        (steps[best], target[best]),
        (steps[best] - 6, 14),
        ha="right",
        va="center",
        arrowprops={"arrowstyle": "-", "color": GREY},
    )
    axes.hlines(target[half].mean(), steps[half][0], steps[-1], color=INK, lw=2.5)
    said = f"late: {target[half].mean():.1f} %, mean over the second half"
    axes.text(steps[best] - 2, target[half].mean() + 17, said, ha="right", va="center")
    axes.plot(steps[-1], oracle, "D", ms=9, color=GREY, zorder=3)
    axes.text(
        steps[-1] + 3, oracle - 6, f"oracle: {oracle:.1f} %,\ntarget, out, at the end", color="#616161", va="center"
    )
    axes.set(xlabel="step", ylabel="accuracy in %", xlim=(0, steps[-1] + 2), ylim=(0, 104))
    save(figure, "selection")


def sensitivity() -> None:
    """s by domain, c beside its null, and how both fall with the number of images, of one small network."""
    names = ("outline", "print", "sign")
    data = {name: _tensors(name) for name in names}
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 5, stride=2),
        nn.Tanh(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(400, 10),
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for each in range(150):
        x, y = zip(*(_batch(data[name], each) for name in names), strict=True)
        optimizer.zero_grad()
        cross_entropy(model(torch.cat(x)), torch.cat(y)).backward()
        optimizer.step()
    profiles = {images: dspreg.measure(model, _loaders(data, images)) for images in (16, 32, 64, 128, 256, 512)}
    profile = profiles[512]
    figure, (left, middle, right) = plt.subplots(1, 3, figsize=(14, 4.4), gridspec_kw={"width_ratios": [1.1, 1, 1]})

    layer = "2.weight"
    c = profile.c[layer].flatten()
    order = c.argsort()
    chosen = [int(order[int(share * (len(order) - 1))]) for share in (0.02, 0.35, 0.7, 0.98)]
    for place, name in enumerate(names):
        s = torch.stack([p[layer].flatten() for p in profile.s.values()])
        relative = (s / s.mean(0))[place, chosen]
        left.bar(np.arange(4) + 0.27 * (place - 1), relative, 0.25, label=name, color=(BLUE, ORANGE, "#26a69a")[place])
    left.set_xticks(range(4), [f"c = {c[k]:.2f}" for k in chosen])
    left.axhline(1, color=GREY, lw=1)
    left.set_title("s of four weights, over its mean", fontsize=13)
    left.legend(frameon=False, fontsize=11, loc="upper left")

    bins = np.linspace(0, profile.bound, 45)
    middle.hist(
        profile.over_alive(profile.null).numpy(), bins, color=GREY, alpha=0.8, label="null: domains dealt at random"
    )
    middle.hist(profile.over_alive(profile.c).numpy(), bins, color=BLUE, histtype="step", lw=2, label="c")
    middle.set(xlabel="c, from 0 to √2", yticks=[])
    middle.set_title("all weights, 512 images a domain", fontsize=13)
    middle.legend(frameon=False, fontsize=11, loc="upper right")

    images = list(profiles)
    drawn = (("c", BLUE, "c", (0, 12), "center"), ("null", GREY, "null,\nthe noise floor", (-14, -34), "right"))
    for pick, colour, name, offset, side in drawn:
        means = [float(p.over_alive(getattr(p, pick)).mean()) for p in profiles.values()]
        right.plot(images, means, "o-", color=colour, lw=2)
        right.annotate(name, (images[3], means[3]), offset, textcoords="offset points", ha=side)
    right.set_xscale("log", base=2)
    right.set_xticks(images, [str(each) for each in images])
    right.set(xlabel="images of each domain", ylim=(0, None))
    right.set_title("mean over all weights", fontsize=13)
    figure.tight_layout(w_pad=2)
    save(figure, "sensitivity")


def _tensors(name: str) -> TensorDataset:
    x, y = Digits().arrays(name)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    return TensorDataset((torch.tensor(x).permute(0, 3, 1, 2) / 255)[order], torch.tensor(y)[order])


def _batch(data: TensorDataset, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    some = torch.arange(32 * number, 32 * (number + 1)) % len(data)
    return data.tensors[0][some], data.tensors[1][some]


def _loaders(data: Mapping[str, TensorDataset], images: int) -> dict[str, DataLoader[tuple[torch.Tensor, ...]]]:
    batch = min(images // 2, 32)
    return {name: DataLoader(torch.utils.data.Subset(each, range(images)), batch) for name, each in data.items()}


PICTURES = {each.__name__: each for each in (domains, step, selection, sensitivity)}

if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or PICTURES:
        PICTURES[name]()
        print(IMAGES / f"concept-{name}.png")
