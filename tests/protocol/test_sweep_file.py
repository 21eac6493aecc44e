"""Sweeps as they are written down: what they mean, and every mistake with its line."""

import string

import pytest

from dspreg.errors import ConfigError
from dspreg.protocol.sweep_file import KEYS, Sweep, load_recipe, read_sweep
from dspreg.runs.run import Run

DOMAINS = {"PACS": ("a", "c", "p", "s"), "folder:x/photos": ("north", "south", "west")}

WHOLE = """
datasets: [PACS, folder:x/photos]
algorithms:
  - ERM
  - "CORAL(weight=0.5)+DSPReg"
targets: all
trials: 2
draws: 3
only: training
same_draws: yes
settings:
  steps: 1e2
  protocol: swad
execution:
  root: data
  name: mine
"""


@pytest.fixture
def written(tmp_path):
    def write(text):
        (tmp_path / "sweep.yaml").write_text(text)
        return read_sweep(tmp_path / "sweep.yaml")

    return write


def test_a_whole_file(written):
    values = written(WHOLE)
    assert values == {
        "datasets": ("PACS", "folder:x/photos"), "algorithms": ("ERM", "CORAL(weight=0.5)+DSPReg"), "targets": None,
        "trials": 2, "draws": 3, "only": "training", "same_draws": True,
        "settings": {"steps": 100, "protocol": "swad"}, "execution": {"root": "data", "name": "mine"},
    }  # fmt: skip
    assert set(values) == set(KEYS)
    runs = Sweep(**values).runs(DOMAINS.__getitem__)
    assert len(runs) == 2 * (4 + 3) * 2 * 3
    options = {"steps": 100, "same_draws": True}
    assert runs[0] == Run(dataset="PACS", targets=("a",), algorithm="ERM", protocol="swad", options=options)
    last = Run(dataset="folder:elsewhere", name="mine", targets=("west",), algorithm="CORAL(weight=0.5)+DSPReg",
               protocol="swad", trial=1, draw=2, options=options)  # fmt: skip
    assert runs[-1] == last


def test_the_defaults_are_domainbeds(written):
    runs = Sweep(**written("datasets: PACS\nalgorithms: ERM\n")).runs(DOMAINS.__getitem__)
    assert len(runs) == 600
    assert {len(run.targets) for run in runs} == {1, 2}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("datasets: [PACS]\ndatasets: [VLCS]", "line 2: 'datasets' is given twice"),
        ("same-draws: yes\nsame_draws: no", "line 2: 'same_draws' is given twice"),
        ("settings:\n  lr: 1\n  lr: 2", "line 3: 'lr' is given twice"),
        ("settings:\n  learning_rate: 1", "line 2: unknown option 'learning_rate'. Did you mean 'lr'?"),
        ("settings: 3", "line 1: wanted 'key: value' lines"),
        ("settings:\n  steps: many", "line 2: steps='many'; wanted a whole number at least 1"),
        ("steps: 3", "line 1: unknown key 'steps' of a sweep. Write it below settings:"),
        ("device: cpu", "line 1: unknown key 'device' of a sweep. Write it below execution:"),
        ("trials: 0", "line 1: trials='0'; wanted a whole number at least 1"),
        ("trials: [1, 2]", "line 1: trials="),
        ("draws: 1.5", "line 1: draws='1.5'"),
        ("only: oracle", "line 1: only='oracle'; wanted training"),
        ("same_draws: perhaps", "line 1: same_draws='perhaps'; wanted true or false"),
        ("datasets: !!python/object:x.Y [a]", "is not understood"),
        ("datasets: [[a]]", "wanted a plain value or a list of them"),
        ("- a", "line 1: wanted 'key: value' lines"),
        ("a: b: c", "is not YAML"),
    ],
)
def test_a_mistake_is_told_with_its_line(written, text, message):
    with pytest.raises(ConfigError) as refused:
        written(text)
    assert message in str(refused.value)


@pytest.mark.parametrize("key", KEYS)
def test_every_misspelt_key_is_refused(written, key):
    """One letter left out, doubled or changed."""
    wrong = {key[:i] + key[i + 1 :] for i in range(len(key))} | {key[:i] + key[i] + key[i:] for i in range(len(key))}
    wrong |= {key[:i] + c + key[i + 1 :] for i in range(len(key)) for c in string.ascii_lowercase}
    for each in wrong - {*KEYS}:
        with pytest.raises(ConfigError, match=r"line 1: (unknown key|'key: value'|wanted)"):
            written(f"{each}: 3")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"datasets": ()}, r"needs datasets, such as datasets: \[PACS\]"),
        ({"algorithms": ()}, "needs algorithms"),
        ({"targets": ()}, "or write targets: all"),
        ({"settings": {"trial": 1}}, "write trials: at the top"),
        ({"settings": {"dataset": "PACS"}}, "write datasets: at the top"),
        ({"settings": {"same_draws": True}}, "write same_draws: at the top"),
        ({"settings": {"device": "cpu"}}, "goes below execution:"),
        ({"execution": {"lr": 0.1}}, "goes below settings:"),
        ({"execution": {"name": "mine"}}, "is for one folder: or index: data set; there are 0"),
        ({"execution": {"name": "m"}, "datasets": ("folder:a", "index:b.csv")}, "there are 2"),
    ],
)
def test_what_does_not_go_together(changes, message):
    with pytest.raises(ConfigError, match=message):
        Sweep(**{"datasets": ("PACS",), "algorithms": ("ERM",), **changes})


RECIPE = """
from dspreg.protocol.leave_one_out import leave_one_out

def runs():
    return leave_one_out({"PACS": ("a", "b", "c")}, ["ERM"], trials=1, draws=1)

def twice():
    yield from runs()
    yield from runs()

def strings():
    return ["ERM"]

def nothing():
    return []

def fails():
    return 1 / 0

number = 3
"""


def test_recipes(tmp_path, monkeypatch):
    (tmp_path / "my_recipe.py").write_text(RECIPE)
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "my_recipe.py"
    expected = [("a",), ("a", "b"), ("a", "c"), ("b",), ("b", "c"), ("c",)]
    for text in (f"{path}", f"{path}:runs", f"{path}:twice", "my_recipe:runs", "my_recipe.twice"):
        assert [run.targets for run in load_recipe(text)] == expected
    for text, message in [
        (f"{path}:strings", "returned 'ERM'; wanted runs"),
        (f"{path}:nothing", "returned no runs"),
        (f"{path}:fails", "failed: ZeroDivisionError"),
        (f"{path}:number", "is not a function"),
        (f"{path}:missing", "has no function 'missing'"),
        (f"{tmp_path}/gone.py", "there is no file"),
        ("my_recipe:gone", "can't be imported"),
        ("gone.recipe", "no module 'gone'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            load_recipe(text)
    (tmp_path / "broken.py").write_text("import")
    with pytest.raises(ConfigError, match="failed: SyntaxError"):
        load_recipe(str(tmp_path / "broken.py"))
