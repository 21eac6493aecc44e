"""Spec strings: what they stand for, and what is said when they stand for nothing."""

import numpy as np
import pytest

from dspreg.algorithms import CORAL, ERM, SAM, Algorithm, DSPReg, Fish, GroupDRO, Mixup, describe, parse
from dspreg.algorithms.base import options_of
from dspreg.algorithms.registry import PUBLISHED, StackSpec, algorithms, resolve_spec
from dspreg.domainbed.seeds import seed_hash
from dspreg.errors import ConfigError, DspregError
from dspreg.specs import FILE_DEFAULTS


def names(stack):
    return [type(layer).__name__ for layer in stack.layers()]


@pytest.mark.parametrize(
    ("spec", "outermost_first"),
    [
        ("ERM", ["ERM"]),
        ("CORAL", ["CORAL", "ERM"]),
        ("ERM+CORAL", ["CORAL", "ERM"]),
        ("CORAL+SAM", ["SAM", "CORAL", "ERM"]),
        ("Mixup + CORAL(weight=2) + SAM()", ["SAM", "CORAL", "Mixup", "ERM"]),
        ("  GroupDRO+DSPReg+Fish\n", ["Fish", "DSPReg", "GroupDRO", "ERM"]),
        ("Mixup+(CORAL+SAM)", ["SAM", "CORAL", "Mixup", "ERM"]),
    ],
)
def test_what_stands_later_is_around_what_stands_before(spec, outermost_first):
    assert names(parse(spec)) == outermost_first


def test_options_reach_their_layer():
    stack = parse(
        "CORAL(weight=0.5)+DSPReg(weight=1e-2, refresh_epochs=3, only=['a.*', 'b'], engine='lazy(30, exact)')"
    )
    assert (stack.weight, stack.refresh_epochs, stack.only) == (0.01, 3, ["a.*", "b"])
    assert stack.engine == "lazy(30, exact)"
    assert stack.base.weight == 0.5


@pytest.mark.parametrize(
    ("algorithm", "spec"),
    [
        (ERM(), "ERM"),
        (CORAL(), "CORAL"),
        (CORAL(ERM()), "CORAL"),
        (CORAL(weight=1.0), "CORAL"),
        (CORAL(weight=0.5), "CORAL(weight=0.5)"),
        (SAM(CORAL(weight=1e-7)), "CORAL(weight=1e-07)+SAM"),
        (CORAL(SAM(rho=0.1)), "SAM(rho=0.1)+CORAL"),
        (Fish(GroupDRO(Mixup(alpha=0.3), eta=0.2)), "Mixup(alpha=0.3)+GroupDRO(eta=0.2)+Fish"),
        (DSPReg(engine="lookahead(radius=2*weight)"), "DSPReg(engine='lookahead(radius=2*weight)')"),
        (DSPReg(refresh_steps=5, weight=0.1), "DSPReg(weight=0.1, refresh_steps=5)"),
        (DSPReg(exclude=["*.bias", "head.*"]), "DSPReg(exclude=['*.bias', 'head.*'])"),
        (SAM(SAM()), "SAM+SAM"),
    ],
)
def test_the_shortest_spec_and_back(algorithm, spec):
    assert describe(algorithm) == spec
    again = parse(spec)
    assert names(again) == names(algorithm)
    for one, other in zip(again.layers(), algorithm.layers(), strict=True):
        for option in ("weight", "rho", "eta", "alpha", "engine", "refresh_steps", "exclude"):
            assert getattr(one, option, None) == getattr(other, option, None)


@pytest.mark.parametrize(
    "spec", ["CORAL(weight=1)", 'DSPReg(engine="finite_difference")', "ERM + SAM(rho=0.05)", "SAM()"]
)
def test_longer_specs_get_shorter_and_stay_so(spec):
    short = describe(parse(spec))
    assert len(short) < len(spec)
    assert describe(parse(short)) == short


@pytest.fixture
def my_methods(tmp_path, monkeypatch):
    code = '''
from dspreg import Algorithm
from dspreg.errors import DspregError

class LogitNorm(Algorithm):
    """Keep logits small."""

    def __init__(self, base=None, *, weight: float = 0.1, kind: str = "square", once: bool = False):
        super().__init__(base)
        self.weight, self.kind, self.once = weight, kind, once

CONSTANT = 3
'''
    package = tmp_path / "spec_package"
    package.mkdir()
    (package / "__init__.py").touch()
    for path in (tmp_path / "spec_methods.py", package / "deeper.py"):
        path.write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("my_methods")
@pytest.mark.parametrize("module", ["spec_methods", "spec_package.deeper"])
def test_a_dotted_name_is_an_import_path(module):
    spec = f"SAM+{module}.LogitNorm(weight=0.05, once=True)+DSPReg"
    stack = parse(spec)
    assert names(stack) == ["DSPReg", "LogitNorm", "SAM", "ERM"]
    assert isinstance(stack.base, Algorithm)
    assert stack.base.weight == 0.05
    assert stack.base.once is True
    assert describe(stack) == spec


def test_our_own_import_paths_become_bare_names():
    assert describe(parse("dspreg.algorithms.CORAL(weight=2)+dspreg.algorithms.sam.SAM")) == "CORAL(weight=2)+SAM"


@pytest.mark.usefixtures("my_methods")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "CORL",
            r"^unknown algorithm 'CORL'\. Did you mean 'CORAL'\? Known: Agreement, Anchor, ANDMask, .*VREx\. ",
        ),
        ("coral", r"Did you mean 'CORAL'\?"),
        ("sam+CORAL", r"Did you mean 'SAM'\?"),
        ("Xyz", r"^unknown algorithm 'Xyz'\. Known: .* use its import path, e\.g\. 'my_methods\.Xyz'$"),
        ("Algorithm", r"^unknown algorithm 'Algorithm'"),
        ("Task", r"^unknown algorithm 'Task'"),
        ("CORAL(wieght=2)", r"^CORAL has no option 'wieght'\. Did you mean 'weight'\? It has: weight$"),
        ("DSPReg(refresh=2)", r"Did you mean 'refresh_\w+'\? It has: weight, refresh_epochs, refresh_steps, "),
        ("ERM(weight=1)", r"^ERM has no option 'weight'\. It has: none$"),
        ("CORAL(base=1)", r"^CORAL has no option 'base'"),
        ("CORAL(2)", r"^CORAL\(2\): options are given by name, and stacks as 'inner\+CORAL'$"),
        ("SAM(CORAL())", r"options are given by name, and stacks as 'inner\+SAM'"),
        ("CORAL(weight='2')", r"^CORAL: weight='2'; wanted a number, such as 1\.0$"),
        ("CORAL(weight=True)", r"weight=True; wanted a number"),
        ("CORAL(weight=None)", r"weight=None; wanted a number"),
        ("CORAL(weight=[1])", r"weight=\[1\]; wanted a number"),
        ("DSPReg(warmup=2.5)", r"^DSPReg: warmup=2\.5; wanted a whole number, such as 0$"),
        ("DSPReg(engine=3)", r"^DSPReg: engine=3; wanted a quoted string, such as 'finite_difference'$"),
        ("DSPReg(engine=lookahead)", r"engine=lookahead is not a number, a quoted string or a list of those$"),
        ("CORAL(weight=1/0)", r"^CORAL: weight=1 / 0 is not a number, a quoted string"),
        ("CORAL(weight=open('x'))", r"is not a number, a quoted string"),
        ("CORAL+ERM", r"^ERM is the bottom of every stack and goes first, or is left out$"),
        ("ERM+ERM", r"^ERM is the bottom"),
        ("CORAL(weight=", r"^the spec 'CORAL\(weight=' is not of the form 'A\(option=value\)\+B': "),
        ("", r"^the spec '' is not of the form"),
        ("CORAL+", r"^the spec 'CORAL\+' is not of the form"),
        ("CORAL SAM", r"^the spec 'CORAL SAM' is not of the form"),
        ("a = 1", r"is not of the form"),
        ("CORAL-SAM", r"^'CORAL-SAM' is not the name of an algorithm"),
        ("CORAL+3", r"^'3' is not the name of an algorithm"),
        ("SAM()()", r"^'SAM\(\)' is not the name of an algorithm"),
        ("[CORAL][0]", r"is not the name of an algorithm"),
        (
            "spec_methods.LogitNrm",
            r"^'spec_methods\.LogitNrm' can't be imported: module 'spec_methods' has no attribute 'LogitNrm'$",
        ),
        ("spec_nothing.LogitNorm", r"no module 'spec_nothing'; is its folder on PYTHONPATH\?$"),
        ("spec_methods.CONSTANT", r"^'spec_methods\.CONSTANT' is not a subclass of dspreg\.Algorithm$"),
        ("spec_methods.DspregError", r"is not a subclass of dspreg\.Algorithm$"),
        ("spec_methods.LogitNorm(kind=2)", r"kind=2; wanted a quoted string, such as 'square'$"),
    ],
)
def test_errors_say_what_to_do(spec, message):
    with pytest.raises(ConfigError, match=message):
        parse(spec)


def test_a_wrong_spec_is_a_wrong_value_with_exit_code_2():
    with pytest.raises(ValueError) as caught:
        parse("CORL")
    assert isinstance(caught.value, DspregError)
    assert caught.value.exit_code == 2


def test_constructors_have_the_last_word():
    with pytest.raises(ConfigError, match="weight=-1; wanted a finite number"):
        parse("DSPReg(weight=-1)")


# Drawn at random.


def by_hand(seed, key, sample):
    """One draw as DomainBed's registry makes it: a generator of its own for every name."""
    return sample(np.random.RandomState(seed_hash(seed, key)))


def drawn(spec, seed):
    return resolve_spec(spec, seed=seed)[0]


def log10(low, high):
    return lambda random: 10 ** random.uniform(low, high)


@pytest.mark.parametrize(("draw", "trial"), [(1, 0), (1, 1), (7, 2)])
def test_what_is_left_open_is_drawn_as_domainbed_does(draw, trial):
    seed = seed_hash(draw, trial)
    stack = parse(drawn("Mixup+CORAL+SAM+DSPReg", seed))
    dspreg, sam, coral, mixup, _ = stack.layers()
    assert coral.weight == by_hand(seed, "mmd_gamma", log10(-1, 1))
    assert mixup.alpha == by_hand(seed, "mixup_alpha", log10(-1, 1))
    assert sam.rho == by_hand(seed, "SAM.rho", lambda r: r.choice([0.01, 0.02, 0.05, 0.1]))
    assert dspreg.weight == by_hand(seed, "DSPReg.weight", log10(-4, -1))
    assert dspreg.refresh_epochs == by_hand(seed, "DSPReg.refresh_epochs", lambda r: r.choice([1, 2, 3, 4]))


def test_the_first_draw_of_coral_is_literally_domainbeds():
    assert drawn("CORAL", 785910682) == "CORAL(weight=1.4227570299330277)"


def test_given_options_stay_also_where_they_are_the_defaults():
    seed = seed_hash(3, 0)
    dspreg, coral, _ = parse(drawn("CORAL(weight=1.0)+DSPReg(weight=0.25, warmup=7)", seed)).layers()
    assert (coral.weight, dspreg.weight, dspreg.warmup) == (1.0, 0.25, 7)
    assert dspreg.refresh_epochs == by_hand(seed, "DSPReg.refresh_epochs", lambda r: r.choice([1, 2, 3, 4]))
    assert drawn("DSPReg(weight=0.001, refresh_epochs=2)", seed) == "DSPReg"


def test_a_layer_is_drawn_alike_in_every_stack():
    seed = seed_hash(2, 1)
    alone = parse(drawn("CORAL", seed)).weight
    assert parse(drawn("CORAL+DSPReg", seed)).base.weight == alone
    assert parse(drawn("GroupDRO+CORAL", seed)).weight == alone


@pytest.mark.parametrize("spec", ["ERM", "Fish", "Mixup+CORAL+SAM+DSPReg", "ERM+GroupDRO", "SAM+SAM"])
def test_a_drawn_spec_is_as_short_as_it_can_be_and_drawing_again_changes_nothing(spec):
    for draw in range(1, 6):
        seed = seed_hash(draw, 0)
        found = drawn(spec, seed)
        assert describe(parse(found)) == found
        assert names(parse(found)) == names(parse(spec))
        assert drawn(found, seed) == found


@pytest.mark.usefixtures("my_methods")
def test_a_class_of_ones_own_without_a_space_is_left_as_it_is():
    assert drawn("spec_methods.LogitNorm(once=True)", 5) == "spec_methods.LogitNorm(once=True)"


@pytest.mark.parametrize("spec", ["CORL", "CORAL(", "", "CORAL(wieght=1)", "CORAL+ERM", "CORAL(2)"])
def test_a_wrong_spec_is_refused_when_drawing_as_when_parsing(spec):
    with pytest.raises(ConfigError) as parsed:
        parse(spec)
    with pytest.raises(ConfigError) as tried:
        drawn(spec, 1)
    assert str(tried.value) == str(parsed.value)


def test_options_counted_in_steps_are_shorter_in_a_short_run_by_as_much():
    assert resolve_spec("IRM", steps=200) == (
        "IRM(warmup=20)",
        ["IRM: warmup=20 instead of 500"],
    )  # 500 · 200/5001 = 19.996
    assert resolve_spec("Fishr+DSPReg", steps=1000)[0] == "Fishr(warmup=300)+DSPReg"
    assert resolve_spec("IRM(weight=3.0)", steps=PUBLISHED // 2)[0] == "IRM(weight=3.0, warmup=250)"


@pytest.mark.parametrize("steps", [PUBLISHED, 15_001])
def test_a_run_of_the_published_length_or_longer_scales_nothing(steps):
    assert resolve_spec("IRM+DSPReg", steps=steps) == ("IRM+DSPReg", [])


@pytest.mark.parametrize("warmup", [500, 20, 0])
def test_what_is_set_by_hand_is_kept_and_written_so_that_reading_it_again_keeps_it(warmup):
    spec = f"ERM+IRM(warmup={warmup})"
    found, scaled = resolve_spec(spec, steps=200)
    assert found == f"IRM(warmup={warmup})"
    assert scaled == []
    assert resolve_spec(found, steps=200) == (found, [])


def test_a_drawn_warmup_is_scaled_too():
    seed = seed_hash(1, 0)
    drawn_alone, short = parse(drawn("Fishr", seed)), parse(resolve_spec("Fishr", seed=seed, steps=500)[0])
    assert short.warmup == round(drawn_alone.warmup * 500 / PUBLISHED)
    assert (short.weight, short.ema) == (drawn_alone.weight, drawn_alone.ema)


# Files keep the defaults they were written with.


@pytest.mark.parametrize(
    ("typed", "in_files"),
    [
        ("DSPReg", "DSPReg(engine='finite_difference')"),
        ("DSPReg(engine='exact')", "DSPReg"),
        ("DSPReg(engine='lookahead')", "DSPReg(engine='lookahead')"),
        (
            "CORAL(weight=0.5)+DSPReg(weight=0.1, coefficients='ones')",
            "CORAL(weight=0.5)+DSPReg(weight=0.1, engine='finite_difference', coefficients='ones')",
        ),
        ("DSPReg(refresh_steps=60, engine='exact')+SAM", "DSPReg(refresh_steps=60)+SAM"),
        ("ERM", "ERM"),
        ("CORAL+SAM", "CORAL+SAM"),
    ],
)
def test_a_spec_in_a_file_and_back(typed, in_files):
    assert StackSpec.parse(typed).for_file() == in_files
    assert describe(parse(in_files, of_file=True)) == typed
    assert StackSpec.parse(in_files, of_file=True).for_file() == in_files


def test_options_of_which_files_have_another_default_are_those_that_are_listed():
    for name, cls in algorithms().items():
        assert cls.file_defaults == FILE_DEFAULTS.get(name, {})
        for option, then in cls.file_defaults.items():
            assert options_of(cls)[option].default != then  # else there is nothing to keep apart
