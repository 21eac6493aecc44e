"""G = JᵀΛJ and what it lacks of the Hessian, as dense matrices: J row by row, Λ of softmax by its formula."""

import torch

from reference.penalty import Flat


class Dense:
    """Mean cross-entropy of a network, sample i counting `weights[i]`, as a function of one flat vector.

    Args:
        net: For the names and values of its parameters.
        outputs: `outputs(parameters by name)` → logits (N, C).
        labels: (N,), or (N, C) soft ones.
        weights: (N,), with sum 1; by default all the same.
    """

    def __init__(self, net, outputs, labels, weights=None):
        self._outputs = outputs
        with torch.no_grad():
            n, classes = outputs(dict(net.named_parameters())).shape
        soft = labels.ndim == 2
        self.y = labels.double() if soft else torch.nn.functional.one_hot(labels, classes).double()
        self.w = torch.full((n,), 1 / n, dtype=torch.float64) if weights is None else weights.double()
        self.flat = Flat(net, lambda params: self.loss_of(outputs(params)))

    def loss_of(self, z):
        return (self.w * (z.logsumexp(1) * self.y.sum(1) - (z * self.y).sum(1))).sum()

    def logits(self, theta):
        return self._outputs(self.flat.split(theta))

    def jacobian(self):
        """(N·C, P)"""
        theta = self.flat.theta.clone().requires_grad_()
        z = self.logits(theta).reshape(-1)
        return torch.stack([torch.autograd.grad(one, theta, retain_graph=True)[0] for one in z])

    def curvature_of_the_loss(self):
        """Λ, (N·C, N·C): blocks w_i (diag p − p pᵀ) Σ_c y_ic."""
        p = self.logits(self.flat.theta).detach().softmax(1)
        mass = self.w * self.y.sum(1)
        return torch.block_diag(
            *[m * (torch.diag(one) - torch.outer(one, one)) for m, one in zip(mass, p, strict=True)]
        )

    def gauss_newton(self):
        """G, (P, P)"""
        jacobian = self.jacobian()
        return jacobian.T @ self.curvature_of_the_loss() @ jacobian

    def residual(self):
        """Σ_a r_a ∇²f_a, (P, P), r = ∂ℓ/∂f."""
        p = self.logits(self.flat.theta).detach().softmax(1)
        r = self.w[:, None] * (p * self.y.sum(1, keepdim=True) - self.y)
        theta = self.flat.theta.clone().requires_grad_()
        (g,) = torch.autograd.grad((self.logits(theta) * r).sum(), theta, create_graph=True)
        if not g.requires_grad:  # the outputs are linear in θ
            return theta.new_zeros(len(theta), len(theta))
        rows = [torch.autograd.grad(one, theta, retain_graph=True, allow_unused=True)[0] for one in g]
        return torch.stack([torch.zeros_like(theta) if row is None else row for row in rows])

    def gradient(self):
        return self.flat.gradient(self.flat.theta)
