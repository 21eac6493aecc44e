"""Names in the pictures of accuracies, where there is little room."""

from dspreg.reporting.html.dots import shorten_labels


def test_options_with_one_value_are_left_out():
    labels = [
        "ERM",
        "DSPReg(refresh_steps=10, measure_batches=2)",
        "DSPReg(refresh_steps=10, measure_batches=2, coefficients='shuffled')",
        "DSPReg(refresh_steps=10, measure_batches=2, coefficients='mean')",
        "DSPReg(refresh_steps=20, measure_batches=2) [threads=2]",
        "DSPReg(weight=0.1, refresh_steps=10)",
        "DSPReg(weight=0.0)",
        "SAM(rho=0.1)",
    ]
    assert shorten_labels(labels) == [
        "ERM",
        "DSPReg(refresh_steps=10)",
        "DSPReg(refresh_steps=10, coefficients='shuffled')",
        "DSPReg(refresh_steps=10, coefficients='mean')",
        "DSPReg(refresh_steps=20) [threads=2]",
        "DSPReg(weight=0.1, refresh_steps=10)",
        "DSPReg(weight=0.0)",
        "SAM",
    ]


def test_names_stay_as_they_are_where_they_would_become_the_same():
    labels = ["SAM", "SAM(rho=0.1)"]
    assert shorten_labels(labels) == labels
    assert shorten_labels(["A(x=1)", "A(x=1) [seed=2]"]) == ["A", "A [seed=2]"]
