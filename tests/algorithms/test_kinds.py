"""Tasks of several labels and of numbers: losses, methods, c and the Gauss-Newton matrix, against plain derivations."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from dspreg import ConfigError, DSPReg, Task, parse
from dspreg.algorithms import IRM, Fishr
from dspreg.algorithms.fishr import head_gradients
from dspreg.algorithms.irm import slope
from dspreg.algorithms.measure import profile_stack
from dspreg.algorithms.registry import algorithms
from dspreg.batches import Batch, Outputs, loss_slopes, sample_losses
from dspreg.penalty.tangent import StackTangent
from dspreg.testing import ready, toy_batches, toy_task
from dspreg.training import train_step
from dspreg.vectors import ParamVector, theta, trainable
from helpers.stacking import ACTING

KINDS = ("multilabel", "regression")
NEED_CLASSES = {
    "CAD", "CondCAD", "DomainDrop", "EWC", "GMDG", "RSC", "RandConv", "SagNet",
}  # fmt: skip
IMAGE = (3, 6, 6)


def relabelled(batch, kind):
    y = batch.x.flatten(1)[:, :3]
    return Batch(batch.x, (y > 0.3).double() if kind == "multilabel" else y, batch.domain)


def task_of(kind, inputs=5, **options):
    task = toy_task(inputs=inputs, **options)

    def samples(t, n):
        return {name: [relabelled(b, kind) for b in each] for name, each in task.samples(t, n).items()}

    return replace(task, kind=kind, samples=samples)


def batches_of(kind, t=0, inputs=5):
    return [relabelled(b, kind) for b in toy_batches(t, inputs=inputs)]


def outputs_and_labels(kind):
    random = torch.Generator().manual_seed(0)
    z = torch.randn(6, 4, generator=random, dtype=torch.float64)
    y = torch.rand(6, 4, generator=random, dtype=torch.float64)
    return z, (y > 0.5).double() if kind == "multilabel" else y


def loss_by_hand(kind, z, y):
    """Of all samples and outputs, as torch's own losses have it by default."""
    return F.binary_cross_entropy(z.sigmoid(), y) if kind == "multilabel" else ((z - y) ** 2).sum() / z.numel()


@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_of_the_losses_of_samples_is_torchs(kind):
    z, y = outputs_and_labels(kind)
    found = sample_losses(kind, z, y)
    assert found.shape == (6,)
    torch.testing.assert_close(found.mean(), loss_by_hand(kind, z, y))
    for i in range(6):
        torch.testing.assert_close(found[i], loss_by_hand(kind, z[i : i + 1], y[i : i + 1]))


@pytest.mark.parametrize("kind", ["classes", *KINDS])
def test_slopes_are_those_of_autograd(kind):
    z, y = outputs_and_labels(kind)
    if kind == "classes":
        y = torch.tensor([0, 1, 2, 3, 0, 1])
    z.requires_grad_()
    expected = torch.autograd.grad(sample_losses(kind, z, y).sum(), z)[0]
    torch.testing.assert_close(loss_slopes(kind, z, y), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_another_shape_are_refused_and_not_broadcast(kind):
    with pytest.raises(ValueError, match="wanted the same shape"):
        sample_losses(kind, torch.zeros(3, 1), torch.zeros(3))


@pytest.mark.parametrize("kind", KINDS)
def test_erm_steps_along_the_gradient_of_the_plain_loss(kind):
    stack = ready(parse("ERM"), task_of(kind, dropout=0.0), lambda p: torch.optim.SGD(p, lr=0.1))
    before, batches = theta(stack.net), batches_of(kind)
    z = stack.net(torch.cat([b.x for b in batches]))
    expected = torch.autograd.grad(loss_by_hand(kind, z, torch.cat([b.y for b in batches])), stack.net.parameters())
    train_step(stack, batches)
    for (name, now), g in zip(theta(stack.net).items(), expected, strict=True):
        torch.testing.assert_close(now, before[name] - 0.1 * g)


@pytest.mark.parametrize("name", sorted(algorithms()))
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_trains_or_refuses_by_name(name, kind):
    """On images, which all networks of methods take; the loss that ERM below each sees is that of the kind."""
    refused = NEED_CLASSES | ({"SD"} if kind == "regression" else set())
    algorithm = parse(ACTING.get(name, name))
    if name in refused:
        with pytest.raises(ConfigError, match=f"{name}.* needs classes.*{kind!r}.*Leave {name} out"):
            ready(algorithm, task_of(kind, IMAGE))
        return
    stack = ready(algorithm, task_of(kind, IMAGE))
    before = theta(stack.net)
    for t in range(2):
        log = train_step(stack, batches_of(kind, t, IMAGE))
        assert log["loss"].isfinite()
    assert float((theta(stack.net) - before).norm()) > 0


@pytest.mark.parametrize("spec", ["DSPReg(of='fisher')", "Anchor(of='fisher')"])
def test_labels_drawn_from_a_softmax_need_classes(spec):
    with pytest.raises(ConfigError, match=r"with of='fisher' needs classes"):
        ready(parse(spec), task_of("regression"))


def test_a_task_of_an_unknown_kind_is_refused():
    with pytest.raises(ConfigError, match="kind='ranking'"):
        Task(3, ("a",), 1, lambda: None, kind="ranking")


@pytest.mark.parametrize("kind", KINDS)
def test_irms_slope_is_that_of_scaled_outputs(kind):
    z, y = outputs_and_labels(kind)
    s = torch.ones(6, 1, dtype=torch.float64, requires_grad=True)
    expected = torch.autograd.grad(sample_losses(kind, s * z, y).sum(), s)[0][:, 0]
    torch.testing.assert_close(slope(z, y, kind), expected)
    stack = ready(IRM(weight=2.0, warmup=0), task_of(kind, dropout=0.0))
    batches = batches_of(kind)
    out = stack(batches)
    products = [p[::2].mean() * p[1::2].mean() for p in out.by_domain(slope(out.logits, out.labels, kind))]
    expected = loss_by_hand(kind, out.logits, out.labels) + stack.weight_now * torch.stack(products).mean()
    torch.testing.assert_close(stack.loss(out), expected)


@pytest.mark.parametrize("kind", KINDS)
def test_fishrs_gradients_are_those_of_the_classifier_sample_by_sample(kind):
    stack = ready(Fishr(), task_of(kind, dropout=0.0))
    out = stack(batches_of(kind))
    found, head = head_gradients(out), stack.net.classifier
    for i in range(len(out.labels)):
        z = head(out.features[i : i + 1].detach())
        weight, bias = torch.autograd.grad(
            sample_losses(kind, z, out.labels[i : i + 1]).sum(), (head.weight, head.bias)
        )
        torch.testing.assert_close(found[i], torch.cat([bias, weight.flatten()]))


@pytest.mark.parametrize("kind", KINDS)
def test_c_is_of_the_squared_gradients_of_each_samples_own_loss(kind):
    stack = ready(DSPReg(measure_batches=2), task_of(kind, dropout=0.0))
    profile = profile_stack(stack)
    params = trainable(stack.net)
    for domain, batches in stack.task.samples(stack.t, 2).items():
        expected = {name: torch.zeros_like(p) for name, p in params.items()}
        x, y = (torch.cat([getattr(b, each) for b in batches]) for each in "xy")
        for i in range(len(x)):
            loss = loss_by_hand(kind, stack.net(x[i : i + 1]), y[i : i + 1])
            for name, g in zip(params, torch.autograd.grad(loss, params.values()), strict=True):
                expected[name] += g.detach() ** 2 / len(x)
        for name, s in expected.items():
            torch.testing.assert_close(profile.s[domain][name], s)


def curvature(kind, z, y, share):
    """Λ of a mean over samples, in closed form: a matrix (C, C) per sample. `share` is 1/N."""
    outputs = z.shape[1]
    if kind == "classes":
        p = z.softmax(1)
        return share * (torch.diag_embed(p) - p[:, :, None] * p[:, None])
    if kind == "multilabel":
        p = z.sigmoid()
        return torch.diag_embed(share * p * (1 - p) / outputs)
    return torch.diag_embed(torch.full_like(z, share * 2 / outputs))


@pytest.mark.parametrize("kind", ["classes", *KINDS])
def test_gauss_newtons_product_has_each_losss_own_curvature(kind):
    """G v = Jᵀ Λ J v with an explicit Jacobian and Λ in closed form, and not with that of another loss."""
    stack = ready(parse("ERM"), toy_task(dropout=0.0) if kind == "classes" else task_of(kind, dropout=0.0))
    batches = toy_batches(0) if kind == "classes" else batches_of(kind)
    x, y = torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches])
    seen = {}

    def remember(algorithm, *_):
        seen["objective"] = algorithm

    stack.gradient = lambda objective, b, below=stack.gradient: (remember(objective), below(objective, b))[1]
    start = {name: p.detach().clone() for name, p in trainable(stack.net).items()}
    train_step(stack, batches)
    with torch.no_grad():
        for name, p in trainable(stack.net).items():
            p.copy_(start[name])
    random = torch.Generator().manual_seed(1)
    v = ParamVector((n, torch.randn(p.shape, generator=random, dtype=torch.float64)) for n, p in start.items())
    found = StackTangent(seen["objective"], batches, stack.net).product(v)

    def f(params):
        return torch.func.functional_call(stack.net, params, (x,))

    jacobian = torch.func.jacrev(f)(start)  # name → (N, C, *shape)
    flat = torch.cat([j.flatten(2) for j in jacobian.values()], 2)
    direction = torch.cat([v[name].flatten() for name in jacobian])
    expected = torch.zeros_like(direction)
    for own, lam in zip(flat, curvature(kind, f(start).detach(), y, 1 / len(x)), strict=True):
        expected += own.T @ (lam @ (own @ direction))
    torch.testing.assert_close(torch.cat([found[name].flatten() for name in jacobian]), expected, rtol=1e-5, atol=1e-7)
    for other in {"classes", *KINDS} - {kind}:
        wrong = torch.zeros_like(direction)
        for own, lam in zip(flat, curvature(other, f(start).detach(), y, 1 / len(x)), strict=True):
            wrong += own.T @ (lam @ (own @ direction))
        assert float((wrong - expected).norm() / expected.norm()) > 0.01


def test_outputs_of_another_kind_keep_it_through_replace():
    z, y = outputs_and_labels("regression")
    batches = [Batch(z[:2], y[:2], 0), Batch(z[2:], y[2:], 1)]
    out = Outputs.of(batches, z, z, "regression").replace(weights=torch.ones(2))
    assert out.kind == "regression"
    torch.testing.assert_close(out.risks()[0], F.mse_loss(z[:2], y[:2]))
