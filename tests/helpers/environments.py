"""The penalty part in every environment a training loop may be in, beside a plain float64 computation of it.

What is compared is what `Penalty` added to `.grad` less the plain gradient in float64: the penalty part alone, so that
an environment in which the penalty is lost has error 1. Nothing here uses the engines' code for its targets.
"""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from contextlib import nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dspreg

WEIGHT = 1e-2
LATER = {
    "momentum": 2,
    "lazy(2)": 2,
    "lazy(2, exact)": 2,
    "lazy(2, gauss_newton)": 2,
}  # calls until an engine adds its penalty part


class Attention(nn.Module):
    """One block with torch's fused attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv, self.head = nn.Linear(5, 8), nn.Linear(8, 24), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(torch.tanh(self.embed(x.flatten(0, 1).reshape(len(x), -1, 5)))).chunk(3, -1)
        out = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None])
        return self.head(out[:, 0].mean(1))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)
    ),
    "smooth": lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(36, 3)),
    "attention": Attention,
}


class Problem:
    """A network, a batch and c, in float64, and what the penalty part is there."""

    def __init__(self, network: str = "batch norm", seed: int = 0):
        torch.manual_seed(seed)
        self.net = NETWORKS[network]().double()
        self.x, self.y = torch.randn(12, 2, 5, 5, dtype=torch.float64), torch.randint(3, (12,))
        self.c = {n: torch.rand_like(p.detach()) * 1.4 for n, p in self.net.named_parameters()}
        self.g = self.gradient()

    def on(self, x: Tensor, y: Tensor) -> Problem:
        """The same network and c on other samples."""
        other = copy.copy(self)
        other.x, other.y = x, y
        other.g = other.gradient()
        return other

    def gradient(self, displacement: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        net = copy.deepcopy(self.net)
        with torch.no_grad():
            for name, p in net.named_parameters():
                p += 0 if displacement is None else displacement[name]
        F.cross_entropy(net(self.x), self.y).backward()
        return {n: p.grad for n, p in net.named_parameters()}

    def target(self, engine: str) -> Tensor:
        """2λH(c⊙g), or the gradient's change on the way along 2λ c⊙g; for `lazy(2)` twice that."""
        times = 2 if engine.startswith("lazy") else 1
        if "exact" in engine or engine == "finite_difference":
            return times * flat(self.curved())
        if "gauss_newton" in engine:
            return times * flat(self.linearised())
        ahead = self.gradient({n: 2 * WEIGHT * self.c[n] * self.g[n] for n in self.g})
        return times * (flat(ahead) - flat(self.g))

    def curved(self) -> dict[str, Tensor]:
        """2λH(c⊙g) by a central difference of tiny width: no second derivative, and no code of ours."""
        h = 1e-4
        along = {n: self.c[n] * self.g[n] for n in self.g}
        ends = [self.gradient({n: sign * h * v for n, v in along.items()}) for sign in (1, -1)]
        return {n: WEIGHT * (ends[0][n] - ends[1][n]) / h for n in self.g}

    def linearised(self) -> dict[str, Tensor]:
        """2λJᵀΛJ(c⊙g): J v by a central difference, Λ of the mean cross-entropy by its formula."""
        ends = []
        for h in (1e-5, -1e-5):
            net = copy.deepcopy(self.net)
            with torch.no_grad():
                for name, p in net.named_parameters():
                    p += h * self.c[name] * self.g[name]
                ends.append(net(self.x))
        change, net = (ends[0] - ends[1]) / 2e-5, copy.deepcopy(self.net)
        logits = net(self.x)
        p = logits.detach().softmax(1)
        cotangent = (p * change - p * (p * change).sum(1, keepdim=True)) / len(p)
        logits.backward(2 * WEIGHT * cotangent)
        return {n: p.grad for n, p in net.named_parameters()}

    def part(
        self, model: nn.Module, penalty: dspreg.Penalty, backward: Callable[[], object], scale: float = 1
    ) -> Tensor:
        """What the last of the calls that an engine needs has added to `.grad`, less g."""
        for _ in range(LATER.get(penalty.engine, 1)):
            model.zero_grad()
            backward()
        grads = [p.grad.double() / scale for p in model.parameters()]
        return torch.cat([g.reshape(-1) for g in grads]) - flat(self.g)


def both(model: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Loss and logits, as a closure returns them."""
    logits = model(x)
    return F.cross_entropy(logits, y), logits


def scaled_by(factor: float, result: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return result[0] * factor, result[1]


def flat(vector: dict[str, Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in vector.values()])


def likeness(part: Tensor, target: Tensor) -> tuple[float, float]:
    """Relative error, and cosine."""
    return float((part - target).norm() / target.norm()), float(F.cosine_similarity(part, target, 0))


def plain(
    engine: str,
    dtype: torch.dtype = torch.float32,
    network: str = "batch norm",
    layout: torch.memory_format = torch.contiguous_format,
) -> tuple[Tensor, Tensor]:
    problem = Problem(network)
    model = copy.deepcopy(problem.net).to(dtype).to(memory_format=layout)
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)
    penalty.coefficients = problem.c
    x = problem.x.to(dtype).contiguous(memory_format=layout)
    part = problem.part(model, penalty, lambda: penalty.backward(lambda: both(model, x, problem.y)))
    return part, problem.target(engine)


def in_parts(engine: str) -> tuple[Tensor, Tensor]:
    """Three micro-batches of different sizes."""
    problem = Problem("smooth")
    model = copy.deepcopy(problem.net)
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)
    penalty.coefficients = problem.c
    pieces = list(zip(problem.x.split([5, 4, 3]), problem.y.split([5, 4, 3]), strict=True))
    closures = [lambda x=x, y=y: scaled_by(len(x) / 12, both(model, x, y)) for x, y in pieces]
    return problem.part(model, penalty, lambda: penalty.backward(closures)), problem.target(engine)


def compiled(engine: str, backend: str, half: bool = False) -> tuple[Tensor, Tensor]:
    problem = Problem()
    own = copy.deepcopy(problem.net).float()
    torch._dynamo.reset()
    model = torch.compile(own, backend=backend)
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)
    penalty.coefficients = problem.c
    x = problem.x.float()

    def closure() -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            return both(model, x, problem.y)

    return problem.part(own, penalty, lambda: penalty.backward(closure)), problem.target(engine)


def autocast(engine: str, where: str) -> tuple[Tensor, Tensor]:
    """bfloat16, entered inside the closure or around the call."""
    problem = Problem()
    model = copy.deepcopy(problem.net).float()
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)
    penalty.coefficients = problem.c
    x = problem.x.float()

    def entered(here: str) -> torch.autocast | nullcontext:
        return torch.autocast("cpu", torch.bfloat16) if here == where else nullcontext()

    def closure() -> tuple[Tensor, Tensor]:
        with entered("inside"):
            return both(model, x, problem.y)

    def backward() -> None:
        with entered("around"):
            penalty.backward(closure)

    return problem.part(model, penalty, backward), problem.target(engine)


def scaled(engine: str) -> tuple[Tensor, Tensor]:
    """With a GradScaler and autocast."""
    problem = Problem()
    model = copy.deepcopy(problem.net).float()
    penalty = dspreg.Penalty(model, weight=WEIGHT, engine=engine)
    penalty.coefficients = problem.c
    scaler, x = torch.amp.GradScaler("cpu", init_scale=2.0**12), problem.x.float()

    def closure() -> tuple[Tensor, Tensor]:
        with torch.autocast("cpu", torch.bfloat16):
            return both(model, x, problem.y)

    part = problem.part(model, penalty, lambda: penalty.backward(closure, scaler=scaler), scaler.get_scale())
    return part, problem.target(engine)


FIRST = ("lookahead", "momentum", "lazy(2)")
EVERY = ("exact", "finite_difference", *FIRST, "lazy(2, exact)")
LINEARISED = ("gauss_newton", "lazy(2, gauss_newton)")  # these need closures that return logits too
ALL = (*EVERY, *LINEARISED)
ENVIRONMENTS: dict[str, tuple[Callable[[str], tuple[Tensor, Tensor]], tuple[str, ...], float]] = {
    # name: how, engines, and the relative error that float32's rounding, or what `curved` leaves, may make
    "float64": (lambda e: plain(e, torch.float64), ALL, 1e-6),
    "float32": (plain, ALL, 1e-3),
    "micro-batches, float64": (in_parts, ALL, 1e-6),
    "torch.compile, aot_eager": (lambda e: compiled(e, "aot_eager"), (*FIRST, *LINEARISED), 1e-3),
    "torch.compile, inductor": (lambda e: compiled(e, "inductor"), (*FIRST, *LINEARISED), 1e-3),
    "aot_eager and bf16 autocast": (lambda e: compiled(e, "aot_eager", half=True), (*FIRST, *LINEARISED), 1e-3),
    "bf16 autocast in the closure": (lambda e: autocast(e, "inside"), ALL, 1e-3),
    "bf16 autocast around": (lambda e: autocast(e, "around"), ALL, 1e-3),
    "GradScaler": (scaled, ALL, 1e-3),
    "channels last": (lambda e: plain(e, layout=torch.channels_last), ALL, 1e-3),
    "fused attention": (lambda e: plain(e, network="attention"), ALL, 1e-3),
}
COMPILER = shutil.which("g++") or shutil.which("clang++")
