"""The paper's sensitivity theory, checkable on small networks: Jacobians, propagated covariances, Fisher diagonals.

Everything here forms J_θ in full, d_y · d_θ numbers per input, which suits networks of a few thousand parameters; for
real ones there is `dspreg.measure`. Which of the paper's statements hold is in docs/understand/theory.md.

Letters: d_x, d_y, d_θ numbers of inputs, outputs and parameters; B inputs; θ the trainable parameters one after
another, in the order of `named_parameters`; j_k = ∂_k f(x) the k-th column of J_θ. Modules must be in evaluation mode
and treat the samples of a batch separately.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap


def jacobians(f: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """J_x = ∂f/∂x (d_y, d_x) and J_θ = ∂f/∂θ (d_y, d_θ) at one input.

    They linearise f at (x, θ): δy = J_x δx + J_θ δθ + O(‖δx‖² + ‖δθ‖²) if f is twice differentiable there.

    Args:
        f: Maps (1, …) to (1, …); outputs of any shape are flattened to d_y numbers.
        x: One input without batch dimension, flattened to d_x numbers in the result.

    See eq. 1–4 of the paper.
    """
    theta, output = _as_function(f)
    j_x, j_theta = jacrev(output, argnums=(0, 1))(x.detach(), theta)
    return j_x.flatten(1), j_theta


def parameter_jacobians(f: nn.Module, xs: Tensor) -> Tensor:
    """J_θ(x_i) for each of B inputs. (B, …) → (B, d_y, d_θ)"""
    theta, output = _as_function(f)
    stacked: Tensor = vmap(jacrev(output, argnums=1), in_dims=(0, None))(xs.detach(), theta)
    return stacked


def covariance_propagation(
    f: nn.Module, x: Tensor, sigma_x: Tensor, sigma_theta: Tensor, sigma_x_theta: Tensor | None = None
) -> Tensor:
    """The covariance of the output for small perturbations of x and θ.

        Cov(δy) ≈ J_x Σ_x J_xᵀ + J_θ Σ_θ J_θᵀ + J_x Σ_xθ J_θᵀ + J_θ Σ_xθᵀ J_xᵀ

    For centred perturbations of any distribution with second moments; the relative error vanishes with their size.

    Args:
        sigma_x: Cov(δx), (d_x, d_x), or its diagonal (d_x,).
        sigma_theta: Cov(δθ), (d_θ, d_θ), or its diagonal (d_θ,).
        sigma_x_theta: Cov(δx, δθ), (d_x, d_θ). Without it x and θ are uncorrelated, as in Theorem 1.

    Returns:
        (d_y, d_y), in squared units of the output.

    See Theorem 1 and, for the cross terms, "Relaxing Assumptions" in the paper.
    """
    j_x, j_theta = jacobians(f, x)
    cov = _times(j_x, sigma_x, "sigma_x") @ j_x.T + _times(j_theta, sigma_theta, "sigma_theta") @ j_theta.T
    if sigma_x_theta is None:
        return cov
    if sigma_x_theta.shape != (wanted := (j_x.shape[1], j_theta.shape[1])):
        raise ValueError(f"sigma_x_theta has shape {tuple(sigma_x_theta.shape)}; wanted (d_x, d_θ) = {wanted}")
    cross = j_x @ sigma_x_theta @ j_theta.T
    return cov + cross + cross.T


def contributions(f: nn.Module, x: Tensor, variance: Tensor) -> Tensor:
    """The contribution of each parameter to the total output variance at one input: Var(θ_k) ‖j_k(x)‖².

    Their sum is Tr(J_θ Σ_θ J_θᵀ) for Σ_θ = diag(variance). Invariant under orthogonal maps of the outputs.

    Args:
        x: One input without batch dimension.
        variance: Var(θ_k), (d_θ,).

    Returns:
        (d_θ,), the paper's δ_v_k(x) (after eq. 11). Its mean over inputs is s_k: `shared_contributions`.
    """
    _, j_theta = jacobians(f, x)
    if variance.shape != (wanted := j_theta.shape[1:]):
        raise ValueError(f"variance has shape {tuple(variance.shape)}; wanted (d_θ,) = {tuple(wanted)}")
    return variance * j_theta.square().sum(0)


def shared_contributions(f: nn.Module, xs: Tensor, sigma_theta: Tensor) -> Tensor:
    """The share of each parameter in the mean output variance, with covariances split evenly between the two.

        s_k = Σ_ℓ Cov(θ_k, θ_ℓ) · 1/B Σ_i ⟨j_k(x_i), j_ℓ(x_i)⟩

    The shares sum to the mean of Tr(J_θ Σ_θ J_θᵀ). For a diagonal Σ_θ this is the paper's s_k = Var(θ_k) E‖j_k‖²
    (eq. 12, 18 and 32), which is never negative; with covariances a share may be.

    Args:
        xs: Inputs of one domain, (B, …).
        sigma_theta: Cov(θ), (d_θ, d_θ), or its diagonal (d_θ,).

    Returns:
        (d_θ,)
    """
    j = parameter_jacobians(f, xs)
    return (j * _times(j, sigma_theta, "sigma_theta")).sum(1).mean(0)


def off_diagonal_bound(f: nn.Module, xs: Tensor, sigma_theta: Tensor) -> Tensor:
    """A bound on how far covariances between parameters can move a share from its diagonal part.

        |s_k − Var(θ_k) E‖j_k‖²| ≤ Σ_{ℓ≠k} |Cov(θ_k, θ_ℓ)| E|⟨j_k, j_ℓ⟩|        s_k as in `shared_contributions`

    Args:
        xs: Inputs of one domain, (B, …).
        sigma_theta: Cov(θ), (d_θ, d_θ).

    Returns:
        The right side, (d_θ,). See eq. 34 of the paper, whose s_k has no off-diagonal part to bound.
    """
    j = parameter_jacobians(f, xs)
    if sigma_theta.shape != (wanted := (j.shape[2], j.shape[2])):
        raise ValueError(f"sigma_theta has shape {tuple(sigma_theta.shape)}; wanted (d_θ, d_θ) = {wanted}")
    inner = torch.einsum("iak,ial->ikl", j, j).abs().mean(0)  # E|⟨j_k, j_ℓ⟩|
    return ((sigma_theta - sigma_theta.diag().diag()).abs() * inner).sum(1)


def softmax_score(logits: Tensor, labels: Tensor) -> Tensor:
    """T = ∂ log p(y|x) / ∂f = onehot(y) − softmax(f). Logits (B, C), labels (B,) → (B, C). A vector, not a scalar."""
    probabilities = logits.detach().softmax(1)
    return nn.functional.one_hot(labels, logits.shape[1]).to(probabilities) - probabilities


def fisher_diagonal(f: nn.Module, xs: Tensor, score: Tensor) -> Tensor:
    """The diagonal of the Fisher matrix on samples (x_i, y_i), for outputs of any dimension.

        I_kk = 1/B Σ_i Σ_ab T_ia T_ib ∂_k f_a(x_i) ∂_k f_b(x_i) = 1/B Σ_i ⟨T_i, j_k(x_i)⟩²

    With labels from the data this is the "empirical" Fisher, the mean squared per-sample gradient of the loss; with
    labels drawn from the model, the Fisher information itself.

    Args:
        xs: (B, …).
        score: T_i = ∂ log p(y_i|x_i) / ∂f, (B, d_y): `softmax_score`, or (y − f)/σ² for Gaussian regression.

    Returns:
        (d_θ,). See eq. 13 of the paper.
    """
    j = parameter_jacobians(f, xs)
    return torch.einsum("ia,iak->ik", _check_score(score, j), j).square().mean(0)


def factorised_fisher_diagonal(f: nn.Module, xs: Tensor, score: Tensor) -> Tensor:
    """The paper's form, E‖T‖² · E‖j_k‖², with the arguments of `fisher_diagonal`.

    Equal to it when d_y = 1 and T² is uncorrelated with j_k². For d_y > 1 it ignores the angle between T and j_k and
    is in general wrong, by a factor that differs between parameters. See the proof of Theorem 2.
    """
    j = parameter_jacobians(f, xs)
    return _check_score(score, j).square().sum(1).mean() * j.square().sum(1).mean(0)


def _as_function(f: nn.Module) -> tuple[Tensor, Callable[[Tensor, Tensor], Tensor]]:
    """θ (d_θ,) and the function (x, θ) ↦ f_θ(x) (d_y,) of one input. Frozen parameters stay inside f."""
    params = {name: p.detach() for name, p in f.named_parameters() if p.requires_grad}
    if not params:
        raise ValueError(f"{type(f).__name__} has no trainable parameters; set requires_grad on those to differentiate")
    sizes = [p.numel() for p in params.values()]

    def output(x: Tensor, theta: Tensor) -> Tensor:
        parts = zip(params.items(), torch.split(theta, sizes), strict=True)
        y: Tensor = functional_call(f, {name: part.view_as(p) for (name, p), part in parts}, (x[None],))
        return y.flatten()

    return torch.cat([p.flatten() for p in params.values()]), output


def _times(j: Tensor, sigma: Tensor, name: str) -> Tensor:
    """J Σ for J (…, d_y, n) and Σ (n, n), or its diagonal (n,) without forming the matrix."""
    n = j.shape[-1]
    if sigma.shape == (n,):
        return j * sigma
    if sigma.shape == (n, n):
        return j @ sigma
    raise ValueError(f"{name} has shape {tuple(sigma.shape)}; wanted ({n}, {n}), or ({n},) for its diagonal")


def _check_score(score: Tensor, j: Tensor) -> Tensor:
    """Refuse a score of another shape, which would broadcast silently: (B, 1) is the paper's scalar T."""
    if score.shape != (wanted := j.shape[:2]):
        raise ValueError(f"score has shape {tuple(score.shape)}; wanted (B, d_y) = {tuple(wanted)}")
    return score
