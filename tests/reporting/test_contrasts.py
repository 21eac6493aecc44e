"""Paired contrasts against numbers worked out by hand, and Student's t against SciPy."""

import math

import pytest
from scipy import stats

from dspreg.errors import ConfigError
from dspreg.reporting.contrasts import contrast_differences, contrast_table
from dspreg.reporting.statistics import quantile
from dspreg.reporting.tables import select_rows
from helpers.runs import DOMAINS, single, trace


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 8, 12, 30, 100, 1000])
def test_quantiles_are_those_of_scipy(freedom):
    for probability in (0.5, 0.6, 0.9, 0.975, 0.999):
        assert quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-9, abs=1e-9)


def test_by_hand():
    """Means 2 and 5, squares around them 2 and 2, freedom 2 + 1: s² = 4/3."""
    found = contrast_differences([[0.01, 0.02, 0.03], [0.04, 0.06]])
    spread = 4 / 3
    assert found.difference == pytest.approx(3.5)
    assert found.error == pytest.approx(math.sqrt(spread * (1 / 3 + 1 / 2)) / 2)
    assert (found.freedom, found.pairs) == (3, 5)
    assert found.high - found.difference == pytest.approx(3.182446 * found.error, rel=1e-6)


def test_equal_numbers_of_trials_are_the_plain_formula():
    """Mean over targets of s_t²/n_t, over T, whatever targets differ by."""
    targets = [[0.1, 0.12, 0.17], [0.5, 0.4, 0.45], [-0.2, -0.25, -0.1]]
    found = contrast_differences(targets)
    plain = math.sqrt(sum(stats.tstd(t) ** 2 / 3 for t in targets)) / 3
    assert found.error == pytest.approx(100 * plain)
    assert contrast_differences([[d + 10 * i for d in t] for i, t in enumerate(targets)]).error == pytest.approx(
        found.error
    )


@pytest.mark.parametrize("shift", [0.0, 0.004, -0.004])
def test_the_margin_of_equality_is_where_two_one_sided_tests_end(shift):
    """SciPy's one-sided tests of each target's differences against ±δ, pooled by hand: at the margin the larger of the
    two p-values is 5 %, below it more, above it less."""
    targets = [[d + shift for d in t] for t in ([0.003, -0.002, 0.001, 0.002], [-0.001, 0.002, 0.0, -0.003])]
    found = contrast_differences(targets)

    def larger_p(margin):
        below = stats.t.sf((found.difference + margin) / found.error, found.freedom)  # of d ≤ −δ
        above = stats.t.cdf((found.difference - margin) / found.error, found.freedom)  # of d ≥ δ
        return max(below, above)

    assert found.freedom == 6
    assert larger_p(found.equal_within) == pytest.approx(0.05, rel=1e-8)
    assert larger_p(found.equal_within * 0.99) > 0.05 > larger_p(found.equal_within * 1.01)


def test_the_margin_of_one_target_is_that_of_scipys_own_test():
    """ttest_1samp against −δ and δ."""
    differences = [0.31, -0.12, 0.08, 0.22, -0.05]
    margin = contrast_differences([[d / 100 for d in differences]]).equal_within
    tests = [
        stats.ttest_1samp(differences, -margin, alternative="greater"),
        stats.ttest_1samp(differences, margin, alternative="less"),
    ]
    assert max(each.pvalue for each in tests) == pytest.approx(0.05, rel=1e-8)


def test_one_pair_per_target_shows_no_equality():
    assert contrast_differences([[0.01]] * 6).equal_within is None


@pytest.mark.parametrize(
    ("targets", "says"),
    [
        ([[0.01, 0.02], [0.01, 0.02]], "none: fewer than 5 pairs"),
        ([[0.01]] * 6, "none: no target has two pairs"),
        ([[0.010, 0.011, 0.012], [0.010, 0.011, 0.012]], "A is better"),
        ([[-0.010, -0.011, -0.012], [-0.010, -0.011, -0.012]], "B is better"),
        ([[0.01, -0.02, 0.03], [0.02, -0.01, 0.0]], "not distinguishable"),
        ([[0.0, 0.0, 0.0], [0.0, 0.0]], "not distinguishable"),
        ([[float("nan"), 0.0, 0.0], [0.0, 0.0]], "none: a number is NaN"),
    ],
)
def test_verdicts(targets, says):
    assert contrast_differences(targets).verdict("A", "B") == says


def runs(algorithm, shift, trials=(0, 1, 2), dataset="trees", **changes):
    noise = {(d, i): ((7 * i + 3 * j) % 5) / 100 for j, d in enumerate(DOMAINS) for i in range(9)}
    return [
        trace(single(0, d, 0.5 + noise[d, i] + shift + (i % 2) / 1000, 0.5), targets=(d,), trial=i,
              algorithm=algorithm, dataset=dataset, **changes)
        for d in DOMAINS for i in trials
    ]  # fmt: skip


def test_noise_that_both_share_cancels():
    found = select_rows([*runs("ERM", 0), *runs("DSPReg", 0.02)])
    (row,) = contrast_table(found, "DSPReg", "ERM").rows
    assert row.label == "trees"
    assert [cell.format() for cell in row.cells] == ["+2.0 ± 0.0", "+2.0", "+2.0", "2.00", "9", "DSPReg is better"]


def test_only_trials_that_both_have_are_pairs():
    found = select_rows([*runs("ERM", 0, (0, 1, 2)), *runs("DSPReg", 0.02, (1, 2, 3))])
    assert contrast_table(found, "ERM", "DSPReg").rows[0].cells[4].text == "6"
    with pytest.raises(ConfigError, match="a contrast needs pairs"):
        contrast_table(select_rows([*runs("ERM", 0, (0,)), *runs("DSPReg", 0, (1,))]), "ERM", "DSPReg")


def test_data_sets_have_rows_and_all_targets_one():
    both = [
        *runs("ERM", 0),
        *runs("DSPReg", 0.02),
        *runs("ERM", 0, dataset="rocks"),
        *runs("DSPReg", 0, dataset="rocks"),
    ]
    made = contrast_table(select_rows(both), "DSPReg", "ERM")
    assert [row.label for row in made.rows] == ["rocks", "trees", "all targets"]
    assert [row.cells[0].value for row in made.rows] == pytest.approx([0, 2, 1])
    assert [row.cells[4].text for row in made.rows] == ["9", "9", "18"]


def test_a_method_that_is_not_there_or_there_twice():
    with pytest.raises(ConfigError, match=r"no runs of 'DSP-Reg'\. Did you mean 'DSPReg'\? There are: DSPReg, ERM"):
        contrast_table(select_rows([*runs("ERM", 0), *runs("DSPReg", 0)]), "DSP-Reg", "ERM")
    mixed = [*runs("ERM", 0), *runs("DSPReg", 0), *runs("ERM", 0, conditions={"threads": 2})]
    with pytest.raises(ConfigError, match=r"several rows on trees: 'ERM \[threads=1\]' and 'ERM \[threads=2\]'"):
        contrast_table(select_rows(mixed), "DSPReg", "ERM")
    made = contrast_table(select_rows(mixed), "DSPReg [threads=1]", "ERM [threads=2]")
    assert made.rows[0].cells[4].text == "9"
    assert any("more than the method may differ" in note for note in made.notes)
