"""The algebra of parameter space, against long flat vectors in which an absent name is a row of zeros."""

import pytest
import torch
from torch import nn

from dspreg.errors import ConfigError
from dspreg.vectors import (
    ParamVector,
    average,
    displaced,
    gradient,
    matching_names,
    move_to,
    standing_at,
    theta,
    theta_plus,
    trainable,
)

SHAPES = {"a": (2, 3), "b": (4,), "c": (), "d": (1, 2, 2)}


def vector(names, seed=0):
    random = torch.Generator().manual_seed(seed)
    return ParamVector((n, torch.randn(SHAPES[n], generator=random, dtype=torch.float64)) for n in names)


def dense(v):
    """All of SHAPES in one row, zeros where a name is absent."""
    return torch.cat([v.get(n, torch.zeros(SHAPES[n], dtype=torch.float64)).reshape(-1) for n in SHAPES])


U, V = vector("abc", 1), vector("cdb", 2)


@pytest.mark.parametrize(
    ("ours", "expected"),
    [
        (U + V, dense(U) + dense(V)),
        (U - V, dense(U) - dense(V)),
        (V - U, dense(V) - dense(U)),
        (U.plus(V, -0.5), dense(U) - 0.5 * dense(V)),
        (U.plus(V, torch.tensor(-0.5)), dense(U) - 0.5 * dense(V)),
        (U * V, dense(U) * dense(V)),
        (U * 2.5, dense(U) * 2.5),
        (2.5 * U, dense(U) * 2.5),
        (torch.tensor(3.0) * U, dense(U) * 3),
        (U / 4, dense(U) / 4),
        (-U, -dense(U)),
        (U.square(), dense(U) ** 2),
        (U.square().sqrt(), dense(U).abs()),
        (ParamVector() + U, dense(U)),
        (ParamVector() - U, -dense(U)),
        (ParamVector() * U, torch.zeros(15, dtype=torch.float64)),
    ],
)
def test_absent_names_are_zeros(ours, expected):
    torch.testing.assert_close(dense(ours), expected, rtol=1e-15, atol=0)


def test_sums_have_the_names_of_either_side_and_products_those_of_both():
    assert set(U + V) == set(U - V) == {"a", "b", "c", "d"}
    assert set(U * V) == {"b", "c"}


def test_scalars_of_vectors():
    assert float(U.sum()) == pytest.approx(float(dense(U).sum()), rel=1e-14)
    assert float(U.dot(V)) == float(V.dot(U)) == pytest.approx(float(dense(U) @ dense(V)), rel=1e-14)
    assert float(U.norm()) == pytest.approx(float(dense(U).norm()), rel=1e-14)
    cosine = float(dense(U) @ dense(V) / (dense(U).norm() * dense(V).norm()))
    assert float(U.cosine(V)) == pytest.approx(cosine, rel=1e-14)
    assert U.numel() == 11
    assert repr(U) == "ParamVector(3 tensors, 11 numbers)"


def test_the_empty_vector_has_length_zero():
    nothing = ParamVector()
    assert [float(nothing.sum()), float(nothing.norm()), float(nothing.dot(U)), float(U.dot(nothing))] == [0] * 4
    assert float(U.cosine(nothing)) == float(nothing.cosine(nothing)) == 0
    assert nothing.flat().shape == (0,)


def test_norm_of_very_different_tensors():
    v = ParamVector({"a": torch.tensor([3e-4]), "b": torch.tensor([4e-4]), "c": torch.zeros(3)})
    assert float(v.norm()) == pytest.approx(5e-4)


def test_flat_goes_by_the_order_of_the_names():
    v = ParamVector({"z": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "a": torch.tensor(5.0)})
    assert v.flat().tolist() == [1, 2, 3, 4, 5]


def test_map_takes_vectors_that_have_its_names():
    mapped = vector("bc", 1).map(lambda s, t: s + 10 * t, V)
    for name in "bc":
        torch.testing.assert_close(mapped[name], vector("bc", 1)[name] + 10 * V[name])
    with pytest.raises(KeyError, match=r"no 'a' \(and 0 more\)"):
        U.map(torch.add, V)


def test_to_changes_the_precision():
    assert {t.dtype for t in U.to(torch.float16).values()} == {torch.float16}


NAMES = ["features.0.weight", "features.0.bias", "features.1.weight", "head.weight", "head.bias"]


@pytest.mark.parametrize(
    ("only", "exclude", "expected"),
    [
        (None, None, NAMES),
        ("head.*", None, NAMES[3:]),
        (["head.*", "features.0.*"], None, [NAMES[0], NAMES[1], NAMES[3], NAMES[4]]),
        (None, "*.bias", [NAMES[0], NAMES[2], NAMES[3]]),
        ("features.*", ["*.bias", "*.1.*"], [NAMES[0]]),
        ("features.[01].weight", None, [NAMES[0], NAMES[2]]),
        ("features.?.bias", None, [NAMES[1]]),
        (None, [], NAMES),
    ],
)
def test_selection_by_patterns(only, exclude, expected):
    assert matching_names(NAMES, only, exclude) == expected
    chosen = ParamVector((n, torch.ones(2)) for n in NAMES).select(only, exclude)
    assert list(chosen) == expected


@pytest.mark.parametrize(
    ("only", "exclude", "message"),
    [
        ("haed.*", None, r"'haed\.\*' matches no parameter; there are features\.0\.weight, .* and 1 more"),
        (["head.*", "Head.*"], None, r"'Head\.\*' matches no parameter"),
        (None, "*.scale", r"'\*\.scale' matches no parameter"),
        ("head.*", "*", r"only='head\.\*' and exclude='\*' leave no parameter"),
        ([], None, "leave no parameter"),
    ],
)
def test_a_selection_of_nothing_is_refused(only, exclude, message):
    with pytest.raises(ConfigError, match=message):
        matching_names(NAMES, only, exclude)


class Net(nn.Module):
    """y = (used · x + frozen) · used: one parameter used twice, one frozen, one not used, one tied."""

    def __init__(self):
        super().__init__()
        self.used = nn.Parameter(torch.tensor([0.1, -0.7], dtype=torch.float64))
        self.frozen = nn.Parameter(torch.tensor([0.3, 0.5], dtype=torch.float64), requires_grad=False)
        self.unused = nn.Parameter(torch.tensor([1.0], dtype=torch.float64))
        self.tied = self.used

    def forward(self, x):
        return ((self.used * x + self.frozen) * self.tied).sum()


X = torch.tensor([2.0, 3.0], dtype=torch.float64)


def test_trainable_parameters_appear_once():
    net = Net()
    assert list(trainable(net)) == list(theta(net)) == ["used", "unused"]
    theta(net)["used"].add_(1)
    assert net.used.tolist() == [0.1, -0.7]  # a copy


def test_gradient_leaves_out_what_the_loss_does_not_reach():
    net = Net()
    g = gradient(net(X), net)
    assert list(g) == ["used"]
    torch.testing.assert_close(g["used"], 2 * net.used.detach() * X + net.frozen, rtol=1e-15, atol=0)
    assert not g["used"].requires_grad
    assert all(p.grad is None for p in net.parameters())
    assert len(gradient(torch.tensor(1.0), net)) == 0


def test_gradient_of_a_gradient():
    net = Net()
    g = gradient(net(X), net, create_graph=True)
    hessian_row = gradient(g["used"][0], net)
    assert hessian_row["used"].tolist() == [4.0, 0.0]


def test_displaced_moves_what_is_named_and_puts_it_back_to_the_bit():
    net = Net()
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    change = ParamVector({"used": torch.tensor([1e-3, 1e17], dtype=torch.float64)})
    with displaced(net, change):
        assert net.used.tolist() == [0.1 + 1e-3, -0.7 + 1e17]
        assert torch.equal(net.unused, before["unused"])
    assert all(torch.equal(p, before[n]) for n, p in net.named_parameters())
    # what a reader might write instead does not come back
    assert (before["used"] + change["used"] - change["used"]).tolist() != before["used"].tolist()


def test_displaced_puts_back_after_an_exception():
    net = Net()
    before = theta(net)
    with pytest.raises(ZeroDivisionError), displaced(net, before):
        raise ZeroDivisionError
    with pytest.raises(RuntimeError), displaced(net, ParamVector({"unused": X[:1], "used": torch.ones(3)})):
        pytest.fail("a change of the wrong shape was accepted")
    assert all(torch.equal(p, before[n]) for n, p in trainable(net).items())


def test_displaced_by_a_name_the_network_does_not_train():
    net = Net()
    with pytest.raises(KeyError), displaced(net, ParamVector({"frozen": X})):
        pytest.fail("a frozen parameter was moved")
    assert net.frozen.tolist() == [0.3, 0.5]


def test_displacements_nest():
    net = Net()
    one = ParamVector({"unused": torch.ones(1)})
    with displaced(net, one):
        with displaced(net, one * 2):
            assert net.unused.item() == 4
        assert net.unused.item() == 2
    assert net.unused.item() == 1


def test_displaced_leaves_the_parameters_in_their_own_memory():
    """Nothing is copied back, so nothing can be rounded, and an optimiser's views stay views."""
    net = Net()
    before = {n: (p.data_ptr(), p.detach().clone()) for n, p in trainable(net).items()}
    with displaced(net, theta(net) * 0.1):
        assert all(p.data_ptr() != before[n][0] for n, p in trainable(net).items())
    for n, p in trainable(net).items():
        assert p.data_ptr() == before[n][0]
        assert torch.equal(p, before[n][1])


@pytest.mark.parametrize("when", ["built before", "built inside"])
def test_a_graph_does_not_outlive_the_point_it_was_built_at(when):
    net = nn.Linear(3, 2)
    x = torch.ones(1, 3, requires_grad=True)
    loss = net(x).square().sum()
    with displaced(net, theta(net)):
        if when == "built inside":
            loss = net(x).square().sum()
        else:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                torch.autograd.grad(loss, x)
    if when == "built inside":
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            torch.autograd.grad(loss, x)


def test_moved_is_the_point_h_along_c_times_v():
    net = Net()
    v, c = theta(net) + theta(net), theta(net).map(torch.ones_like) * 0.5
    for h in (0.3, -2.0):
        expected = theta(net) + v * c * h
        assert all(torch.allclose(theta_plus(net, v, c, h)[n], expected[n]) for n in expected)
    some = ParamVector({next(iter(c)): next(iter(c.values()))})
    assert list(theta_plus(net, v, some, 1.0)) == list(some)  # what c leaves out stays


def test_half_precision_moves_and_stays_half_precision():
    net = nn.Linear(2, 2).bfloat16()
    c = theta(net).map(lambda t: torch.ones_like(t, dtype=torch.float32))
    with displaced(net, theta(net)):
        assert net.weight.dtype == torch.bfloat16
    assert {t.dtype for t in theta_plus(net, theta(net), c, 0.5).values()} == {torch.bfloat16}


def test_move_to_is_exact_and_leaves_the_rest():
    net = Net()
    move_to(net, ParamVector({"used": torch.tensor([1 / 3, -0.0], dtype=torch.float64)}))
    assert net.used.tolist() == [1 / 3, 0.0]
    assert torch.signbit(net.used[1])
    assert net.unused.item() == 1
    assert net.used.requires_grad


def test_average_counts_absent_names_as_zeros():
    mean = average(v for v in (U, V, vector("a", 3)))
    torch.testing.assert_close(dense(mean), (dense(U) + dense(V) + dense(vector("a", 3))) / 3, rtol=1e-15, atol=0)
    with pytest.raises(ValueError, match="average of no vectors"):
        average([])


@pytest.mark.parametrize("keeps", [True, False])
def test_a_graph_from_before_a_displacement_refuses_unless_it_is_kept(keeps):
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    expected = gradient(net(x).square().sum(), net)
    loss = net(x).square().sum()
    with standing_at(net, theta(net) * 2, keeps_graphs=keeps), torch.no_grad():
        assert not torch.allclose(net(x).square().sum(), loss)
    if keeps:
        found = gradient(loss, net)
        assert all(torch.equal(found[n], expected[n]) for n in expected)
    else:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient(loss, net)
