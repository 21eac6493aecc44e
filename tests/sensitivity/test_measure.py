"""What `measure` promises besides the number: no trace, clear refusals, any loader, a floor."""

import itertools
import random

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn
from torch.utils.data import DataLoader, Subset, SubsetRandomSampler, TensorDataset

import dspreg
from dspreg.sensitivity import samples
from dspreg.sensitivity.null import regroup_batches
from dspreg.sensitivity.samples import Samples
from helpers import problems
from reference.sensitivity import largest_difference, mean_squares, squared_means


def mlp_domains(count=3, batches=4, size=16, **changes):
    return problems.domains("mlp", batches, size, count) | changes


# No trace.


@pytest.mark.parametrize("name", ["cnn", "vit", "lstm", "tied", "partly frozen"])
@pytest.mark.parametrize("options", [{}, {"estimator": "signed", "of": "fisher"}, {"estimator": "minibatch"}])
@pytest.mark.filterwarnings("ignore::dspreg.errors.Notice")
def test_measuring_leaves_no_trace(name, options):
    model = problems.model(name).train()
    list(model.modules())[1].eval()  # a mixture of flags
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    handle = model.register_forward_hook(lambda *_: None)

    def state():
        tensors = {**model.state_dict(), **{f"grad {n}": p.grad for n, p in model.named_parameters()}}
        flags = [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]
        hooks = [(len(m._forward_hooks), len(m._backward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
        generators = torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()[1].tolist()
        return {n: t.clone() for n, t in tensors.items()}, flags, hooks, generators

    before = state()
    loaders = {
        d: DataLoader(_Pairs(items), batch_size=None, shuffle=True) for d, items in problems.domains(name).items()
    }
    dspreg.measure(model, loaders, **options)
    after = state()
    assert before[1:] == after[1:]
    assert all(torch.equal(t, after[0][n]) for n, t in before[0].items())
    handle.remove()


class _Pairs(list):
    """A data set whose items are whole batches, read through torch's loader, which draws from the global generator."""


class Counting(nn.Module):
    """Counts its calls in a buffer, by writing into it or by putting another tensor in its place."""

    def __init__(self, replaces):
        super().__init__()
        self.linear, self.replaces = nn.Linear(6, 3).double(), replaces
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x):
        if self.replaces:
            self.calls = self.calls + x.detach().sum() * 0 + 1
        else:
            self.calls += 1
        return self.linear(x)


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("estimator", ["loop", "persample", "signed"])
@pytest.mark.filterwarnings("ignore::dspreg.errors.Notice")
def test_a_network_that_writes_to_its_buffers_is_put_back(estimator, replaces):
    model = Counting(replaces)
    buffer = model.calls
    dspreg.measure(model, mlp_domains(2), estimator=estimator)
    assert model.calls is buffer
    assert buffer.item() == 0


def test_the_same_call_gives_the_same_bits_and_another_key_other_signs():
    model, options = problems.model("mlp"), {"estimator": "signed", "draws": 3}
    one, two = (dspreg.measure(model, mlp_domains(), **options) for _ in range(2))
    other = dspreg.measure(model, mlp_domains(), **options, key=1)
    assert all(torch.equal(one.c[n], two.c[n]) and torch.equal(one.null[n], two.null[n]) for n in one.c)
    assert not torch.equal(one.c["0.weight"], other.c["0.weight"])


# Loaders and options.


def test_a_loader_may_yield_x_alone_lists_or_dictionaries():
    model, pairs = problems.model("mlp"), mlp_domains(2)
    expected = dspreg.measure(model, pairs, of="output").c["0.weight"]
    for as_item in (
        lambda x, y: x,
        lambda x, y: [x],
        lambda x, y: {"image": x, "label": y},
        lambda x, y: {"pixels": x},
    ):
        given = {d: (as_item(x, y) for x, y in items) for d, items in pairs.items()}  # generators: iterated once
        assert torch.equal(dspreg.measure(model, given, of="output").c["0.weight"], expected)


def test_max_batches_and_own_loss():
    model, domains = problems.model("mlp"), mlp_domains(2)
    first = {d: items[:2] for d, items in domains.items()}
    assert (
        largest_difference(
            dspreg.measure(model, domains, max_batches=2).s["photo"], mean_squares(model, first["photo"])
        )
        < 1e-10
    )
    doubled = dspreg.measure(model, domains, loss=lambda out, y: 2 * F.cross_entropy(out, y, reduction="none"))
    plain = dspreg.measure(model, domains)
    assert torch.allclose(doubled.s["photo"]["0.weight"], 4 * plain.s["photo"]["0.weight"], rtol=1e-12)
    assert torch.allclose(doubled.c["0.weight"], plain.c["0.weight"], rtol=1e-12)


def test_only_and_exclude_leave_the_other_parameters_out():
    model, domains = problems.model("mlp"), mlp_domains(2)
    full = dspreg.measure(model, domains)
    part = dspreg.measure(model, domains, only="*.weight", exclude=["2.*"])
    assert list(part.c) == ["0.weight"]
    assert torch.equal(part.c["0.weight"], full.c["0.weight"])


def test_variance_scales_s_and_cancels_in_c():
    model, domains = problems.model("mlp"), mlp_domains(2)
    variance = {n: torch.rand_like(p) + 0.1 for n, p in model.named_parameters()}
    variance["2.bias"][0] = 0
    plain, scaled = dspreg.measure(model, domains), dspreg.measure(model, domains, variance=variance)
    tripled = dspreg.measure(model, domains, variance=3.0)
    for n in plain.c:
        assert torch.allclose(scaled.s["sketch"][n], plain.s["sketch"][n] * variance[n], rtol=1e-12)
        assert torch.allclose(scaled.variance[n], plain.variance[n] * variance[n] ** 2, rtol=1e-12)
        assert torch.equal(tripled.c[n], plain.c[n])
    assert torch.equal(scaled.c["0.weight"], plain.c["0.weight"])
    assert scaled.c["2.bias"][0] == 0  # a parameter that does not vary has no sensitivity
    with_eps = dspreg.measure(model, domains, variance=variance, eps=0.1)
    expected = scaled.variance["0.weight"].sqrt() / (scaled.mean["0.weight"] + 0.1)
    assert torch.allclose(with_eps.c["0.weight"], expected, rtol=1e-10)


@pytest.mark.parametrize("estimator", ["loop", "persample", "minibatch"])
def test_everything_by_hand_with_unequal_sizes_eps_and_variance(estimator):
    """Batches and domains of different sizes: whatever is averaged without its weight shows here."""
    model = problems.model("mlp")
    sizes = {"a": (3, 9, 4), "b": (7, 2), "c": (5, 11, 1, 6)}
    domains = {d: [problems.batch("mlp", i, n, b) for b, n in enumerate(ns)] for i, (d, ns) in enumerate(sizes.items())}
    variance = {n: torch.rand_like(p) + 0.1 for n, p in model.named_parameters()}
    eps = 0.02
    profile = dspreg.measure(model, domains, estimator=estimator, variance=variance, eps=eps)
    naive = squared_means if estimator == "minibatch" else mean_squares
    name = "0.weight"
    v = variance[name].numpy()

    def s_of(items):
        return naive(model, items)[name].numpy()

    def c_of(each):
        each = np.stack(each) * v
        return each.std(0) / (each.mean(0) + eps)

    s = [s_of(items) for items in domains.values()]
    np.testing.assert_allclose(profile.c[name], c_of(s), rtol=1e-9)
    np.testing.assert_allclose(profile.s["b"][name], s[1] * v, rtol=1e-9)
    errors = []
    for whole, (d, ns) in zip(s, sizes.items(), strict=True):
        between = sum(n * (s_of([item]) - whole) ** 2 for n, item in zip(ns, domains[d], strict=True))
        errors.append(between / (sum(ns) * (len(ns) - 1)))
    noise = (2 / 3) * np.mean(errors, 0) * v**2
    mean = np.mean(s, 0) * v
    expected = np.sqrt(np.maximum(0, (np.stack(s) * v).var(0) - noise)) / (mean + eps)
    np.testing.assert_allclose(profile.c_debiased[name], expected, rtol=1e-7, atol=1e-12)
    halves = [
        np.concatenate([c_of_tensor(model, naive, domains, variance, eps, part, n) for n in variance])
        for part in (0, 1)
    ]
    assert profile.reliability == pytest.approx(stats.spearmanr(*halves).statistic, abs=1e-9)
    batches = [[Samples(x, y) for x, y in items] for items in domains.values()]
    pseudo = [[(b.inputs, b.y) for b in again] for again in regroup_batches(batches, "measure", 0)]
    np.testing.assert_allclose(profile.null[name], c_of([s_of(items) for items in pseudo]), rtol=1e-9)


def c_of_tensor(model, naive, domains, variance, eps, part, name):
    each = np.stack([naive(model, items[part::2])[name].numpy() for items in domains.values()])
    each = each * variance[name].numpy()
    return (each.std(0) / (each.mean(0) + eps)).ravel()


def test_a_first_layer_that_works_in_place_does_not_touch_the_samples():
    model = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)).double()
    domains = mlp_domains(2)
    before = domains["photo"][0][0].clone()
    in_place = dspreg.measure(model, domains).c["1.weight"]
    model[0].inplace = False
    assert torch.equal(domains["photo"][0][0], before)
    assert torch.equal(in_place, dspreg.measure(model, domains).c["1.weight"])


def test_running_variance_is_the_variance_along_training():
    model = problems.model("mlp")
    seen, history = dspreg.RunningVariance(model), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(dspreg.ConfigError, match="call update"):
        seen.vector()
    for x, y in mlp_domains(2)["photo"]:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        seen.update()
        history.append(model[0].weight.detach().clone().numpy())
    np.testing.assert_allclose(seen.vector()["0.weight"], np.var(history, axis=0), rtol=1e-9)
    scaled = dspreg.measure(model, mlp_domains(2), variance=seen)
    plain = dspreg.measure(model, mlp_domains(2))
    expected = plain.s["photo"]["0.weight"] * seen.vector()["0.weight"]
    assert torch.allclose(scaled.s["photo"]["0.weight"], expected)


def test_parameters_that_do_not_reach_the_output_have_no_sensitivity():
    profile = dspreg.measure(problems.model("partly frozen"), problems.domains("partly frozen"))
    assert sorted(profile.c) == ["head.bias", "head.weight", "unused.bias", "unused.weight"]
    assert profile.c["unused.weight"].abs().sum() == 0
    assert profile.s["photo"]["unused.weight"].abs().sum() == 0


def test_float32_results_are_float32():
    model = problems.model("mlp").float()
    domains = {d: [(x.float(), y) for x, y in items] for d, items in mlp_domains(2).items()}
    profile = dspreg.measure(model, domains)
    assert {t.dtype for t in profile.c.values()} == {torch.float32}
    exact = dspreg.measure(problems.model("mlp"), mlp_domains(2))
    assert torch.allclose(profile.c["0.weight"].double(), exact.c["0.weight"], rtol=1e-4)


# Refusals, each with a remedy.


class Random(nn.Linear):
    def forward(self, x):
        return F.dropout(super().forward(x), 0.5)


def with_sketch(x=None, y=None):
    """Domains whose second one is this single batch."""
    x = torch.ones(4, 6).double() if x is None else x
    y = torch.tensor([0, 1, 2, 0]) if y is None else y
    return mlp_domains(2, sketch=[(x, y)])


PAIR = {"a": (torch.ones(4, 6), torch.ones(4)), "b": []}
ODD_VARIANCE = {n: torch.ones(5, 1) for n, _ in problems.model("mlp").named_parameters()}
DATASET = {"a": TensorDataset(torch.ones(4, 6), torch.ones(4)), "b": []}


def mixing():
    return nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, track_running_stats=False)).double()


@pytest.mark.parametrize(
    ("model", "domains", "options", "message"),
    [
        ("mlp", mlp_domains(1), {}, r"1 domain\(s\); wanted a mapping .* at least two"),
        ("mlp", [1, 2], {}, "a list; wanted a mapping"),
        ("mlp", mlp_domains(2, sketch=[]), {}, "'sketch' yielded no batch"),
        ("mlp", mlp_domains(2, sketch=[(torch.zeros(0, 6), torch.zeros(0))]), {}, "wanted one number > 0"),
        ("mlp", mlp_domains(2, sketch=["image.png"]), {}, "yielded a str; wanted"),
        (
            "mlp",
            mlp_domains(2, sketch=[(torch.ones(4, 6).double(), torch.tensor([0, 1, 2, 3]))]),
            {},
            "labels run from 0 to 3",
        ),
        (
            "mlp",
            mlp_domains(2, sketch=[(torch.full((2, 6), torch.nan).double(), torch.tensor([0, 1]))]),
            {},
            "NaN or infinite",
        ),
        (
            "mlp",
            mlp_domains(2, sketch=[torch.ones(4, 6).double()]),
            {},
            "no labels, which of='loss' needs; use of='output'",
        ),
        ("mlp", mlp_domains(2), {"of": "logits"}, "of='logits'; wanted one of 'loss', 'output', 'fisher'"),
        ("mlp", mlp_domains(2), {"estimator": "fast"}, "estimator='fast'; wanted one of"),
        ("mlp", mlp_domains(2), {"draws": 4}, "draws=4 are sign draws of estimator='signed'"),
        ("mlp", mlp_domains(2), {"estimator": "signed", "draws": 0}, "wanted at least 1"),
        ("mlp", mlp_domains(2), {"eps": -1.0}, "eps=-1.0; wanted"),
        ("mlp", mlp_domains(2), {"variance": 0.0}, "variance=0.0; wanted a positive number"),
        ("mlp", mlp_domains(2), {"variance": {"0.weight": torch.ones(5, 6)}}, "variance has no entry for '0.bias'"),
        ("mlp", mlp_domains(2), {"variance": ODD_VARIANCE}, r"shape \(5, 1\); wanted \(5, 6\)"),
        ("mlp", mlp_domains(2), {"only": "layer4.*"}, "'layer4.*' matches no parameter; there are 0.weight"),
        ("mlp", mlp_domains(2), {"exclude": "*"}, "leave no parameter"),
        ("mlp", mlp_domains(2), {"loss": F.cross_entropy}, r"the loss returned shape \(\) .* reduction='none'"),
        ("mlp", mlp_domains(2), {"loss": F.cross_entropy, "of": "output"}, "a loss was given, but of='output'"),
        (
            "mlp",
            {"a": (torch.ones(4, 6), torch.ones(4)), "b": []},
            {},
            r"'a' is a pair of tensors; wanted batches: \[\(x, y\)\]",
        ),
        ("mlp", DATASET, {}, "wrap it in a torch DataLoader"),
        ("mlp", mlp_domains(2), {"max_batches": 0}, "max_batches=0; wanted at least 1"),
        ("mlp", mlp_domains(2), {"variance": "auto"}, "variance='auto'; wanted"),
        (
            "mlp",
            mlp_domains(2, sketch=[(torch.ones(4, 6).float(), torch.tensor([0, 1, 2, 0]))]),
            {},
            r"cannot process these samples \(float32 \(4, 6\)",
        ),
        (
            "mlp",
            mlp_domains(2, sketch=[(torch.ones(4, 6).double(), torch.ones(4))]),
            {},
            r"neither class numbers \(B,\) nor probabilities \(B, 3\); use y.long\(\)",
        ),
        (
            "mlp",
            mlp_domains(2, sketch=[(torch.ones(4, 6).double(), torch.ones(4, 1).long())]),
            {},
            r"labels of shape \(4, 1\)",
        ),
        (nn.Linear(6, 1).double(), mlp_domains(2), {}, "at least two classes. Give loss="),
        (lambda x: x, mlp_domains(2), {}, "the model is a function; wanted an nn.Module"),
        (mixing(), mlp_domains(2), {}, "mixes samples.*Batch norm without running statistics: 1"),
        (Random(6, 3).double(), mlp_domains(2), {}, "random in evaluation mode"),
        (nn.Linear(6, 3).double().requires_grad_(False), mlp_domains(2), {}, "has no trainable parameter"),
        (
            nn.Sequential(nn.Linear(6, 3).double(), nn.Flatten(0)),
            mlp_domains(2),
            {},
            "wanted a leading batch dimension",
        ),
    ],
)
def test_refusals_say_what_to_do(model, domains, options, message):
    model = problems.model(model) if isinstance(model, str) else model
    with pytest.raises((dspreg.DataError, dspreg.ConfigError), match=f"(?s){message}"):
        dspreg.measure(model, domains, **options)


def test_batch_norm_with_running_statistics_is_welcome_also_in_training_mode():
    model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)).double().train()
    assert dspreg.measure(model, mlp_domains(2)).c["1.weight"].numel() == 5


def test_single_samples_are_compared_with_a_mirrored_one():
    singles = {d: [(x[:1], y[:1]) for x, y in items] for d, items in mlp_domains(2).items()}
    assert dspreg.measure(problems.model("mlp"), singles).reliability is not None
    with pytest.raises(dspreg.DataError, match="mixes samples"):
        dspreg.measure(nn.Sequential(nn.Linear(6, 3), nn.LayerNorm(3), _OverBatch()).double(), singles)


class _OverBatch(nn.Module):
    def forward(self, x):
        return x - x.mean(0)


def test_labels_of_other_integer_types_are_class_numbers():
    domains = mlp_domains(2)
    small = {d: [(x, y.to(torch.int32)) for x, y in items] for d, items in domains.items()}
    model = problems.model("mlp")
    assert torch.equal(dspreg.measure(model, small).c["0.weight"], dspreg.measure(model, domains).c["0.weight"])


def test_soft_labels_are_probabilities():
    domains = mlp_domains(2)
    soft = {d: [(x, F.one_hot(y, 3).double()) for x, y in items] for d, items in domains.items()}
    model = problems.model("mlp")
    one, two = dspreg.measure(model, soft).c["0.weight"], dspreg.measure(model, domains).c["0.weight"]
    assert torch.allclose(one, two, rtol=1e-10)


def test_padded_text_is_vectorised():
    """The fused encoder layer, which cannot be, is switched off while measuring, and on again afterwards."""

    class Padded(problems.TransformerClassifier):
        def forward(self, x):
            return self.head(self.layers(self.embed(x), src_key_padding_mask=x < 3).mean(1))

    torch.manual_seed(0)
    model = Padded().double()
    domains = problems.domains("transformer", 2, 4)
    profile = dspreg.measure(model, domains)  # a fallback to the loop would be a notice, and fail
    assert profile.settings["estimator"] == "persample"
    assert largest_difference(profile.s["photo"], mean_squares(model, domains["photo"])) < 1e-10
    assert torch.backends.mha.get_fastpath_enabled()


def test_reliability_is_taken_over_parameters_that_some_domain_is_sensitive_to():
    """Parameters without any sensitivity agree on c = 0 in both halves. Counted, they would vouch for pure noise."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 40), nn.ReLU(), nn.Linear(40, 3)).double()
    with torch.no_grad():
        net[0].bias[4:] = -100.0  # most units never fire
    alike = {d: [(torch.randn(8, 6).double(), torch.randint(3, (8,))) for _ in range(4)] for d in "abc"}
    profile = dspreg.measure(net, alike)
    dead = profile.mean["0.weight"] == 0
    assert dead.double().mean() > 0.8
    assert abs(profile.reliability) < 0.4
    assert "of them no domain is sensitive to" in repr(profile)
    assert float(profile.over_alive(profile.c).min()) > 0


@pytest.mark.filterwarnings("ignore:the domains .* have the same data")
def test_domains_without_any_difference_have_no_reliability_and_can_be_saved(tmp_path):
    items = problems.domains("mlp", 2)["photo"]
    profile = dspreg.measure(problems.model("mlp"), {"a": items, "b": items, "c": items})
    assert profile.c.flat().max() < 1e-12
    profile.save(tmp_path / "new folder" / "p.safetensors")
    assert dspreg.Profile.load(tmp_path / "new folder" / "p.safetensors").reliability == profile.reliability


def test_one_batch_gives_c_but_neither_reliability_nor_a_debiased_c():
    with pytest.warns(dspreg.Notice, match="only one batch of photo, sketch"):
        profile = dspreg.measure(problems.model("mlp"), mlp_domains(2, batches=1))
    assert profile.c_debiased is None
    assert profile.reliability is None
    assert profile.null is not None


def test_progress_bar_names_the_domains(capsys):
    dspreg.measure(problems.model("mlp"), mlp_domains(2), progress=True)
    printed = capsys.readouterr()
    assert "measuring sketch" in printed.err
    assert printed.out == ""  # where results are


@pytest.mark.filterwarnings("ignore:the domains .* have the same data")
def test_data_loaders_with_workers_are_read():
    data = TensorDataset(*problems.batch("mlp", 0, 24))
    loaders = {"a": DataLoader(data, 8), "b": DataLoader(data, 8, num_workers=1)}
    profile = dspreg.measure(problems.model("mlp"), loaders)
    assert float(profile.c.flat().max()) < 1e-12  # the same samples: no difference at all


# Loaders that are not what was meant.


def endless(domains):
    """As DomainBed's infinite loader: iterates for ever, and its length raises."""

    class Endless:
        def __init__(self, batches):
            self.batches = batches

        def __iter__(self):
            return itertools.cycle(self.batches)

        def __len__(self):
            raise ValueError

    return {name: Endless(batches) for name, batches in domains.items()}


@pytest.mark.parametrize("null", [True, False])
def test_a_loader_without_end_is_refused_with_the_remedy(null, monkeypatch):
    monkeypatch.setattr(samples, "NOTICED", 5)
    monkeypatch.setattr(samples, "ENDLESS", 9)
    model, domains = problems.model("mlp"), mlp_domains()
    forever = {name: itertools.cycle(batches) for name, batches in domains.items()}
    for given in (endless(domains), forever):
        with (
            pytest.warns(dspreg.Notice, match="has given 5 batches and does not say how many"),
            pytest.raises(dspreg.DataError, match=r"given 9 batches .* Give max_batches="),
        ):
            dspreg.measure(model, given, null=null)


def test_a_loader_without_end_and_a_limit_is_fine():
    model, domains = problems.model("mlp"), mlp_domains()
    limited = dspreg.measure(model, endless(domains), max_batches=4)
    assert largest_difference(limited.c, dspreg.measure(model, domains).c) == 0


@pytest.mark.filterwarnings("error::dspreg.Notice")
def test_a_generator_that_ends_is_read_to_its_end():
    model, domains = problems.model("mlp"), mlp_domains()
    made = dspreg.measure(model, {name: (b for b in batches) for name, batches in domains.items()})
    assert largest_difference(made.c, dspreg.measure(model, domains).c) == 0


def test_one_loader_for_two_domains_is_told():
    model, (batches, other, _) = problems.model("mlp"), mlp_domains().values()
    with pytest.warns(dspreg.Notice, match="the domains 'a' and 'c' have the same data"):
        dspreg.measure(model, {"a": batches, "b": other, "c": batches})
    data = TensorDataset(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))
    with pytest.warns(dspreg.Notice, match="'a' and 'b' have the same data"):
        dspreg.Penalty(model).refresh({n: DataLoader(data, 8, shuffle=n == "a") for n in "ab"})


@pytest.mark.filterwarnings("error::dspreg.Notice")
def test_parts_of_one_data_set_are_not_the_same():
    model, (batches, *_) = problems.model("mlp"), mlp_domains().values()
    data = TensorDataset(torch.cat([x for x, _ in batches]), torch.cat([y for _, y in batches]))
    halves = {"a": range(32), "b": range(32, 64)}
    dspreg.measure(model, {n: DataLoader(data, 8, sampler=SubsetRandomSampler(at)) for n, at in halves.items()})
    profile = dspreg.measure(model, {n: DataLoader(Subset(data, at), 8) for n, at in halves.items()})
    assert max(float(c.max()) for c in profile.c.values()) > 0
