"""The penalised gradient from an explicit Hessian, one entry at a time. Flat vectors, no shared code."""

import torch


class Flat:
    """A function of one flat parameter vector: loss, gradient and Hessian by autograd on it."""

    def __init__(self, net, loss):
        """`loss(parameters by name)` → scalar."""
        self.names = [n for n, p in net.named_parameters() if p.requires_grad]
        self.shapes = [dict(net.named_parameters())[n].shape for n in self.names]
        self.theta = torch.cat([dict(net.named_parameters())[n].detach().reshape(-1) for n in self.names])
        self._loss = loss

    def split(self, flat):
        parts = flat.split([s.numel() for s in self.shapes])
        return {n: part.view(s) for n, s, part in zip(self.names, self.shapes, parts, strict=True)}

    def loss(self, theta):
        return self._loss(self.split(theta))

    def gradient(self, theta):
        theta = theta.detach().clone().requires_grad_()
        return torch.autograd.grad(self.loss(theta), theta)[0]

    def hessian(self, theta):
        theta = theta.detach().clone().requires_grad_()
        g = torch.autograd.grad(self.loss(theta), theta, create_graph=True)[0]
        return torch.stack([torch.autograd.grad(one, theta, retain_graph=True)[0] for one in g])

    def penalised(self, theta, c, weight):
        """∇(L + λ Σ c_k g_k²) = g + 2λ H (c ⊙ g)."""
        g = self.gradient(theta)
        return g + 2 * weight * self.hessian(theta) @ (c * g)
