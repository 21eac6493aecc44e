"""The appendix's assumptions on a real network: locality, cross terms, off-diagonals, the score; and averaging over c.

    DSPREG_ROOT=data DSPREG_WEIGHTS=tf_efficientnet_lite0.safetensors python bench/assumptions.py

The paper announces "simple empirical checks" and gives none. Here they are on EfficientNet-Lite0, PACS without sketch,
64 px, after 30 and after 60 steps of ERM (Adam, 1e-4, 3 × 16 images, frozen batch norm):

- locality: what the tangent misses of the change of the logits, ‖f(θ + hδ) − f(θ) − hJδ‖/‖f(θ + hδ) − f(θ)‖, where δ
  is a step of Adam and J δ is differentiated in forward mode
- cross terms: δx is another augmentation of the images of a batch, δθ the step that Adam makes for them.
  2 Tr Cov(J_xδx, J_θδθ) over Tr Cov(J_θδθ), in the logits of these images, 24 draws; beside it the same with the steps
  of other draws, which is what chance gives
- off-diagonals: the bound of eq. 34 over what it bounds, Σ_ℓ |Cov(θ_k, θ_ℓ)| E|⟨j_k, j_ℓ⟩| / (Var(θ_k) E‖j_k‖²), with
  Cov along the last 30 steps; and Σ_ℓ E|⟨j_k, j_ℓ⟩|/E‖j_k‖², of the Jacobians alone. Medians over 500 sampled
  parameters; the sums over all ℓ are estimated from those among them
- the score: over images, the correlation of ‖T‖² with ‖j_k‖², median over sampled parameters; and by what factor
  E‖T‖² E‖j_k‖² is larger than the Fisher diagonal E⟨T, j_k⟩², the middle four fifths of them
- averaging: K_c r with c shuffled within tensors, relative to that with the tensors' means: the error as it is, and as
  sampling without replacement has it (tests/sensitivity/test_pattern.py), from above; the effective number of
  parameters ‖Σ_k a_k‖²/Σ_k ‖a_k‖² with a_k = j_k g_k; and K_c r of c itself beside that of its tensors' means

Some three minutes on one core.
"""

from __future__ import annotations

import argparse
import sys
import warnings

import torch
import torch.nn.functional as F
from real import without_sketch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import dspreg
from dspreg import ParamVector, gradient, trainable
from dspreg.training.experiment import Experiment
from dspreg.vectors import displaced

RATE, EVERY, SAMPLED, DRAWS, IMAGES = 1e-4, 30, 500, 24, 16  # images per domain and step
TIMES = (0.1, 1.0, 10.0, 100.0)
NEW = 10**6  # steps from here on are never trained


def main() -> int:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    experiment = without_sketch(64)
    net = experiment.algorithm().net.eval()
    adam = torch.optim.Adam(net.parameters(), lr=RATE)
    size = sum(p.numel() for p in net.parameters())
    sampled = torch.randperm(size, generator=torch.Generator().manual_seed(0))[:SAMPLED]
    columns = []
    for start in (0, EVERY):
        path = train(net, adam, experiment, range(start, start + EVERY), sampled)
        x, y = (torch.cat(each) for each in zip(*shown(experiment, NEW), strict=True))
        jacobians = Jacobians(net, x, sampled)
        columns.append(
            check_locality(net, adam, x, y)
            | check_cross_terms(net, adam, experiment)
            | check_off_diagonals(jacobians.sampled, path, size)
            | check_score(net, jacobians.sampled, x, y)
            | check_averaging(net, jacobians.squares, experiment, x, y)
        )
    table = Table("Lite0, PACS without sketch", f"after {EVERY} steps", f"after {2 * EVERY} steps")
    for row in columns[0]:
        table.add_row(row, *(column[row] for column in columns))
    Console(width=130).print(table)
    return 0


def shown(experiment: Experiment, step: int) -> list[tuple[Tensor, Tensor]]:
    """Images and labels of every source domain, as training shows them."""
    normalise = experiment.transform("domainbed").normalise
    return [(normalise(x)[:IMAGES], y[:IMAGES]) for x, y in experiment.steps()[step]]


def train(net: nn.Module, adam: torch.optim.Adam, experiment: Experiment, steps: range, sampled: Tensor) -> Tensor:
    """ERM; the sampled parameters after every step. (steps, sampled)"""
    path = []
    for step in steps:
        x, y = (torch.cat(each) for each in zip(*shown(experiment, step), strict=True))
        adam.zero_grad()
        F.cross_entropy(net(x), y).backward()
        adam.step()
        path.append(nn.utils.parameters_to_vector(net.parameters()).detach()[sampled].double())
    return torch.stack(path)


def step_of(adam: torch.optim.Adam, net: nn.Module, g: ParamVector) -> ParamVector:
    """What Adam would add to θ for this gradient. Its state stays."""
    found = {}
    for name, p in trainable(net).items():
        state = adam.state[p]
        t = float(state["step"]) + 1
        mean = (0.9 * state["exp_avg"] + 0.1 * g[name]) / (1 - 0.9**t)
        square = (0.999 * state["exp_avg_sq"] + 0.001 * g[name] ** 2) / (1 - 0.999**t)
        found[name] = -RATE * mean / (square.sqrt() + 1e-8)
    return ParamVector(found)


def tangent(net: nn.Module, x: Tensor, v: ParamVector) -> Tensor:
    """J v."""
    constant = dict(net.named_buffers())

    def outputs(params: dict[str, Tensor]) -> Tensor:
        found: Tensor = torch.func.functional_call(net, {**params, **constant}, (x,))
        return found

    params = {name: p.detach() for name, p in net.named_parameters()}
    result: Tensor = torch.func.jvp(outputs, (params,), ({name: v[name] for name in params},))[1]
    return result.detach().double()


class Jacobians:
    """j_k of every image: of sampled parameters whole (images, classes, sampled), of all Σ_i ‖j_k(x_i)‖²."""

    def __init__(self, net: nn.Module, x: Tensor, sampled: Tensor):
        params = list(net.parameters())
        rows, squares = [], torch.zeros(sum(p.numel() for p in params), dtype=torch.float64)
        for image in x:
            logits = net(image[None])[0]
            for a in range(len(logits)):
                found = torch.autograd.grad(logits[a], params, retain_graph=a + 1 < len(logits))
                flat = torch.cat([t.reshape(-1) for t in found]).double()
                squares.addcmul_(flat, flat)
                rows.append(flat[sampled])
        self.sampled, self.squares = torch.stack(rows).view(len(x), -1, len(sampled)), squares


def check_locality(net: nn.Module, adam: torch.optim.Adam, x: Tensor, y: Tensor) -> dict[str, str]:
    delta = step_of(adam, net, gradient(F.cross_entropy(net(x), y), net))
    straight = tangent(net, x, delta)
    found = {}
    with torch.no_grad():
        here = net(x).double()
        for times in TIMES:
            with displaced(net, delta * times):
                change = net(x).double() - here
            found[f"locality: relative error at {times:g} steps of Adam"] = format_share(
                (change - times * straight).norm() / change.norm()
            )
    return found


def check_cross_terms(net: nn.Module, adam: torch.optim.Adam, experiment: Experiment) -> dict[str, str]:
    """On one batch of images in many augmentations."""
    part = experiment.part(experiment.sources[0], "in", shown_as := experiment.transform("domainbed"))
    places = list(range(IMAGES))
    draws = [part.batch(places, "assumptions", n) for n in range(DRAWS)]
    images = [(shown_as.normalise(x), y) for x, y in draws]
    x = torch.stack([x for x, _ in images]).mean(0)  # where both are linearised
    constant = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    by_input, by_parameters = [], []
    for view, y in images:
        step = step_of(adam, net, gradient(F.cross_entropy(net(view), y), net))
        by_parameters.append(tangent(net, x, step))
        moved = torch.func.jvp(lambda z: torch.func.functional_call(net, constant, (z,)), (x,), (view - x,))[1]
        by_input.append(moved.detach().double())
    u, w = (torch.stack(each) - torch.stack(each).mean(0) for each in (by_input, by_parameters))
    own, total = w.square().sum(), u.square().sum()
    chance = [2 * (u * w.roll(n, 0)).sum() / own for n in range(1, DRAWS)]
    spread = torch.stack(chance).abs().median()
    return {
        "cross terms: 2 Tr Cov(J_xδx, J_θδθ)/Tr Cov(J_θδθ)": f"{float(2 * (u * w).sum() / own):+.2f}",
        "… with the steps of other draws, median size": f"{float(spread):.2f}",
        "… Tr Cov(J_xδx)/Tr Cov(J_θδθ)": f"{float(total / own):.1f}",
    }


def check_off_diagonals(j: Tensor, path: Tensor, size: int) -> dict[str, str]:
    alive = (j.square().sum((0, 1)) > 0) & (path.var(0) > 0)
    j, path = j[:, :, alive], path[:, alive]
    inner = torch.zeros(j.shape[2], j.shape[2], dtype=torch.float64)
    for each in j:  # E|⟨j_k, j_ℓ⟩|
        inner += (each.T @ each).abs() / len(j)
    covariance = torch.cov(path.T, correction=0).abs()
    rest, others = 1 - torch.eye(len(inner), dtype=torch.float64), (size - 1) / (len(inner) - 1)
    jacobians = (inner * rest).sum(1) * others / inner.diag()
    bound = (inner * covariance * rest).sum(1) * others / (inner * covariance).diag()
    correlation = (torch.corrcoef(path.T).abs() * rest).sum() / rest.sum()
    angle = (inner / inner.diag().outer(inner.diag()).sqrt() * rest).sum() / rest.sum()
    return {
        "off-diagonals: bound of eq. 34 over what it bounds": f"{float(bound.median()):,.0f}",
        "… of the Jacobians alone": f"{float(jacobians.median()):,.0f}",
        "… mean |correlation| of two parameters along the steps": f"{float(correlation):.2f}",
        "… mean E|⟨j_k, j_ℓ⟩|/√(E‖j_k‖² E‖j_ℓ‖²)": f"{float(angle):.2f}",
    }


def check_score(net: nn.Module, j: Tensor, x: Tensor, y: Tensor) -> dict[str, str]:
    with torch.no_grad():
        logits = net(x).double()
    score = F.one_hot(y, logits.shape[1]) - logits.softmax(1)
    j = j[:, :, j.square().sum((0, 1)) > 0]
    lengths, energies = score.square().sum(1), j.square().sum(1)
    correlations = torch.corrcoef(torch.cat([lengths[None], energies.T]))[0, 1:]
    fisher = torch.einsum("ia,iak->ik", score, j).square().mean(0)
    off = (lengths.mean() * energies.mean(0) / fisher).quantile(torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64))
    low, middle, high = (f"{float(each):.1f}" for each in off)
    return {
        "score: correlation of ‖T‖² with ‖j_k‖² over images": f"{float(correlations.median()):+.2f}",
        "… E‖T‖² E‖j_k‖² over the Fisher diagonal": f"{middle} ({low} to {high})",
    }


def check_averaging(net: nn.Module, squares: Tensor, experiment: Experiment, x: Tensor, y: Tensor) -> dict[str, str]:
    g = gradient(F.cross_entropy(net(x), y), net)
    domains = {str(d): [shown(experiment, NEW + 1 + n)[d] for n in range(4)] for d in range(len(experiment.sources))}
    c = dspreg.measure(net, domains, null=False).c
    random = torch.Generator().manual_seed(0)
    shuffled = c.map(lambda t: t.reshape(-1)[torch.randperm(t.numel(), generator=random)].view_as(t))
    means = c.map(lambda t: torch.full_like(t, float(t.mean())))
    of_c, of_shuffled, of_means, of_one = (tangent(net, x, v) for v in (c * g, shuffled * g, means * g, g))
    terms = squares * g.flat().double().square()  # ‖a_k‖²
    variances = torch.cat([t.double().var(correction=0).expand(t.numel()) for t in c.values()])
    sizes = torch.cat([torch.full((t.numel(),), float(t.numel())) for t in c.values()])
    many = sizes > 1
    expected = (variances * sizes / (sizes - 1) * terms)[many].sum().sqrt() / of_means.norm()

    def cosine(a: Tensor, b: Tensor) -> float:
        return float((a * b).sum() / (a.norm() * b.norm()))

    return {
        "averaging: effective number of parameters": f"{float(of_one.square().sum() / terms.sum()):,.0f}",
        "… error of shuffled c beside tensor means": format_share((of_shuffled - of_means).norm() / of_means.norm()),
        "… expected, at most": format_share(expected),
        "… cosine of K_c r, c shuffled and tensor means": f"{cosine(of_shuffled, of_means):.4f}",
        "… cosine of K_c r, c and tensor means": f"{cosine(of_c, of_means):.4f}",
    }


def format_share(value: Tensor) -> str:
    return f"{100 * float(value):.2g} %"


if __name__ == "__main__":
    sys.exit(main())
