"""DSP-Reg: when c is measured and on what, its variants, the penalty over gradient layers, the records."""

import warnings

import pytest
import torch
import torch.nn.functional as F

import dspreg
from dspreg import ConfigError, Notice, ParamVector
from dspreg.algorithms import ERM, SAM, Algorithm, DSPReg, Task, parse
from dspreg.algorithms.measure import BATCHES, profile_stack
from dspreg.batches import Batch
from dspreg.data import Digits
from dspreg.data.splits import split, steps_per_epoch
from dspreg.networks import TinyMLP
from dspreg.sensitivity import Meter
from dspreg.sensitivity.evaluation_mode import evaluation_mode
from dspreg.sensitivity.samples import Samples
from dspreg.testing import ready, toy_batches, toy_task
from dspreg.training import train_step
from reference.penalty import Flat


def steps(stack, n, start=0, **options):
    return [train_step(stack, toy_batches(t), **options) for t in range(start, start + n)]


def weights(stack):
    return torch.cat([p.detach().reshape(-1) for p in stack.net.parameters()])


# When.


def refreshes(sizes, images, until, **options):
    """The steps before which c is measured, asked of the layer step by step."""
    task = Task(7, ("a", "b", "c"), steps_per_epoch(sizes, images), lambda: TinyMLP(5), (), lambda t, n: {})
    layer = DSPReg(**options)
    layer.setup(task, lambda p: torch.optim.SGD(p, 0.1))
    return [t for t in range(until) if layer.due(t)]


PACS_SOURCES = [len(split(n, 0, i)[0]) for i, n in enumerate((2048, 2344, 1670))]  # art, cartoon, photo


@pytest.mark.parametrize(
    ("epochs", "expected"),
    [
        (1, [0, 50, 100, 150, 200, 250, 300, 350]),
        (2, [50, 150, 250, 350]),
        (3, [100, 250]),
        (4, [150, 350]),
    ],
)
def test_pacs_to_sketch_refreshes_before_these_steps(epochs, expected):
    assert PACS_SOURCES == [1639, 1876, 1336]
    assert refreshes(PACS_SOURCES, 96, 400, refresh_epochs=epochs) == expected


def test_digits_refreshes_before_these_steps():
    sizes = [len(split(len(Digits().arrays(d)[1]), 0, i)[0]) for i, d in enumerate(("handwritten", "outline", "print"))]
    assert sizes == [1438, 800, 800]
    assert steps_per_epoch(sizes, 96) == 31
    assert refreshes(sizes, 96, 200) == [31, 93, 155]


def test_refresh_steps_and_the_other_schedules():
    assert refreshes(PACS_SOURCES, 96, 100, refresh_steps=30) == [30, 60, 90]
    assert refreshes(PACS_SOURCES, 96, 400, coefficients="static") == [0]
    assert refreshes(PACS_SOURCES, 96, 400, coefficients="ones") == []
    for kind in ("mean", "shuffled", "matched", "reversed", "hard"):
        assert refreshes(PACS_SOURCES, 96, 400, coefficients=kind) == [50, 150, 250, 350]


def test_an_epoch_has_at_least_one_step():
    assert refreshes([10, 10], 96, 5) == [1, 3]


def test_under_fish_c_is_measured_once_a_step():
    asked = []
    task = toy_task()
    counting = Task(3, task.domains, 2, task.backbone, task.key, lambda t, n: (asked.append(t), task.samples(t, n))[1])
    steps(ready(parse("DSPReg+Fish"), counting), 7)
    assert asked == [2, 6]


# What c is.


def at_refresh(coefficients="dynamic", **options):
    """A stack just after its refresh at step 2, before anything else has moved."""
    stack = ready(DSPReg(coefficients=coefficients, weight=1e-3, **options))
    steps(stack, 2)
    before = {n: t.clone() for n, t in stack.net.state_dict().items()}
    stack.c = stack.arrange(*stack.measure_c_and_mean())
    assert all(torch.equal(t, before[n]) for n, t in stack.net.state_dict().items())
    return stack


def test_c_is_that_of_measure_on_the_same_samples():
    stack = at_refresh()
    samples = {d: [(b.x, b.y) for b in batches] for d, batches in toy_task().samples(2, BATCHES).items()}
    expected = dspreg.measure(stack.net, samples).c
    for n in expected:
        assert torch.allclose(stack.c[n], expected[n], rtol=1e-10)
        assert not stack.c[n].requires_grad
    assert float(stack.c.flat().std()) > 0.05


@pytest.mark.parametrize(
    "options",
    [
        {"of": "output"},
        {"of": "fisher"},
        {"estimator": "loop"},
        {"estimator": "signed"},
        {"estimator": "signed", "draws": 5},
        {"estimator": "minibatch"},
        {"eps": 0.3},
        {"measure_batches": 2},
    ],
    ids=str,
)
def test_every_option_of_measuring_is_used(options):
    """c with the option is that of the same Meter or measure with the option, and not that without it."""
    task = toy_task()

    def ragged(t, n):
        given = task.samples(t, n)
        return {
            d: [Batch(b.x[: 32 - 9 * (i % 4)], b.y[: 32 - 9 * (i % 4)], b.domain) for i, b in enumerate(bs)]
            for d, bs in given.items()
        }

    stack = ready(DSPReg(**options), Task(3, task.domains, 2, task.backbone, task.key, ragged))
    steps(stack, 2)
    got = stack.measure_c().flat()
    samples = ragged(2, options.get("measure_batches", BATCHES))
    others = {k: v for k, v in options.items() if k not in ("measure_batches", "eps")}
    with evaluation_mode(stack.net):
        meter = Meter(stack.net, **others, key=("toy", 2, "measure"))
        each = []
        for d, batches in enumerate(samples.values()):
            pairs = [(meter.with_labels(stack.net, Samples(b.x, b.y), d, i), i) for i, b in enumerate(batches)]
            sums = meter.sums()
            for s, i in pairs:
                meter.add(stack.net, s, sums, d, i)
            each.append(sums.mean(0, sum(len(s) for s, _ in pairs)).flat())
    s = torch.stack(each)
    expected = s.std(0, correction=0) / (s.mean(0) + options.get("eps", 0.0))
    assert torch.allclose(got, expected, rtol=1e-8)
    plain = ready(DSPReg(), Task(3, task.domains, 2, task.backbone, task.key, ragged))
    plain.net.load_state_dict(stack.net.state_dict())
    plain.stack.steps = 2
    if options != {"estimator": "loop"}:
        assert not torch.allclose(got, plain.measure_c().flat(), rtol=1e-3)


def test_signs_are_drawn_anew_at_each_refresh():
    stack = ready(DSPReg(estimator="signed"))
    same = toy_task().samples(0, 4)
    stack.stack.task = Task(3, toy_task().domains, 2, toy_task().backbone, ("toy",), lambda t, n: same)
    one = stack.measure_c().flat()
    stack.stack.steps = 1
    assert not torch.allclose(one, stack.measure_c().flat(), rtol=1e-3)


def test_a_layer_set_up_again_starts_anew():
    layer = DSPReg(weight=0.1, coefficients="static", engine="momentum")
    steps(ready(layer), 4)
    again, fresh = ready(layer), ready(DSPReg(weight=0.1, coefficients="static", engine="momentum"))
    steps(again, 4)
    steps(fresh, 4)
    assert torch.equal(weights(again), weights(fresh))


def test_half_precision_networks_keep_c_in_float32():
    stack = ready(DSPReg(weight=0.05, refresh_epochs=1, engine="exact"), toy_task(dropout=0.0)).bfloat16()
    batches = [Batch(b.x.bfloat16(), b.y, b.domain) for b in toy_batches(0)]
    samples = stack.task.samples
    half = lambda t, n: {d: [Batch(b.x.bfloat16(), b.y, b.domain) for b in bs] for d, bs in samples(t, n).items()}  # noqa: E731
    stack.stack.task = Task(3, stack.task.domains, 2, stack.task.backbone, stack.task.key, half)
    log = train_step(stack, batches, record=True)
    assert {t.dtype for t in stack.c.values()} == {torch.float32}
    assert float(log["DSPReg.ratio"]) > 1e-3


@pytest.mark.parametrize("engine", ["finite_difference", "lookahead", "gauss_newton"])
def test_half_precision_networks_cannot_be_displaced(engine):
    """The displacement would round to 0, and the penalty with it."""
    stack = ready(DSPReg(weight=0.05, coefficients="ones", engine=engine), toy_task(dropout=0.0)).bfloat16()
    batches = [Batch(b.x.bfloat16(), b.y, b.domain) for b in toy_batches(0)]
    with pytest.raises(ConfigError, match="less than their spacing"):
        train_step(stack, batches)


@pytest.mark.parametrize("options", [{}, {"estimator": "signed", "draws": 3}, {"of": "output"}], ids=str)
def test_a_profile_shows_c_of_the_refresh_beside_its_floor(options):
    stack = ready(DSPReg(**options))
    steps(stack, 3)
    profile = stack.profile()
    assert torch.allclose(profile.c.flat(), stack.measure_c().flat(), rtol=1e-10)
    assert profile.domains == stack.task.domains
    assert float(profile.null.flat().mean()) > 0
    assert -1 <= profile.reliability <= 1
    assert torch.equal(weights(stack), weights(_after(DSPReg(**options), 3)))


def test_erm_is_profiled_as_measure_does_it_by_hand():
    stack = ready(ERM(), toy_task())
    steps(stack, 2)
    before, random = weights(stack), torch.get_rng_state()
    profile = profile_stack(stack)
    samples = {name: [(b.x, b.y) for b in each] for name, each in stack.task.samples(2, BATCHES).items()}
    by_hand = dspreg.measure(stack.net, samples)
    assert torch.allclose(profile.c.flat(), by_hand.c.flat(), rtol=1e-10)
    assert profile.null is not None
    assert torch.equal(weights(stack), before)
    assert torch.equal(torch.get_rng_state(), random)
    assert stack.t == 2
    assert all(module.training for module in stack.modules())


def test_a_profile_of_one_domain_is_refused():
    with pytest.raises(ConfigError, match="c compares source domains and there is 1: domain 0"):
        profile_stack(ready(ERM(), toy_task(1)))


def test_every_refresh_is_told_once_with_c_by_layer():
    stack = ready(SAM(DSPReg(refresh_steps=2)))
    told = []
    for t in range(5):
        steps(stack, 1, t)
        told += stack.stack.events
    assert [(event["event"], event["step"]) for event in told] == [("refresh", 2), ("refresh", 4)]
    c = stack.base.c
    layers = {name.rpartition(".")[0] for name in c}
    assert set(told[-1]["layers"]) == layers
    for layer, said in told[-1]["layers"].items():
        values = sorted(v for name, t in c.items() if name.rpartition(".")[0] == layer for v in t.flatten().tolist())
        assert said["max"] == values[-1]
        assert said["mean"] == pytest.approx(sum(values) / len(values))
        assert said["median"] == values[(len(values) - 1) // 2]


def test_a_failed_step_tells_nothing_twice():
    stack = ready(DSPReg(refresh_steps=1))
    steps(stack, 2)
    assert len(stack.stack.events) == 1
    with stack.stack.stepping(record=False):
        assert stack.stack.events == []


def test_measuring_sees_the_whole_stack():
    """A layer above DSPReg that changes `predict` is measured too."""

    class Doubled(Algorithm):
        def predict(self, x):
            return 2 * self.base.predict(x)

    plain, doubled = (ready(stack, toy_task(dropout=0.0)) for stack in (DSPReg(), Doubled(DSPReg())))
    s = []
    for stack in (plain, doubled.base):
        batch = toy_task().samples(0, 1)["domain 0"][0]
        x = batch.x.clone().requires_grad_()
        s.append(torch.autograd.grad(stack.stack.top.measured(batch)(x).sum(), x)[0])
    assert torch.allclose(s[1], 2 * s[0])


def test_c_starts_at_one_except_static():
    dynamic, ones, static = (ready(DSPReg(weight=0.1, coefficients=kind)) for kind in ("dynamic", "ones", "static"))
    for stack in (dynamic, ones, static):
        steps(stack, 1)
    assert torch.equal(weights(dynamic), weights(ones))
    assert set(dynamic.ones().flat().tolist()) == {1.0}
    assert not torch.equal(weights(static), weights(ones))
    assert float(static.c.flat().std()) > 0.05
    measured = static.c
    steps(static, 5, start=1)
    assert all(torch.equal(static.c[n], t) for n, t in measured.items())


def test_mean_is_one_number_the_mean_over_all_parameters():
    expected = float(at_refresh().c.flat().mean())
    values = at_refresh("mean").c.flat()
    assert torch.allclose(values, torch.full_like(values, expected), rtol=1e-12)


def test_shuffled_permutes_within_each_tensor_and_anew_at_each_refresh():
    c, shuffled = at_refresh().c, at_refresh("shuffled").c
    for n in c:
        assert torch.equal(c[n].reshape(-1).sort()[0], shuffled[n].reshape(-1).sort()[0])
    assert not torch.equal(c["featurizer.layers.0.weight"], shuffled["featurizer.layers.0.weight"])
    assert torch.equal(shuffled.flat(), at_refresh("shuffled").c.flat())  # keyed
    stack = at_refresh("shuffled")
    fixed = ParamVector((n, torch.arange(t.numel(), dtype=t.dtype).view_as(t)) for n, t in c.items())
    one = stack.arrange(fixed)
    stack.stack.steps += 1
    assert not torch.equal(one.flat(), stack.arrange(fixed).flat())


def test_matched_permutes_among_parameters_of_equal_sensitivity():
    plain, matched = at_refresh(), at_refresh("matched").c
    samples = {d: [(b.x, b.y) for b in batches] for d, batches in toy_task().samples(2, BATCHES).items()}
    profile = dspreg.measure(plain.net, samples)
    for n, c in plain.c.items():
        mean = torch.stack([s[n] for s in profile.s.values()]).mean(0)
        groups = max(1, min(10, c.numel() // 10))
        for places in mean.reshape(-1).argsort(stable=True).tensor_split(groups):
            one, other = (v.reshape(-1)[places].sort()[0] for v in (c, matched[n]))
            assert torch.equal(one, other)
    assert not torch.equal(plain.c["featurizer.layers.0.weight"], matched["featurizer.layers.0.weight"])


def test_reversed_has_the_largest_c_where_the_smallest_was():
    c, turned = at_refresh().c, at_refresh("reversed").c
    for n in c:
        assert torch.equal(turned[n].reshape(-1)[c[n].argmin()], c[n].max())
        assert torch.equal(c[n].reshape(-1).sort()[0], turned[n].reshape(-1).sort()[0])


def test_hard_is_one_at_and_above_the_global_quantile():
    c, hard = at_refresh().c.flat(), at_refresh("hard", quantile=0.75).c.flat()
    threshold = c.sort()[0][int(0.75 * (len(c) - 1)) :].min()
    assert set(hard.tolist()) == {0.0, 1.0}
    assert hard.mean() == pytest.approx(0.25, abs=0.02)
    assert c[hard == 1].min() > c[hard == 0].max()
    assert threshold <= c[hard == 1].min()


def test_excluded_parameters_have_no_coefficient():
    stack = ready(DSPReg(exclude=["classifier.*"]))
    steps(stack, 4)
    assert not any(c.requires_grad for c in stack.c.values())
    assert list(stack.c) == ["featurizer.layers.0.weight", "featurizer.layers.0.bias"]


def test_no_grad_no_noise_parameters_that_do_not_reach_the_logits_have_c_zero():
    stack = ready(DSPReg(refresh_epochs=1))
    stack.net.register_parameter("idle", torch.nn.Parameter(torch.ones(3, dtype=torch.float64)))
    steps(stack, 1)
    assert stack.c["idle"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("options", [{"estimator": "signed", "draws": 2}, {"of": "fisher"}, {"of": "output"}])
def test_other_estimators_and_quantities(options):
    stack = ready(DSPReg(refresh_epochs=1, **options))
    steps(stack, 1)
    assert 0 < float(stack.c.flat().mean()) < 2**0.5


# The penalty.


def test_weight_zero_is_erm_to_the_bit_and_measures_nothing():
    task = toy_task()
    silent = Task(3, task.domains, 2, task.backbone, task.key)  # its `samples` raises
    zero, erm = ready(DSPReg(weight=0.0), silent), ready(ERM(), silent)
    assert steps(zero, 8, record=True) == steps(erm, 8, record=True)
    assert torch.equal(weights(zero), weights(erm))
    assert not torch.equal(weights(erm), weights(_after(DSPReg(weight=0.1), 8)))


def _after(layer, n):
    stack = ready(layer)
    steps(stack, n)
    return stack


def test_warmup_is_erm_until_it_ends():
    late, erm, full = ready(DSPReg(weight=0.1, warmup=3)), ready(ERM()), ready(DSPReg(weight=0.1))
    for stack in (late, erm, full):
        steps(stack, 3)
    assert torch.equal(weights(late), weights(erm))
    assert not torch.equal(weights(full), weights(erm))
    for stack in (late, erm):
        steps(stack, 1, start=3)
    assert not torch.equal(weights(late), weights(erm))


def flat_problem(stack, batches):
    """The toy objective, without dropout, as a function of one flat vector."""

    def loss(params):
        x, y = torch.cat([b.x for b in batches]), torch.cat([b.y for b in batches])
        return F.cross_entropy(torch.func.functional_call(stack.net, params, x), y)

    return Flat(stack.net, loss)


def sam(gradient, theta, rho):
    g = gradient(theta)
    return gradient(theta + rho * g / g.norm())


@pytest.mark.parametrize(
    "engine",
    ["exact", "finite_difference", "lookahead", "lookahead(radius=1e-3)", "central", "lazy(1, exact)", "lazy(1)"],
)
def test_over_sam_each_engine_is_its_documented_formula(engine):
    """G is SAM's gradient arrow. exact: SAM of L + λR. The others: their formula with G in place of g."""
    weight, rho = 0.05, 0.1
    stack = ready(parse(f"SAM(rho={rho})+DSPReg(weight={weight}, engine={engine!r})"), toy_task(dropout=0.0))
    batches = toy_batches(0)
    flat = flat_problem(stack, batches)
    torch.manual_seed(3)
    c = torch.rand_like(flat.theta)
    stack.c = ParamVector(flat.split(c))

    def plain(theta):
        return sam(flat.gradient, theta, rho)

    def penalised(theta):
        return sam(lambda t: flat.penalised(t, c, weight), theta, rho)

    g = plain(flat.theta)
    h = 1e-2 / (c * g).norm()
    expected = {
        "exact": penalised(flat.theta),
        "finite_difference": g + 2 * weight / (h * 1e-6) * (plain(flat.theta + h * 1e-6 * c * g) - g),
        "lookahead": plain(flat.theta + 2 * weight * c * g),
        "lookahead(radius=1e-3)": g + 2 * weight / 1e-3 * (plain(flat.theta + 1e-3 * c * g) - g),
        "central": g + weight / h * (plain(flat.theta + h * c * g) - plain(flat.theta - h * c * g)),
        "lazy(1, exact)": penalised(flat.theta),
        "lazy(1)": plain(flat.theta + 2 * weight * c * g),
    }[engine]

    with stack.stack.stepping(record=False):
        _, got = stack.gradient(lambda b: stack.loss(stack(b)), batches)
    got = ParamVector((n, got[n]) for n in flat.names).flat()
    part = expected - g
    tolerance = 1e-6 if engine == "finite_difference" else 1e-9  # rounding, divided by a small h
    assert float((got - g - part).norm() / part.norm()) < tolerance
    assert float(part.norm() / g.norm()) > 1e-3


def test_over_sam_momentum_displaces_along_its_mean():
    stack = ready(parse("SAM(rho=0.1)+DSPReg(weight=0.05, engine='momentum')"), toy_task(dropout=0.0))
    flat = flat_problem(stack, toy_batches(0))
    c = torch.rand_like(flat.theta)
    stack.c = ParamVector(flat.split(c))
    objective, seen = lambda b: stack.loss(stack(b)), []
    for _ in range(3):
        with stack.stack.stepping(record=False):
            seen.append(ParamVector((n, stack.gradient(objective, toy_batches(0))[1][n]) for n in flat.names).flat())
    m = (0.9 * 0.1 * seen[0] + 0.1 * seen[1]) / (1 - 0.9**2)
    expected = sam(flat.gradient, flat.theta + 0.1 * c * m, 0.1)
    assert float((seen[2] - expected).norm() / (expected - seen[0]).norm()) < 1e-10


@pytest.mark.parametrize(("engine", "same"), [("exact", True), ("lookahead", False)])
def test_sam_around_dsp_reg_is_another_method_but_for_exact(engine, same):
    """Both orders of exact are SAM of the penalised objective. A displaced SAM is not SAM of a displaced gradient."""
    inside, outside = (f"DSPReg(weight=0.1, engine={engine!r})+SAM", f"SAM+DSPReg(weight=0.1, engine={engine!r})")
    assert isinstance(parse(outside).base, SAM)
    assert isinstance(parse(inside).base, DSPReg)
    one, two = (weights(_after(parse(spec), 3)) for spec in (inside, outside))
    assert torch.allclose(one, two, rtol=1e-9) is same


def test_it_does_what_it_is_for():
    """With the penalty, R = Σ c g² at the end of training is clearly smaller than without, at a loss still learned."""

    def end(weight):
        stack = ready(DSPReg(weight=weight, refresh_steps=20), toy_task(dropout=0.0))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Notice)
            steps(stack, 119)
            return steps(stack, 1, start=119, record=True)[0]

    strong, weak = end(1.0), end(1e-8)
    assert float(strong["DSPReg.R"]) < 0.5 * float(weak["DSPReg.R"])
    assert float(strong["loss"]) < 1.0  # log 3 = 1.10 is chance


# Records and notices.


def test_a_record_holds_loss_penalty_share_and_c():
    stack = ready(DSPReg(weight=0.05, engine="exact"), toy_task(dropout=0.0))
    steps(stack, 3)
    flat = flat_problem(stack, toy_batches(3))
    c = ParamVector((n, stack.c[n]) for n in flat.names).flat()
    g = flat.gradient(flat.theta)
    (log,) = steps(stack, 1, start=3, record=True)
    part = flat.penalised(flat.theta, c, 0.05) - g
    assert float(log["DSPReg.L"]) == pytest.approx(flat.loss(flat.theta).item(), rel=1e-12)
    assert float(log["DSPReg.R"]) == pytest.approx(float(c @ g.square()), rel=1e-12)
    assert float(log["DSPReg.ratio"]) == pytest.approx(float(part.norm() / g.norm()), rel=1e-9)
    assert float(log["DSPReg.c_50"]) == pytest.approx(float(c.double().quantile(0.5)))
    assert int(log["DSPReg.age"]) == 1
    assert float(log["DSPReg.refresh_seconds"]) > 0
    assert "DSPReg.R" not in steps(stack, 1, start=4)[0]


@pytest.mark.parametrize("engine", ["exact", "lookahead", "momentum", "lazy(3)", "lazy(3, exact)"])
def test_recording_does_not_move_training(engine):
    watched, quiet = (ready(DSPReg(weight=0.05, engine=engine)) for _ in range(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        logs = steps(watched, 7, record=True)
    steps(quiet, 7)
    assert torch.equal(weights(watched), weights(quiet))
    assert all(float(log["DSPReg.ratio"]) > 0 for log in logs[1:])


def test_the_share_of_a_lazy_engine_is_that_of_its_inner_one():
    shares = [
        float(steps(_after(DSPReg(weight=1e-2, engine=e), 0), 1, record=True)[0]["DSPReg.ratio"])
        for e in ("lookahead", "lazy(30)", "lazy(1)")
    ]
    assert shares[0] == shares[1] == shares[2] > 1e-3


@pytest.mark.parametrize(
    ("weight", "message"), [(1e-6, "less than a thousandth"), (30.0, "larger than the loss's; a smaller weight")]
)
def test_odd_magnitudes_are_noticed_once(weight, message):
    stack = ready(DSPReg(weight=weight))
    with pytest.warns(Notice, match=message) as caught:
        steps(stack, 3, record=True)
    assert len(caught) == 1


def test_momentum_without_a_fixed_point_is_noticed():
    stack = ready(DSPReg(weight=10.0, engine="momentum"))
    with pytest.warns(Notice) as caught:
        steps(stack, 12, record=True)
    assert any("engine 'momentum' has no fixed point here" in str(w.message) for w in caught)


def test_under_fish_the_running_mean_takes_in_the_gradients_of_all_domains():
    stack = ready(parse("DSPReg(weight=0.01, engine='momentum')+Fish"), toy_task(dropout=0.0))
    layer, seen = stack.base, []
    plain = layer.base.gradient
    layer.base.gradient = lambda objective, batches: (seen.append(plain(objective, batches)), seen[-1])[1]
    steps(stack, 1)
    assert len(seen) == 3
    expected = sum(g.flat() for _, g in seen) / 3 * 0.1
    assert torch.allclose(layer._memory.mean.flat(), expected, rtol=1e-12)


def test_the_age_of_c_survives_a_resume():
    stack = ready(DSPReg(weight=0.05))
    steps(stack, 4)  # measured before step 2
    resumed = ready(DSPReg(weight=0.05))
    resumed.load_state_dict(stack.state_dict())
    (log,) = steps(resumed, 1, start=4, record=True)
    assert int(log["DSPReg.age"]) == 2


def test_a_failed_step_leaves_the_running_mean_alone():
    stack = ready(DSPReg(weight=0.01, engine="momentum"))
    steps(stack, 2)
    mean, t = stack._memory.mean.flat().clone(), stack.t

    def interrupted():
        with stack.stack.stepping(record=False):
            stack.gradient(lambda b: stack.loss(stack(b)), toy_batches(2))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert torch.equal(stack._memory.mean.flat(), mean)
    assert stack.t == t
    steps(stack, 1, start=2)
    assert torch.equal(weights(stack), weights(_after(DSPReg(weight=0.01, engine="momentum"), 3)))
    assert torch.equal(stack._memory.mean.flat(), _after(DSPReg(weight=0.01, engine="momentum"), 3)._memory.mean.flat())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"weight": -1.0}, "weight=-1.0; wanted a finite number"),
        ({"coefficients": "random"}, "coefficients='random'; wanted one of 'dynamic'"),
        ({"engine": "magic"}, "engine 'magic'"),
        ({"estimator": "signed", "draws": 0}, "draws=0"),
        ({"draws": 3}, "draws=3 are sign draws"),
        ({"of": "loses"}, "of='loses'"),
        ({"refresh_epochs": 0}, "refresh_epochs=0; wanted a whole number, at least 1"),
        ({"refresh_steps": 0}, "refresh_steps=0; wanted a whole number, at least 1"),
        ({"refresh_steps": 9, "coefficients": "static"}, "refresh_steps=9 does nothing .* once, before step 0"),
        ({"refresh_steps": 9, "coefficients": "ones"}, "refresh_steps=9 does nothing .* never measures c"),
        ({"refresh_epochs": 1.5}, "refresh_epochs=1.5; wanted a whole number"),
        ({"eps": -1.0}, "eps=-1.0; wanted a finite number"),
        ({"quantile": 7.0}, "quantile=7.0; wanted a number from 0 to 1"),
        ({"warmup": -1}, "warmup=-1; wanted a number of steps"),
        ({"measure_batches": 0}, "measure_batches=0; wanted a whole number, at least 1"),
    ],
)
def test_wrong_options_are_refused_before_training(options, message):
    with pytest.raises(ConfigError, match=message):
        DSPReg(**options)


def test_a_task_without_samples_is_refused_before_training():
    task = Task(3, ("a", "b"), 2, lambda: TinyMLP(5))
    with pytest.raises(ConfigError, match="give the Task a `samples` function, or use coefficients='ones'"):
        ready(DSPReg(), task)
    assert ready(DSPReg(coefficients="ones"), task).t == 0


def test_networks_that_mix_samples_are_refused_at_the_refresh():
    class Centred(TinyMLP):
        def forward(self, x):
            features = super().forward(x)
            return features - features.mean(0)

    task = toy_task()
    mixing = Task(3, task.domains, 2, lambda: Centred(5), task.key, task.samples)
    with pytest.raises(dspreg.DataError, match="mixes samples"):
        train_step(ready(DSPReg(refresh_epochs=1), mixing), toy_batches(0))


def test_momentum_records_the_loss_at_theta():
    stack = ready(DSPReg(weight=1.0, engine="momentum"), toy_task(dropout=0.0))
    steps(stack, 3)
    flat = flat_problem(stack, toy_batches(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", Notice)
        (log,) = steps(stack, 1, start=3, record=True)
    assert float(log["DSPReg.L"]) == pytest.approx(flat.loss(flat.theta).item(), rel=1e-12)
    assert float(log["loss"]) != float(log["DSPReg.L"])  # the engine's own was taken at the displaced point


def test_one_source_domain_is_refused():
    with pytest.raises(ConfigError, match=r"compares source domains and there is 1: domain 0\. Give at least two"):
        ready(DSPReg(), toy_task(domains=1))
    ready(DSPReg(coefficients="ones"), toy_task(domains=1))
    ready(DSPReg(weight=0), toy_task(domains=1))
