"""Estimators against the definition, on every kind of network `measure` promises to work on."""

import warnings

import pytest
import torch
from torch import nn

import dspreg
from dspreg.sensitivity import estimators
from dspreg.sensitivity.per_sample.accumulator import Accumulator
from dspreg.sensitivity.per_sample.vmap import estimate_by_vmap
from dspreg.sensitivity.samples import Samples
from helpers import problems
from reference.sensitivity import largest_difference, mean_squares, squared_means


def measured(name, **options):
    with warnings.catch_warnings():
        if name in ("lstm", "hidden"):  # torch.func cannot take these: the fallback is tested below
            warnings.simplefilter("ignore", dspreg.Notice)
        return dspreg.measure(problems.model(name), problems.domains(name), **options)


@pytest.mark.parametrize("name", problems.MODELS)
def test_persample_is_the_mean_of_squared_gradients(name):
    profile = measured(name, null=False)
    for domain, items in problems.domains(name).items():
        expected = mean_squares(problems.model(name), items)
        assert largest_difference(profile.s[domain], expected) < 1e-10


@pytest.mark.parametrize("name", ["mlp", "vit", "lstm", "tied", "partly frozen", "keywords"])
def test_loop_is_the_mean_of_squared_gradients(name):
    profile = measured(name, null=False, estimator="loop")
    for domain, items in problems.domains(name).items():
        assert largest_difference(profile.s[domain], mean_squares(problems.model(name), items)) < 1e-10


@pytest.mark.parametrize("name", ["mlp", "lite0", "vit", "lstm", "tied"])
@pytest.mark.parametrize("estimator", ["loop", "persample"])
def test_of_output_sums_the_squares_of_every_output(name, estimator):
    profile = measured(name, null=False, estimator=estimator, of="output")
    for domain, items in problems.domains(name).items():
        assert largest_difference(profile.s[domain], mean_squares(problems.model(name), items, "output")) < 1e-10


@pytest.mark.parametrize("name", ["mlp", "resnet18", "vit", "lstm", "tied", "keywords"])
def test_minibatch_is_the_square_of_the_mean_gradient(name):
    profile = measured(name, null=False, estimator="minibatch")
    for domain, items in problems.domains(name).items():
        assert largest_difference(profile.s[domain], squared_means(problems.model(name), items)) < 1e-10


def test_minibatch_is_another_and_smaller_quantity():
    ours, other = (measured("mlp", null=False, estimator=e) for e in ("persample", "minibatch"))
    assert float(other.mean.sum()) < 0.7 * float(ours.mean.sum())


@pytest.mark.parametrize(("name", "parameter"), [("lstm", "lstm.weight_ih_l0"), ("hidden", "layer.weight")])
def test_what_cannot_be_vectorised_falls_back_to_the_loop_with_one_notice(name, parameter):
    with pytest.warns(dspreg.Notice, match="sample by sample: the same numbers") as caught:
        profile = dspreg.measure(problems.model(name), problems.domains(name), null=False)
    assert len(caught) == 1
    assert profile.s["photo"][parameter].abs().sum() > 0


def test_a_layer_registered_twice_stays_a_layer():
    """torch's own way of tying would leave a dead tensor in it, and the optimiser would never move it again."""
    model = problems.model("alias")
    before = dict(model.named_parameters())
    dspreg.measure(model, problems.domains("alias"))
    assert all(p is before[n] for n, p in model.named_parameters())
    assert isinstance(model.first.weight, nn.Parameter)


@pytest.mark.parametrize("chunk_bytes", [1, 1500, 10**9])
def test_chunks_do_not_change_the_result(chunk_bytes):
    net = problems.model("mlp").eval()
    samples = Samples(*problems.batch("mlp", 0, 7))
    reading = estimators.readings(net, "loss")
    params = dict(net.named_parameters())
    sums = [Accumulator(params, 2), Accumulator(params, 2)]
    for each in sums:
        each.set_weights(torch.tensor([[1.0] * 7, [0.0, 0.5, 0.0, 1.0, 0.0, 0.0, 2.0]], dtype=torch.float64))
    estimators.estimate_by_loop(reading, params, samples, sums[0])
    estimate_by_vmap(reading, params, samples, sums[1], net=net, chunk_bytes=chunk_bytes)
    for row in (0, 1):
        expected, got = (each.mean(row, 7) for each in sums)
        assert largest_difference(got, expected) < 1e-12
        assert float(expected.sum()) > 0


@pytest.mark.parametrize("of", ["loss", "output"])
def test_signed_converges_to_the_loop(of):
    """The error of the mean over n draws falls as 1/√n: χ² has variance 2, so √(2/n) of s where samples are many."""
    domains = problems.domains("mlp", batches=1, size=24)
    model = problems.model("mlp")
    exact = mean_squares(model, domains["photo"], of)
    errors = []
    for draws in (16, 256, 4096):
        with pytest.warns(dspreg.Notice, match="one batch"):
            signed = dspreg.measure(model, domains, estimator="signed", of=of, draws=draws, null=False).s["photo"]
        relative = torch.cat([(signed[n] / exact[n] - 1).reshape(-1) for n in exact])
        errors.append(float(relative.square().mean().sqrt()))
        assert abs(float(relative.mean())) < 4 * (2 / draws) ** 0.5  # unbiased
    assert errors[2] < (2 / 4096) ** 0.5 * 1.1
    assert 2.5 < errors[0] / errors[1] < 6.5  # √16 = 4, from a few dozen correlated numbers
    assert 2.5 < errors[1] / errors[2] < 6.5


def test_fisher_draws_labels_from_the_network_and_tends_to_the_exact_fisher():
    model, (x, _) = problems.model("mlp").eval(), problems.batch("mlp", 0, 4)
    many = x.repeat_interleave(2000, 0)
    domains = {"a": [many], "b": [many + 1]}
    with pytest.warns(dspreg.Notice, match="one batch"):
        fisher = dspreg.measure(model, domains, of="fisher", null=False).s["a"]
    expected = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for i in range(4):  # Σ_y p(y) (∂ log p(y))², all labels weighed by their probability
        for y in range(problems.CLASSES):
            log_p = model(x[i : i + 1]).log_softmax(1)[0, y]
            gradients = torch.autograd.grad(log_p, list(model.parameters()))
            for (n, _), g in zip(model.named_parameters(), gradients, strict=True):
                expected[n] += log_p.exp().detach() * g**2 / 4
    for n, e in expected.items():
        assert (fisher[n] - e).abs().max() < 0.08 * e.max()


def test_every_batch_draws_labels_of_its_own():
    x, _ = problems.batch("mlp", 0, 40)
    twice = dspreg.measure(problems.model("mlp"), {"a": [x, x], "b": [x, x]}, of="fisher")
    assert float(twice.c.flat().max()) > 0.01  # equal images, other labels in each domain
    assert float(twice.c_debiased.flat().mean()) < float(twice.c.flat().mean())


def test_fisher_labels_are_the_same_for_every_estimator():
    ours, loop = (measured("mlp", of="fisher", estimator=e, null=False) for e in ("persample", "loop"))
    assert largest_difference(ours.s["photo"], loop.s["photo"]) < 1e-12


def test_shared_weights_are_summed_before_squaring():
    """f = w·x₁ + w·x₂ has ∂f = x₁ + x₂: squaring the two uses apart would give x₁² + x₂²."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(1, dtype=torch.float64))

        def forward(self, x):
            return (self.w * x[:, :1]) + (self.w * x[:, 1:])

    x = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)
    domains = {"a": [x, x], "b": [2 * x, 2 * x]}
    for estimator in ("loop", "persample"):
        s = dspreg.measure(Shared(), domains, of="output", estimator=estimator).s
        assert s["a"]["w"].item() == pytest.approx((9 + 4) / 2, rel=1e-14)
        assert s["b"]["w"].item() == pytest.approx(4 * (9 + 4) / 2, rel=1e-14)


@pytest.mark.parametrize("estimator", ["loop", "persample", "signed", "minibatch"])
def test_small_gradients_do_not_underflow(estimator):
    """In float32 a gradient of 1e-25 has the square 0; c must not depend on the scale of the loss."""
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    domains = {d: [(torch.randn(8, 4) * k, torch.randint(2, (8,))) for _ in range(2)] for d, k in (("a", 1), ("b", 2))}

    def scaled(factor):
        def loss(out, y):
            return torch.nn.functional.cross_entropy(out, y, reduction="none") * factor

        return dspreg.measure(model, domains, loss=loss, estimator=estimator).c

    ordinary, tiny, huge = scaled(1.0), scaled(1e-25), scaled(1e15)
    assert ordinary["weight"].max() > 0.05
    for other in (tiny, huge):
        assert torch.allclose(other["weight"], ordinary["weight"], rtol=1e-5)


@pytest.mark.parametrize("estimator", ["loop", "persample", "signed", "minibatch"])
def test_the_parameter_whose_gradient_is_not_finite_is_named(estimator):
    x, y = torch.ones(3, 2), torch.zeros(3, dtype=torch.long)
    domains = {"a": [(x, y)] * 2, "b": [(x, y)] * 2}

    def loss(out, _):
        return (out * 0).sum(1).sqrt()  # 0, with a slope of 0·∞

    with pytest.raises(dspreg.DataError, match=r"gradient of 'weight' is NaN or infinite"):
        dspreg.measure(nn.Linear(2, 2), domains, loss=loss, estimator=estimator)


@pytest.mark.parametrize("estimator", ["loop", "persample", "signed", "minibatch"])
@pytest.mark.parametrize("factor", [1e-25, 1e25])
def test_squares_that_float32_cannot_hold_still_give_c(estimator, factor):
    """A loss of 1e-25 has squared gradients of 1e-50, zero in float32, and c does not depend on the loss's scale."""
    model, domains = problems.model("mlp").float(), problems.domains("mlp")
    small = {d: [(x.float(), y) for x, y in batches] for d, batches in domains.items()}

    def loss(out, y):
        return nn.functional.cross_entropy(out, y, reduction="none") * factor

    scaled = dspreg.measure(model, small, loss=loss, estimator=estimator)
    plain = dspreg.measure(model, small, estimator=estimator)
    assert torch.allclose(scaled.c.flat(), plain.c.flat(), atol=1e-4)
    assert torch.allclose(scaled.null.flat(), plain.null.flat(), atol=1e-4)
    assert float(plain.c.flat().mean()) > 0.1


def test_a_gradient_is_squared_as_it_comes_and_leaves_nothing_behind():
    """Parameters used twice and not at all; a hook that fails is taken off as well."""
    torch.manual_seed(0)
    params = {name: torch.randn(3, dtype=torch.float64, requires_grad=True) for name in ("twice", "once", "idle")}
    value = (params["twice"].square() * params["once"]).sum() + params["twice"].sum()
    sums = Accumulator(params, 2)
    sums.set_weights(torch.tensor([[0.0], [0.5]], dtype=torch.float64))
    expected = {name: 0.5 * g**2 for name, g in estimators.gradient(value, params, retain_graph=True).items()}
    estimators.add_squares(value, params, sums, retain_graph=True)
    for name, p in params.items():
        assert torch.allclose(sums.row(1)[name], expected.get(name, torch.zeros_like(p)), rtol=1e-12)
        assert not sums.row(0)[name].any()
        assert p.grad is None
    sums.of_sample = []
    with pytest.raises(IndexError):
        estimators.add_squares(value, params, sums, retain_graph=True)
    assert not any(p._backward_hooks for p in params.values())
