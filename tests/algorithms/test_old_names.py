"""Methods written for version 0.1 work with one notice, or are refused by what to write instead."""

import pytest

from dspreg.algorithms import Algorithm, Compatibility, Mixup, parse
from dspreg.algorithms.registry import resolve_spec
from dspreg.errors import ConfigError, Notice
from dspreg.testing import check_algorithm, ready, toy_batches
from dspreg.training import train_step


def written():
    class Old(Algorithm):
        counted = ("start",)
        remembers = ("scale",)
        replaces = frozenset({"forward"})
        compares = one_by_one = moves_features = True

        def __init__(self, base=None, *, start: int = 100):
            super().__init__(base)
            self.start, self.scale = start, 1.0

        def tune(self, optimizer):
            self.asked = optimizer

        def forward(self, batches):
            return self.stack.layers[-1](batches)

        def loss(self, out):
            self.stage("scale", self.scale * 2)
            self.tell("scaled", by=self.scale)
            return self.base.loss(out) + self.scale * out.logits.square().mean()

    return Old


def test_old_names_count_with_one_notice():
    with pytest.warns(Notice, match="Old declares old names: counted is now step_options; remembers is now") as notices:
        old = written()
    assert len(notices) == 1
    assert "moves_features is now Compatibility(trains_featurizer=…)" in str(notices[0].message)
    assert (old.step_options, old.saved_attributes) == (("start",), ("scale",))
    assert old.compatibility == Compatibility(
        replaces=frozenset({"forward"}),
        needs_several_domains=True,
        calls_base_per_domain=True,
        trains_featurizer=True,
    )
    stack = ready(old())
    assert stack.asked is stack.stack.optimizer
    with pytest.warns(Notice, match="`tell` is now `log_event`"):
        train_step(stack, toy_batches(0))
    assert stack.stack.events[0] == {"event": "scaled", "step": 0, "by": 1.0}
    assert stack.get_extra_state() == {"scale": 2.0}
    with pytest.raises(ConfigError, match="would undo that of Mixup below it"):
        ready(old(Mixup()))


@pytest.mark.filterwarnings("ignore::dspreg.Notice")
def test_a_method_of_old_keeps_the_laws():
    assert check_algorithm(written(), start=3) is None


@pytest.mark.parametrize("name", ["commit", "discard"])
def test_what_would_no_longer_be_called_is_refused(name):
    with pytest.raises(TypeError, match=rf"Old\.{name} would not be called: put it into on_step_end\(self\)"):
        type("Old", (Algorithm,), {name: lambda self: None})


def test_the_methods_of_the_catalogue_have_none():
    for spec in ("GGA", "IRM", "DANN(grad_penalty=0.5)+MLDG"):
        assert resolve_spec(spec)[0]
        for layer in parse(spec).layers():
            assert isinstance(layer.compatibility, Compatibility)
    assert parse("DANN(grad_penalty=0.5)").compatibility.trains_featurizer
    assert not parse("DANN").compatibility.trains_featurizer
