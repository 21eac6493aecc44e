"""Every method alone, over and under CORAL, SAM, Mixup and DSPReg; all pairs by `make pairs`."""

import pytest
import torch

from dspreg.algorithms import Algorithm, Compatibility, Mixup, SourceValidation, parse
from dspreg.algorithms.compatibility import arrows_of
from dspreg.errors import ConfigError
from dspreg.testing import ready, toy_batches, toy_task
from dspreg.testing.toy import IMAGE
from dspreg.training import train_step
from helpers.stacking import ACTING, LAYERS, refusal, weights_of_prediction

PARTNERS = ("CORAL", "SAM", "Mixup", "DSPReg")


@pytest.mark.parametrize("partner", PARTNERS)
@pytest.mark.parametrize("name", LAYERS)
def test_under_and_over(name, partner):
    for below, above in ((name, partner), (partner, name)):
        replaced = parse(above).compatibility.replaces & set(arrows_of(type(parse(below))))
        said = refusal(below, above)
        if replaced:
            assert f"'{above}+{below}'" in said or "Leave one of them out" in said
        else:
            assert said is None


@pytest.mark.parametrize("name", LAYERS)
def test_what_keeps_the_laws_here_is_at_work(name):
    def after(spec):
        stack = ready(parse(spec), toy_task(inputs=IMAGE))
        for t in range(4):
            train_step(stack, toy_batches(t, inputs=IMAGE))
            losses = dict.fromkeys(stack.task.domains, 1.0)  # which SWAD takes for a valley
            for layer in stack.layers():
                stack.stack.report_validation_below(layer, SourceValidation(t, losses, losses))
        return weights_of_prediction(stack)

    theirs, erm = after(ACTING.get(name, name)), after("ERM")
    assert any(theirs[n].shape == w.shape and not torch.equal(theirs[n], w) for n, w in erm.items())


class OwnForward(Algorithm):
    """Replaces forward, as a class that reads whole batches does."""

    compatibility = Compatibility(replaces=frozenset({"forward"}))

    def forward(self, batches):
        return self.stack.layers[-1](batches)


class OtherForward(OwnForward):
    pass


def test_a_layer_that_would_be_undone_is_refused_with_the_right_order():
    with pytest.raises(ConfigError) as error:
        ready(OwnForward(Mixup()))
    assert str(error.value) == (
        "OwnForward has its own forward and would undo that of Mixup below it. Put it the other way round: "
        "'OwnForward+Mixup'"
    )
    assert ready(Mixup(OwnForward())).t == 0


def test_two_that_replace_the_same_can_not_be_ordered():
    with pytest.raises(ConfigError, match=r"would undo that of OwnForward below it\. Leave one of them out$"):
        ready(OtherForward(OwnForward()))


@pytest.mark.parametrize(("below", "above"), [("GGA", "Fish"), ("GGAL", "MLDG")])
def test_a_layer_that_compares_is_not_left_with_one_domain(below, above):
    said = refusal(below, above)
    assert said == (
        f"{above} asks for one domain at a time, which leaves {below} below it nothing to compare. Put it the other "
        f"way round: '{above}+{below}'"
    )
