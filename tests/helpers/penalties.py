"""Small problems with an explicit Hessian, for engines to be compared on."""

import torch
import torch.nn.functional as F
from torch import nn

from dspreg import ParamVector
from dspreg.penalty import Memory, Penalised, Step
from dspreg.vectors import gradient, trainable
from reference.penalty import Flat


def below(objective, batches):
    loss = objective(batches)
    return loss.detach(), gradient(loss, below.net)


class Problem:
    """A small smooth network, its objective, random c ≥ 0, and the same thing as a flat function."""

    def __init__(self, weight=1e-3, net=None, loss=None, seed=0):
        torch.manual_seed(seed)
        self.net = net or nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
        x, y = torch.randn(12, 4, dtype=torch.float64), torch.randint(3, (12,))

        def cross_entropy(params):
            return F.cross_entropy(torch.func.functional_call(self.net, params, x.to(params["0.weight"].dtype)), y)

        self.loss = loss or cross_entropy
        self.flat = Flat(self.net, self.loss)
        self.c = torch.rand_like(self.flat.theta) * 1.4
        self.weight, self.memory = weight, Memory()

    def run(self, engine, dtype=torch.float64):
        """Loss and gradient of one step, flat."""
        below.net = self.net.to(dtype)
        c = ParamVector(self.flat.split(self.c.to(dtype)))
        objective = lambda _: self.loss(trainable(self.net))  # noqa: E731
        result = engine(Step(below, objective, [], self.net, c, self.weight, self.memory))
        flat = ParamVector((n, result.gradient[n]) for n in self.flat.names).flat()
        return result.loss, flat.double()

    def part(self, engine):
        return self.run(engine)[1] - self.flat.gradient(self.flat.theta)

    @property
    def target(self):
        """2λ H (c ⊙ g)."""
        g = self.flat.gradient(self.flat.theta)
        return 2 * self.weight * self.flat.hessian(self.flat.theta) @ (self.c * g)


def quadratic(weight=1e-2, size=6, seed=1):
    """L = ½ θᵀAθ − bᵀθ: the Hessian is A everywhere."""
    torch.manual_seed(seed)
    root = torch.randn(size, size, dtype=torch.float64)
    a, b = root @ root.T / size, torch.randn(size, dtype=torch.float64)
    net = nn.Module()
    net.theta = nn.Parameter(torch.randn(size, dtype=torch.float64))
    problem = Problem(weight, net, lambda p: 0.5 * p["theta"] @ a @ p["theta"] - b @ p["theta"], seed)
    problem.a = a
    return problem


def relative(difference, to):
    return float(difference.norm() / to.norm())


def mutant(step):
    """The engine that forgets the penalty."""
    loss, g = step.gradient()
    return Penalised(loss, g, g)


def settle(problem, engine, steps=400):
    """The same step again and again, at fixed θ and batch."""
    for _ in range(steps):
        _, g = problem.run(engine)
        problem.memory.commit()
    return g
