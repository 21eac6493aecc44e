"""What a report says of a further domain, beside the forecast made by hand."""

import pytest

import dspreg
from dspreg import load_runs, select_rows
from dspreg.forecast.sites import SiteAccuracy, forecast_new_site
from dspreg.reporting.expected import expected_by_rows, expected_on_new, expected_sentence
from helpers.pages import page_of, write_pacs
from helpers.runs import single, write_run

SITES = ("ash", "birch", "cedar")


@pytest.fixture
def store(tmp_path):
    """SWA is better on the sources, ERM on the domains that were held out."""
    accuracies = {"ERM": ((0.9, 0.8), (0.7, 0.75), (0.95, 0.9)), "SWA": ((0.6, 0.5), (0.7, 0.7), (0.8, 0.7))}
    for method, of_sites in accuracies.items():
        for site, of_trials in zip(SITES, of_sites, strict=True):
            for trial, value in enumerate(of_trials):
                better = 0.9 if method == "SWA" else 0.8
                record = single(0, site, value, better, SITES) | {"validation": better}
                write_run(tmp_path / "runs" / f"{method}-{site}-{trial}", [record], targets=(site,), trial=trial,
                          algorithm=method, domains=SITES, images=50)  # fmt: skip
    return tmp_path / "runs"


def test_it_is_the_forecast_of_the_accuracies_in_the_table(store):
    erm, swa = expected_by_rows(select_rows(load_runs(store)))
    assert (erm.label, swa.label) == ("ERM", "SWA")
    by_hand = forecast_new_site(
        [SiteAccuracy("ash", 50, (0.9, 0.8)), SiteAccuracy("birch", 50, (0.7, 0.75)),
         SiteAccuracy("cedar", 50, (0.95, 0.9))]
    )  # fmt: skip
    assert erm.interval(0.9) == by_hand.interval(0.9)
    assert erm.forecast.expected == by_hand.expected
    assert erm.worst.site == "birch"


def test_the_sentence_is_of_the_method_that_the_sources_choose(store):
    erm, swa = expected_by_rows(select_rows(load_runs(store)))
    said = expected_sentence([erm, swa])
    interval = swa.interval()
    assert said == (
        f"On a domain it has never seen, expect about {100 * swa.forecast.expected:.0f} % with SWA, the best on the "
        f"sources' held-out images (nine times out of ten between {100 * interval.low:.0f} and "
        f"{100 * interval.high:.0f}). Worst of these domains: ash, 55 %."
    )
    assert "with" not in expected_sentence([erm]).partition("(")[0]
    assert expected_sentence([]) == ""


def test_nothing_is_foretold_of_what_selected_itself_or_of_one_domain(store):
    runs = load_runs(store)
    assert expected_by_rows(select_rows(runs, "oracle")) == []
    (row,) = select_rows([run for run in runs if run.algorithm == "ERM" and run.targets == ("ash",)])
    assert expected_on_new(row) is None


def test_the_page_begins_with_it_and_shows_it_for_every_method(tmp_path):
    page = page_of(write_pacs(tmp_path / "pacs"), tmp_path / "page.html")
    assert page.index("On a domain it has never seen, expect about") < page.index("<table")
    for row in expected_by_rows(select_rows(dspreg.load_runs(tmp_path / "pacs"))):
        ends = row.interval(0.9)
        assert f"{100 * ends.low:.0f} – {100 * ends.high:.0f}" in page
    oracle = page_of(tmp_path / "pacs", tmp_path / "oracle.html", "--selection", "oracle")
    assert "expect about" not in oracle
