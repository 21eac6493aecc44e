"""What becomes of a network when its most domain-sensitive parameters are cut out, or held fast.

    python examples/freeze_or_prune.py

A small network is trained on three domains of digits (ERM) and measured; `profile.mask` picks the tenth of its
parameters with the largest c. Then, each time from the same trained network:

- these are set to zero, or as many others of the same tensors: drawn at random, or those with the smallest mean
  sensitivity s̄, which is what s is for as a weight of pruning
- training goes on for a while with these held fast, with as many random ones held fast, or with all free

Shown is the accuracy on images that were held out, per domain, as means over seeds; the last domain was never trained
on. The sentences below the table are made from the numbers. Under a minute on one core.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dspreg
from dspreg.data import Digits, TensorDomains, split
from dspreg.networks import Network, SmallCNN

Mask = Mapping[str, Tensor]  # True for the parameters that are cut out or held fast
ARMS = {
    "trained": "as it was trained",
    "cut c": "largest c set to 0",
    "cut random": "random ones set to 0",
    "cut s": "smallest s set to 0",
    "hold c": "gone on, largest c held fast",
    "hold random": "gone on, random ones held fast",
    "all free": "gone on, all free",
}


def images(target: str, seed: int) -> tuple[TensorDomains, dict[str, tuple[Tensor, Tensor]]]:
    """To train on, the sources' "in" parts; to test on, their "out" parts and all of the target."""
    data, train, test = Digits(), {}, {}
    for position, name in enumerate(data.domains):
        pixels, labels = data.arrays(name)
        x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div(127.5).sub(1)
        y = torch.from_numpy(labels)
        inside, out = split(len(y), seed, position, 0.2)
        if name == target:
            test[name] = x, y
        else:
            train[name], test[name] = (x[inside], y[inside]), (x[out], y[out])
    test[target] = test.pop(target)  # last in the table
    return TensorDomains(train, "freeze or prune", seed), test


def train(net: nn.Module, data: TensorDomains, steps: range, frozen: Mask | None = None) -> nn.Module:
    """ERM by Adam. What is frozen has no gradient, and so Adam leaves it where it is."""
    net.train()
    adam = torch.optim.Adam(net.parameters(), lr=2e-3)
    for t in steps:
        batches = data.batches(t, 24)
        loss = F.cross_entropy(net(torch.cat([b.x for b in batches])), torch.cat([b.y for b in batches]))
        adam.zero_grad()
        loss.backward()
        for name, p in net.named_parameters():
            if frozen is not None:
                p.grad[frozen[name]] = 0
        adam.step()
    return net


def cut(net: nn.Module, mask: Mask) -> nn.Module:
    with torch.no_grad():
        for name, p in net.named_parameters():
            p[mask[name]] = 0
    return net


def at_random(mask: Mask, seed: int) -> Mask:
    """As many parameters of every tensor, drawn by the seed."""
    random = torch.Generator().manual_seed(seed)
    return {name: m.flatten()[torch.randperm(m.numel(), generator=random)].view(m.shape) for name, m in mask.items()}


def least_sensitive(mask: Mask, s: Mapping[str, Tensor]) -> Mask:
    """As many parameters of every tensor, those with the smallest s."""
    found = {}
    for name, m in mask.items():
        order = s[name].flatten().argsort()
        found[name] = torch.zeros(m.numel(), dtype=torch.bool).index_fill(0, order[: int(m.sum())], True).view(m.shape)
    return found


@torch.no_grad()
def accuracies(net: nn.Module, test: Mapping[str, tuple[Tensor, Tensor]]) -> dict[str, float]:
    net.eval()
    return {name: 100 * float((net(x).argmax(1) == y).float().mean()) for name, (x, y) in test.items()}


def one_seed(target: str, seed: int, steps: int, more: int) -> tuple[dict[str, dict[str, float]], str]:
    """Accuracy by arm and domain, and what was measured."""
    data, test = images(target, seed)
    torch.manual_seed(seed)
    features = SmallCNN(width=32)
    net = train(Network(features, nn.Linear(features.width, 10)), data, range(steps))
    profile = dspreg.measure(net, data.samples(steps, 16), key=seed)
    masks = {"c": profile.mask(quantile=0.9)}
    masks["random"] = at_random(masks["c"], seed)
    later = range(steps, steps + more)
    nets = {"trained": net, "all free": train(copy.deepcopy(net), data, later)}
    nets["cut s"] = cut(copy.deepcopy(net), least_sensitive(masks["c"], profile.mean))
    for name, mask in masks.items():
        nets[f"cut {name}"] = cut(copy.deepcopy(net), mask)
        nets[f"hold {name}"] = train(copy.deepcopy(net), data, later, mask)
    chosen = sum(int(m.sum()) for m in masks["c"].values())
    held = sum(float(profile.mean[name][m].sum()) for name, m in masks["c"].items()) / float(profile.mean.sum())
    c, null = (float(profile.over_alive(v).mean()) for v in (profile.c, profile.null))
    size = profile.c.numel()
    return (
        {arm: accuracies(nets[arm], test) for arm in ARMS},
        f"seed {seed}: {chosen:,} of {size:,} parameters; mean c {c:.2f}, null {null:.2f}, "
        f"reliability {profile.reliability:.2f}; {held:.1%} of all sensitivity is theirs",
    )


def sentence(found: list[dict[str, dict[str, float]]], one: str, other: str, domains: list[str]) -> str:
    """The difference between two arms in points, over these domains, seed by seed."""
    each = [sum(arms[one][d] - arms[other][d] for d in domains) / len(domains) for arms in found]
    above, below = sum(x > 0 for x in each), sum(x < 0 for x in each)
    where = domains[0] if len(domains) == 1 else "the sources"
    mean, least, most = (f"{round(x, 1) + 0.0:+.1f}" for x in (sum(each) / len(each), min(each), max(each)))
    verdict = f"higher for {above} of {len(each)} seeds, lower for {below}"
    if len(each) not in (above, below):
        verdict += ": which is better is open"
    return f"{ARMS[one]}, against {ARMS[other]}, on {where}: {mean} ({least} to {most}), {verdict}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", choices=Digits.domains, default="handwritten", help="the domain never trained on")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=120, help="of training")
    parser.add_argument("--more", type=int, default=50, help="steps of going on")
    options = parser.parse_args()
    warnings.simplefilter("ignore", dspreg.Notice)
    started, found = time.perf_counter(), []
    for seed in range(options.seeds):
        arms, says = one_seed(options.target, seed, options.steps, options.more)
        found.append(arms)
        print(says, flush=True)
    domains = list(found[0]["trained"])
    print(f"\n{'accuracy in %, mean over seeds':32}", *(f"{d:>11}" for d in domains))
    for arm, name in ARMS.items():
        means = [sum(arms[arm][d] for arms in found) / len(found) for d in domains]
        print(f"{name:32}", *(f"{mean:11.1f}" for mean in means))
    print()
    print(f"{domains[-1]} was never trained on. In points of accuracy, mean over {len(found)} seeds (least to most):")
    for one, other in (
        ("cut c", "cut random"),
        ("cut s", "cut random"),
        ("cut c", "cut s"),
        ("hold c", "hold random"),
        ("hold c", "all free"),
    ):
        for where in (domains[-1:], domains[:-1]):
            print(f"- {sentence(found, one, other, where)}")
    print(f"One network, one target, {len(found)} seeds: nothing here is about other networks. ", end="")
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
