"""What every item trains, at every scale, and where the paper's figures for it are."""

import csv
import inspect
import re
from pathlib import Path

import pytest

import dspreg
from dspreg.algorithms import describe, parse
from dspreg.algorithms.registry import StackSpec
from dspreg.cli import paper as command
from dspreg.cli.parser import Parser
from dspreg.config.train_config import TrainConfig, resolve_config
from dspreg.data import PACS, Digits
from dspreg.paper.item import Variant
from dspreg.paper.items import ITEMS, components, dynamic, interval, main, strength
from dspreg.paper.methods import METHODS
from dspreg.paper.results import planned_refreshes
from dspreg.paper.scales import PAPER, SCALES, SMALL, SMOKE, dsp_reg
from dspreg.protocol.sweep_file import load_recipe
from dspreg.training.experiment import resolve_stack

COUNTS = {  # variants × targets × trials × draws, by hand
    "main": (20 * (4 + 4 + 4 + 4 + 6) * 3 * 20, 20 * 22 * 3, 20 * 2),
    "pacs": (20 * 4 * 3 * 20, 20 * 4 * 3, 20 * 2),
    "vlcs": (20 * 4 * 3 * 20, 20 * 4 * 3, 20 * 2),
    "officehome": (20 * 4 * 3 * 20, 20 * 4 * 3, 20 * 2),
    "terra": (20 * 4 * 3 * 20, 20 * 4 * 3, 20 * 2),
    "domainnet": (20 * 6 * 3 * 20, 20 * 6 * 3, 20 * 2),
    "components": (4 * 4 * 3, 4 * 4 * 5, 4 * 2),
    "dynamic": (2 * 4 * 3, 2 * 4 * 5, 2 * 2),
    "interval": (4 * 4 * 3, 4 * 4 * 5, 4 * 2),
    "strength": (4 * 4 * 3, 4 * 4 * 5, 4 * 2),
    "maps": (2, 2, 2),
    "overhead": (0, 0, 0),
    "compose": (8 * 4 * 3, 8 * 4 * 5, 8 * 2),
}
CASES = [(name, scale) for name in ITEMS for scale in SCALES]


def published():
    path = Path(dspreg.__file__).parent / "reporting/published_results.csv"
    return list(csv.DictReader(path.read_text().splitlines()))


def test_the_items_are_those_of_the_list():
    assert list(ITEMS) == list(COUNTS)


@pytest.mark.parametrize(("name", "scale"), CASES)
def test_runs_are_as_many_as_counted_by_hand(name, scale):
    item = ITEMS[name](SCALES[scale])
    expected = COUNTS[name][list(SCALES).index(scale)]
    assert item.count() == expected
    if expected < 5_000:
        runs = item.runs()
        assert len(runs) == len({run.id for run in runs}) == expected
        assert {len(run.targets) for run in runs} <= {1}  # no pairs: selection is by source validation


@pytest.mark.parametrize("engine", ["exact", "lookahead", "lazy(30)"])
@pytest.mark.parametrize("name", ITEMS)
def test_specs_parse_at_every_scale(name, engine):
    for scale in SCALES.values():
        for variant in ITEMS[name](scale, engine).variants:
            parsed = parse(variant.spec)
            assert describe(parse(describe(parsed))) == describe(parsed)
            layers = [layer for layer in parsed.layers() if type(layer).__name__ == "DSPReg"]
            assert bool(layers) == ("DSPReg" in variant.spec)
            if layers and layers[0].weight and name not in ("strength", "overhead"):
                assert layers[0].engine == engine


def test_strength_has_the_formula_beside_another_engine():
    for engine in ("finite_difference", "exact"):
        assert [variant.line for variant in strength(SMALL, engine).variants] == [engine] * 4
    both = strength(SMALL, "lookahead")
    assert [variant.line for variant in both.variants] == ["lookahead"] * 4 + ["finite_difference"] * 4
    assert both.count() == 160
    assert len({variant.label for variant in both.variants}) == 8
    assert set(strength(SMALL).runs()) < set(both.runs())


def test_twenty_methods_as_the_paper_spells_them():
    rows = {row["algorithm"] for row in published() if row["table"] == "main"}
    assert {*METHODS, "DSP-Reg"} == rows
    assert len(rows) == 20
    assert {variant.label for variant in main().variants} == rows


@pytest.mark.parametrize("scale", SCALES.values(), ids=lambda s: s.name)
def test_items_share_the_runs_of_the_full_method(scale):
    full = {run for run in components(scale) if run.algorithm == components(scale).variant("full method").algorithm}
    assert len(full) == components(scale).count() // 4
    for item in (dynamic, interval, strength):
        assert full < set(item(scale))
    if scale.draws["methods"] == 1 and scale.trials["methods"] >= scale.trials["ablation"]:
        assert full <= set(ITEMS["pacs"](scale))


def test_what_runs_of_each_scale_are():
    paper, small, smoke = (resolve_config(TrainConfig.of(next(iter(components(scale))).settings()), data)
                           for scale, data in ((PAPER, PACS), (SMALL, PACS), (SMOKE, Digits)))  # fmt: skip
    assert (paper.model, paper.image_size, paper.steps, paper.batch_size) == ("resnet50.tv_in1k", 224, 5_001, 32)
    assert (small.model, small.image_size, small.steps, small.batch_size) == ("tf_efficientnet_lite0", 64, 300, 32)
    assert len({*range(0, small.steps, small.evaluate_every), small.steps - 1}) == 6
    assert (smoke.dataset, smoke.model, smoke.image_size, smoke.steps) == ("digits", "small-cnn", 28, 40)
    for scale, made in ((PAPER, paper), (SMALL, small), (SMOKE, smoke)):  # what is said is what is
        assert [scale.setting(name) for name in ("model", "image_size", "steps")] == [
            made.model,
            made.image_size,
            made.steps,
        ]


def test_a_search_leaves_the_penalty_and_the_batch_as_the_paper_has_them():
    """Draw 5 draws a learning rate, and neither λ nor T nor the batch size."""
    run = next(run for run in ITEMS["pacs"]() if run.draw == 5 and "DSPReg" in run.algorithm)
    settings = resolve_config(TrainConfig.of(run.settings()), PACS)
    assert settings.batch_size == 32
    assert settings.lr != 5e-5
    layer = resolve_stack(StackSpec.parse(settings.algorithm), settings)[0].build()
    assert (layer.weight, layer.refresh_epochs) == (1e-3, 2)


def test_refreshes_are_scaled():
    assert parse(dsp_reg(PAPER, T=3)).refresh_epochs == 3
    assert [parse(variant.spec).refresh_steps for variant in interval(SMALL).variants] == [30, 60, 90, 120]
    assert [parse(variant.spec).refresh_steps for variant in interval(SMOKE).variants] == [5, 10, 15, 20]


def described(spec, steps=5_001, sizes=(1_639, 1_876, 1_336, 3_144), targets=("sketch",), batch=32):
    domains = ("art_painting", "cartoon", "photo", "sketch", "e", "f")
    inside = {name: {"in": size, "out": 1} for name, size in zip(domains, sizes, strict=False)}
    settings = {"algorithm": spec, "steps": steps, "batch_size": batch, "targets": list(targets)}
    return {"settings": settings, "data": {"sizes": inside}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("DSPReg(refresh_epochs=1)", 101),  # E = ⌊4,851 / 96⌋ = 50: before 0, 50, …, 5,000
        ("DSPReg", 50),  # before 50, 150, …, 4,950
        ("DSPReg(refresh_epochs=3)", 33),  # before 100, 250, …, 4,900
        ("CORAL+DSPReg(refresh_epochs=4)", 25),  # before 150, 350, …, 4,950
        ("DSPReg(refresh_steps=60)", 83),  # before 60, …, 4,980
        ("DSPReg(refresh_steps=5000)", 1),
        ("DSPReg(refresh_steps=5001)", 0),
        ("DSPReg(coefficients='static')", 1),
        ("DSPReg(coefficients='shuffled')", 50),
        ("DSPReg(coefficients='ones')", 0),
        ("DSPReg(weight=0.0)", 0),
        ("CORAL", None),
    ],
)
def test_how_many_refreshes_are_planned(spec, expected):
    assert planned_refreshes(described(spec)) == expected


def test_refreshes_that_never_happen():
    """DomainNet without real, E = ⌊330,900 / 160⌋ = 2,068: once at T = 2 (2,068; then 6,204), never at T = 4."""
    sizes = (38_503, 42_481, 60_607, 138_000, 51_309, 138_000)
    for T, expected in ((1, 3), (2, 1), (4, 0)):
        found = described(f"DSPReg(refresh_epochs={T})", sizes=sizes, targets=("f",))
        assert sum(sizes[:5]) == 330_900
        assert planned_refreshes(found) == expected


def test_figures_of_the_paper_are_found():
    assert [variant.published_cells("PACS", ["photo", "Avg"])[-1].value for variant in components().variants] == [
        87.5,
        85.5,
        85.8,
        None,
    ]
    assert components().variants[1].published_cells("PACS", ["photo", "sketch"])[1].value == 79.3
    assert [variant.published_cells("PACS", ["Avg"])[0].value for variant in dynamic().variants] == [87.5, 85.7]
    assert [variant.published_cells("PACS", ["Avg"])[0].value for variant in interval().variants] == [
        None,
        87.5,
        None,
        None,
    ]
    assert [variant.published_cells("PACS", ["Avg"])[0].value for variant in strength().variants] == [
        None,
        87.5,
        None,
        None,
    ]
    for item in (ITEMS[name]() for name in ("main", "pacs", "vlcs", "officehome", "terra", "domainnet")):
        for dataset in item.datasets:
            for variant in item.variants:
                assert variant.published_cells(dataset, ["Avg"])[0].value is not None, (
                    item.name,
                    dataset,
                    variant.label,
                )
    pacs = ITEMS["pacs"]()
    assert pacs.variant("ERM").published_cells("PACS", ["Avg"])[0].value == 84.2  # 85.5 in Table 1
    assert main().variant("ERM").published_cells("PACS", ["Avg"])[0].value == 85.5
    fish = pacs.variant("Fish").published_cells("PACS", [*PACS.domains, "Avg"])
    assert [cell.value for cell in fish] == [None, None, None, None, 85.5]  # a mean alone, in Table 1
    assert [ITEMS["compose"]().variant(m).published_cells("PACS", ["Avg"])[0].value for m in ("CORAL", "SAM")] == [
        86.2,
        85.8,
    ]
    assert Variant("own", "ERM").published_cells("PACS", ["Avg"])[0].value is None


@pytest.mark.parametrize("name", ITEMS)
def test_docstrings_have_a_command_that_parses_a_cost_and_what_to_expect(name):
    text = inspect.getdoc(ITEMS[name])
    (line,) = re.findall(r"^ {4}dspreg (paper .+)$", text, re.M)
    parser = Parser(prog="dspreg")
    command.add(parser.add_subparsers())
    given = parser.parse_args(line.split())
    assert given.item == name
    assert command.build_item(given)[0].scale.name == given.scale
    assert "\nCost: " in text
    assert "\nExpect: " in text
    if name not in ("maps", "overhead"):
        assert f"{ITEMS[name]().count():,}" in text


def test_a_function_of_an_item_is_a_recipe():
    runs = load_recipe("dspreg.paper.items:components")
    assert runs == components(PAPER).runs()
    assert len(runs) == 48
