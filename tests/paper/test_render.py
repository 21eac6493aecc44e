"""Tables of made-up runs: every number by hand."""

from dataclasses import replace

import pytest

from dspreg.errors import Notice
from dspreg.paper.items import components, dynamic, interval, main, maps, pacs
from dspreg.paper.render import render_tables, scale_table
from dspreg.paper.scales import PAPER, SMALL, SMOKE
from dspreg.reporting.formats import FORMATS
from dspreg.runs.store import RunStore
from helpers.items import finish, store_of
from helpers.tampered import Files

STATIC = "DSPReg(coefficients='static', measure_batches=2, weight=0.001)"


def cells(table, label, source="ours"):
    (row,) = [row for row in table.rows if (row.label, row.source) == (label, source)]
    return dict(zip(table.columns, row.cells, strict=True))


def accuracy(run):
    """Dynamic: 0.60, 0.62, 0.64 on handwritten, 0.10 higher on print; static 0.01, 0.03 and 0.05 below."""
    base = 0.60 + 0.02 * run.trial + (0.10 if run.targets == ("print",) else 0)
    return base - ((0.01, 0.03, 0.05)[run.trial] if "static" in run.algorithm else 0)


@pytest.fixture(scope="module")
def three_trials(tmp_path_factory):
    item = replace(dynamic(SMOKE), trials=3)
    store = store_of(tmp_path_factory.mktemp("made") / "store", item, accuracy, lambda run: 3)
    return item, store


def test_means_refreshes_and_runs(three_trials):
    _, made, differences = render_tables(*three_trials)
    ours = cells(made, "dynamic c")
    assert list(ours) == ["handwritten", "print", "mean", "refreshes", "planned", "runs"]
    assert [ours[name].value for name in ("handwritten", "print", "mean")] == pytest.approx([62.0, 72.0, 67.0])
    # trials have means 65, 67, 69 over targets: population standard deviation 1.633, over √3
    assert ours["mean"].error == pytest.approx(1.633 / 3**0.5, abs=1e-3)
    assert (ours["refreshes"].text, ours["planned"].text, ours["runs"].text) == ("3", "3", "6/6")
    static = cells(made, "static c")
    assert static["mean"].value == pytest.approx(64.0)
    assert (static["refreshes"].text, static["planned"].text) == ("3", "1")  # happened is what the record says
    assert "no difference is taken" in made.notes[2]
    assert made.notes[3:] == ("static c: refreshes are not as many as planned; its numbers are not those of its spec",)
    assert cells(made, "dynamic c", "paper")["mean"].value == 87.5
    assert cells(made, "dynamic c", "paper")["print"].value is None
    assert [row.source for row in made.rows] == ["ours", "paper", "ours", "paper"]  # other images: no difference

    found = cells(differences, "dynamic c − static c")
    # differences 1, 3, 5 on both targets: mean 3, s² = (4 + 0 + 4) · 2 / 4 = 4, SE = √(4 · 2/3)/2 = 0.816, t = 2.776
    assert found["difference"].value == pytest.approx(3.0)
    assert found["difference"].error == pytest.approx(0.8165, abs=1e-4)
    assert [found[name].value for name in ("95 % from", "to")] == pytest.approx([0.733, 5.267], abs=1e-3)
    assert (found["pairs"].text, found["verdict"].text) == ("6", "dynamic c is better")
    assert found["paper"].value == pytest.approx(1.8)  # 87.5 − 85.7
    assert differences.notes[-1] == (
        "dynamic c − static c is +3.0 points (95 % +0.7 to +5.3, 6 pairs): dynamic c is better "
        "(the paper, at its own scale: +1.8)."
    )


def test_pairs_of_all_conditions_count_each_within_its_own(tmp_path):
    """Trial 0 on one thread, trials 1 and 2 on two: two pairs of one condition, four of the other."""
    item = replace(dynamic(SMOKE), trials=3)
    store = RunStore(tmp_path / "store")
    store.make()
    for run in item.runs():
        finish(store, run, item.domains()[run.dataset], accuracy(run), 3, threads=2 if run.trial else 1)
    found = cells(render_tables(item, store)[-1], "dynamic c − static c")
    assert found["difference"].value == pytest.approx(3.0)
    assert found["pairs"].text == "6"


def test_the_first_thing_said_is_that_it_is_another_scale(three_trials):
    item, store = three_trials
    first = render_tables(item, store)[0]
    assert first.title == "NOT THE PAPER'S SCALE: this is smoke"
    here, paper = cells(first, "here"), cells(first, "here", "paper")
    assert [here[name].text for name in ("data", "network", "pixels", "steps", "trials", "draws")] == [
        "digits", "small-cnn", "28", "40", "3", "1",
    ]  # fmt: skip
    assert [paper[name].text for name in ("data", "network", "pixels", "steps", "trials", "draws")] == [
        "PACS", "ResNet-50", "(224)", "(5,001)", "3", "not stated",
    ]  # fmt: skip
    assert "batch_size=8" in first.notes[2]
    for name, write in FORMATS.items():
        text = write(render_tables(item, store))
        assert "NOT THE PAPER'S SCALE" in text or name == "csv"
        assert text.index("scale" if name == "csv" else "SCALE") < text.index("dynamic c")
        assert "dynamic c is better" in text
    assert FORMATS["csv"](render_tables(item, store)).splitlines()[1].startswith("dynamic: scale,")


def test_what_counts_as_the_papers_scale():
    item = components(PAPER)
    assert scale_table(item) == []
    assert scale_table(replace(item, trials=3, settings={"weights": "file.safetensors"})) == []
    (changed,) = scale_table(replace(item, settings={"steps": 300, "lr": 1e-4}))
    assert changed.title == "NOT THE PAPER'S SCALE: it was changed"
    assert cells(changed, "here")["steps"].text == "300"
    assert changed.notes[2] == "also set: lr=0.0001"
    assert scale_table(replace(item, trials=5)) != []
    (cheap,) = scale_table(components(PAPER, "lookahead"))
    assert cheap.notes[2] == "also set: engine=lookahead"
    (small,) = scale_table(components(SMALL))
    assert cells(small, "here")["network"].text == "tf_efficientnet_lite0"


def test_one_trial_gives_no_verdict(tmp_path):
    item = dynamic(SMOKE)
    _, made, differences = render_tables(item, store_of(tmp_path / "store", item, accuracy))
    found = cells(differences, "dynamic c − static c")
    assert found["verdict"].text == "none: fewer than 5 pairs"
    assert found["95 % from"].value is None
    assert cells(made, "dynamic c")["print"].error is None  # of one trial there is no spread
    said = "+1.0 points in 2 pairs, no verdict (fewer than 5 pairs) (the paper, at its own scale: +1.8)."
    assert said in differences.notes[-1]


def test_what_is_missing_is_said_and_not_averaged(tmp_path):
    item = replace(dynamic(SMOKE), trials=3)
    store = store_of(tmp_path / "store", item, accuracy,
                     leave_out=lambda run: run.trial == 2 and "static" in run.algorithm)  # fmt: skip
    _, made, differences = render_tables(item, store)
    static = cells(made, "static c")
    assert static["runs"].text == "4/6"
    assert (static["mean"].found, static["mean"].expected, static["mean"].error) == (2, 3, None)
    assert cells(differences, "dynamic c − static c")["pairs"].text == "4"
    empty = RunStore(tmp_path / "empty")
    empty.make()
    _, made, differences = render_tables(item, empty)
    assert cells(made, "static c")["print"].reason == "not started"
    assert cells(made, "static c")["refreshes"].text == ""
    assert differences.notes[-1] == "dynamic c − static c: no trial has both under the same conditions."
    for write in FORMATS.values():
        assert "static c" in write(render_tables(item, empty))


def test_other_runs_in_the_store_are_not_looked_at(tmp_path, three_trials):
    item = replace(dynamic(SMOKE), trials=3)
    store = store_of(tmp_path / "store", item, accuracy)
    before = FORMATS["csv"](render_tables(item, store))
    other = replace(dynamic(SMOKE), trials=3, settings={"lr": 0.5})
    for run in other.runs():
        finish(store, run, item.domains()["digits"], 0.99, 0)
    assert FORMATS["csv"](render_tables(item, store)) == before


def test_a_damaged_run_is_told(tmp_path):
    item = dynamic(SMOKE)
    store = store_of(tmp_path / "store", item, accuracy)
    run = next(run for run in item.runs() if "static" in run.algorithm and run.targets == ("print",))
    (store.folder(run) / "records.jsonl").write_text("{}\n")
    with pytest.warns(Notice, match="left out: "):
        _, made, _ = render_tables(item, store)
    assert cells(made, "static c")["print"].reason.startswith("damaged: ")
    assert cells(made, "static c")["runs"].text == "1/2"


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        (("records", 0, "accuracy", "print", "in"), 1e308, "records.jsonl: line 1"),
        (("records", 0, "step"), 10**400, "records.jsonl: line 1: step"),
        (("run", "settings", "batch_size"), [8], "settings.batch_size"),
        (("run", "data", "sizes", "print"), {"in": 0, "out": 0}, "data.sizes['print']"),
        (("run", "settings", "algorithm"), "DSPReg(", "settings.algorithm"),
        (("run", "settings", "algorithm"), "DSPReg(refresh_steps=0)", "settings.algorithm"),
        (("run", "settings", "algorithm"), "DSPReg(refresh_steps='x')", "settings.algorithm"),
        (("run", "settings", "algorithm"), "Nobody", "settings.algorithm"),
        (("run", "settings", "algorithm"), "nobodys.module:Method", "settings.algorithm"),
        (("result", "refreshes"), "many", "refreshes"),
        (("result", "refreshes"), -3, "refreshes"),
    ],
    ids=str,
)
def test_a_tampered_run_is_left_out_by_name(tmp_path, field, value, named):
    """Where one has a flipped byte, the same numbers are left."""
    item, tables = dynamic(SMOKE), []
    run = next(run for run in item.runs() if "static" in run.algorithm and run.targets == ("print",))
    for name in ("flipped", "tampered"):
        store = store_of(tmp_path / name, item, accuracy)
        if name == "flipped":
            (store.folder(run) / "records.jsonl").write_text("{}\n")
        else:
            files = Files(store.folder(run).path)
            files.put(field, value)
            files.seal()
        with pytest.warns(Notice, match="left out: ") as said:
            tables.append(render_tables(item, store))
    assert named in str(said[0].message)
    assert str(store.folder(run).path) in str(said[0].message)
    flipped, tampered = ([[row.cells for row in table.rows] for table in made] for made in tables)
    numbers = [[[(c.value, c.error, c.text, bool(c.reason)) for c in row] for row in t] for t in flipped]
    assert numbers == [[[(c.value, c.error, c.text, bool(c.reason)) for c in row] for row in t] for t in tampered]


def test_runs_under_other_conditions_are_not_compared_with_each_other(tmp_path):
    """Static in two ways, dynamic in one: the pairs are those of equal threads."""
    item = replace(dynamic(SMOKE), trials=3)
    store = RunStore(tmp_path / "store")
    store.make()
    for run in item.runs():
        threads = 4 if run.trial == 2 and "static" in run.algorithm else 1
        finish(store, run, item.domains()["digits"], accuracy(run), 0, threads=threads)
    _, made, differences = render_tables(item, store)
    assert {row.label for row in made.rows} == {"dynamic c [threads=1]", "static c [threads=1]", "static c [threads=4]"}
    assert cells(differences, "dynamic c − static c")["pairs"].text == "4"


def test_pacs_has_the_papers_domains_and_differences(tmp_path):
    """At the small scale it is about the same images, so a difference is shown, and said not to be one of methods."""
    item = replace(dynamic(SMALL), trials=1)
    store = store_of(tmp_path / "store", item, lambda run: 0.5, lambda run: 4, steps=300)
    _, made, _ = render_tables(item, store)
    theirs, apart = cells(made, "static c", "paper"), cells(made, "static c", "difference")
    assert [theirs[name].value for name in ("photo", "art_painting", "cartoon", "sketch", "mean")] == [
        97.5, 84.7, 81.0, 79.6, 85.7,
    ]  # fmt: skip
    assert apart["photo"].value == pytest.approx(50 - 97.5)
    assert cells(made, "dynamic c")["planned"].text == "4"  # before 60, 120, 180, 240
    assert "not one of methods" in made.notes[1]


def test_latex_has_no_letter_that_pdflatex_lacks(tmp_path):
    for name, make in {"components": components, "interval": interval, "main": main}.items():
        item = make(SMOKE)
        text = FORMATS["latex"](render_tables(item, store_of(tmp_path / name, item, lambda run: 0.5)))
        assert [c for c in text if not c.isascii()] == []
        assert name != "components" or r"$\lambda$ = 0" in text


def test_an_arm_whose_c_was_never_measured_is_no_dsp_reg(tmp_path):
    """Five steps, refreshes before 10, 20, …: none is planned, none happens, and c stays 1. λ = 0 has none to miss."""
    item = components(SMOKE)
    store = store_of(tmp_path / "store", item, lambda run: 0.5, steps=5)
    _, made, _ = render_tables(item, store)
    assert (cells(made, "full method")["refreshes"].text, cells(made, "full method")["planned"].text) == ("0", "0")
    assert made.notes[2:] == tuple(
        f"{label}: c was never measured in 2 of 2 runs, which have a plain gradient penalty, c = 1"
        for label in ("full method", "c shuffled")
    )


def test_the_scale_says_what_was_set_and_no_more():
    def noted(item):
        return " ".join(scale_table(item)[0].notes) if scale_table(item) else ""

    assert "measure_batches=2" in noted(components(SMOKE))
    assert "measure_batches" not in noted(maps(SMOKE))
    assert "T counts 5 steps for an epoch" in noted(interval(SMOKE))
    assert noted(components(PAPER)) == ""
    assert "weights=none" in noted(replace(components(PAPER), settings={"weights": "none"}))
    assert noted(replace(components(PAPER), settings={"weights": "here.safetensors"})) == ""
    assert "precision=bf16" in noted(replace(components(PAPER), precision="bf16"))


def test_an_order_is_told_for_a_figure(tmp_path):
    item = interval(SMOKE)
    steps = {f"refresh_steps={5 * t}": 0.5 + 0.01 * t for t in (1, 2, 3, 4)}
    store = store_of(
        tmp_path / "store", item, lambda run: next(v for k, v in steps.items() if f"{k}," in run.algorithm)
    )
    *_, differences = render_tables(item, store)
    assert "54.0 %, is at T = 4; the paper takes 2, so elsewhere" in differences.notes[-1]
    assert cells(differences, "T = 2 − T = 4")["difference"].value == pytest.approx(-2.0)
    assert cells(differences, "T = 2 − T = 4")["paper"].value is None


def test_table_1(tmp_path):
    """On the digits: one column, the paper's mean of five beside it; DSP-Reg − ERM is 66.7 − 63.3 there."""
    item = main(SMOKE)
    store = store_of(tmp_path / "store", item, lambda run: 0.7 if "DSPReg" in run.algorithm else 0.6)
    _, made, differences = render_tables(item, store)
    assert made.columns == ("digits", "mean", "refreshes", "planned", "runs")
    assert cells(made, "DSP-Reg")["digits"].value == pytest.approx(70.0)
    assert cells(made, "DSP-Reg", "paper")["mean"].value == 66.7
    assert len([row for row in made.rows if row.source == "ours"]) == 20
    assert [row.cells[-1].value for row in differences.rows] == pytest.approx([3.4, 0.6, 0.4, 0.4])
    assert cells(made, "CORAL")["refreshes"].text == ""
    shared = pacs(SMOKE)
    assert cells(render_tables(shared, store)[1], "DSP-Reg")["runs"].text == "2/2"  # the same runs


def test_table_1_of_five_data_sets(tmp_path):
    item = replace(main(SMALL), trials=1, variants=tuple(main(SMALL).variant(label) for label in ("ERM", "DSP-Reg")),
                   pairs=(("DSP-Reg", "ERM"),))  # fmt: skip

    def accuracy(run):
        return (0.6 if run.data_name == "PACS" else 0.5) + (0.02 if "DSPReg" in run.algorithm else 0)

    def left_out(run):
        return run.targets == ("clipart",) and "DSPReg" in run.algorithm

    store = store_of(tmp_path / "store", item, accuracy, leave_out=left_out)
    _, made, differences = render_tables(item, store)
    assert made.columns[:6] == ("PACS", "VLCS", "OfficeHome", "TerraIncognita", "DomainNet", "mean")
    erm, ours = cells(made, "ERM"), cells(made, "DSP-Reg")
    assert [erm[name].value for name in ("PACS", "VLCS", "mean")] == pytest.approx([60.0, 50.0, 52.0])
    assert ours["DomainNet"].reason == "no number for clipart"
    assert ours["mean"].value is None
    assert ours["runs"].text == "21/22"
    assert cells(made, "DSP-Reg", "paper")["DomainNet"].value == 45.6
    assert cells(made, "ERM", "difference")["PACS"].value == pytest.approx(60 - 85.5)
    assert cells(differences, "DSP-Reg − ERM")["pairs"].text == "21"
    assert "no verdict (no target has two pairs)" in differences.notes[-1]
