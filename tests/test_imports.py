"""The import rule: a module imports from its own package and from packages in rows above it, never below."""

import ast
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import dspreg

SOURCE = Path(dspreg.__file__).parent
ROOT = Path(__file__).parents[1]


class Place(NamedTuple):
    row: int
    packages: frozenset[str] = frozenset()  # from outside, anywhere in the file
    inside: frozenset[str] = frozenset()  # only inside functions or for type checkers: slow to import, or optional


NUMPY = frozenset({"numpy"})
TORCH = NUMPY | {"torch", "safetensors"}
VISION = TORCH | {"torchvision"}
SLOW = frozenset({"pandas", "matplotlib", "rich"})
LAZY_IO = frozenset({"IPython", "filelock", "jinja2", "matplotlib", "numpy", "rich", "safetensors"})

TABLE = {
    # without torch: results can be read on any laptop
    "errors": Place(1, NUMPY),
    "io": Place(
        2, frozenset(), frozenset({"IPython", "filelock", "jinja2", "matplotlib", "numpy", "rich", "safetensors"})
    ),
    "starter": Place(3),
    "download": Place(3, frozenset(), frozenset({"huggingface_hub"})),
    "specs": Place(3),
    "domainbed/seeds.py": Place(2),  # stands below the rest of its package: draws, splits and defaults use its hash
    "distributions": Place(3, NUMPY),
    "forecast": Place(3, NUMPY),
    "metrics": Place(3, NUMPY, frozenset({"scipy", "sklearn"})),
    "config": Place(4, NUMPY | {"yaml"}),
    "runs": Place(5, NUMPY),
    "protocol": Place(6, NUMPY),
    "domainbed": Place(7, NUMPY),
    # the numerical core
    "batches": Place(3, TORCH),
    "kinds": Place(2, NUMPY),
    "devices": Place(2, TORCH),
    "precision": Place(2, TORCH),
    "randomness": Place(3, TORCH),
    "vectors": Place(3, TORCH),
    "networks": Place(4, VISION, frozenset({"timm", "huggingface_hub", "open_clip"})),
    "sensitivity": Place(5, VISION, SLOW),
    "penalty": Place(6, VISION),
    "algorithms": Place(7, TORCH),
    "data": Place(7, VISION | {"PIL", "sklearn"}, SLOW | {"pyarrow", "pydicom", "pillow_heif"}),
    # what is done with it
    "training": Place(8, TORCH, SLOW | {"timm", "peft", "tensorboard", "mlflow", "wandb", "trackio"}),
    "inference": Place(9, TORCH | {"PIL"}, SLOW | {"onnxruntime", "scipy", "sklearn"}),
    "testing": Place(9, TORCH | {"PIL"}),  # an image of a data set is PIL's
    "launch": Place(9, TORCH, SLOW | {"ray"}),
    "reporting": Place(8, NUMPY, SLOW | {"scipy"}),
    "domainbed/import_sweep.py": Place(9),  # stands above the rest: needs the domains of benchmarks
    "domainbed/write_sweep.py": Place(9),  # stands above the rest: a report of ours as a folder of DomainBed's
    "paper": Place(10, TORCH, SLOW),
    "sites": Place(10, TORCH, SLOW | {"PIL"}),
    "doctor": Place(10, TORCH | {"PIL"}),
    "integrations": Place(9, TORCH | {"sklearn", "lightning", "transformers", "accelerate"}),  # each file its own
    "watch": Place(10),
    "cli": Place(11, frozenset(), SLOW | {"shtab"}),
    "__main__": Place(12),
    "__init__": Place(12),
}
DRAWS = {
    "sensitivity/plots.py",
    "paper/figures.py",
    "inference/confusion.py",
    "inference/curve_pictures.py",
}  # may import matplotlib at the top
INDEXES = {"__init__.py", "registry.py", "catalogue.py"}  # may import other algorithms
FOUNDATIONS = {
    "base",
    "classifier_first",
    "compatibility",
    "stack",
    "task",
    "anchor",  # EWC and L2SP are anchors
    "domain_gradients",
    "gradient_mask",
    "image_reader",
    "loss_valley",
    "foreign_state",
    "measure",
    "pretrained_oracle",
    "warm_up",
    "weight_average",
}  # what algorithms stand on


def imports(node, inside=False):
    """Every import below `node` as a full dotted name, and whether it waits for a call or a type checker."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, inside) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            start = "." * child.level + (child.module or "")
            yield from ((f"{start}.{alias.name}", inside) for alias in child.names)
        elif isinstance(child, ast.If) and ast.unparse(child.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            yield from imports(ast.Module(child.body, []), True)
            yield from imports(ast.Module(child.orelse, []), inside)
        else:
            yield from imports(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def faults(path, root):
    """What is wrong with one file, in words."""
    file = path.relative_to(root)
    place = TABLE.get(file.as_posix()) or TABLE.get(file.parts[0].removesuffix(".py"))
    if place is None:
        return ["has no row: give it a place in TABLE"]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    wrong = []
    for name, inside in imports(tree):
        package, _, rest = name.partition(".")
        if not package:
            wrong.append(f"imports {name} relatively")
        elif package == "dspreg":
            wrong += _own(file, place, rest)
        elif package not in sys.stdlib_module_names:
            allowed = place.packages | (place.inside if inside else frozenset())
            if package not in allowed and not (package == "matplotlib" and file.as_posix() in DRAWS):
                wrong.append(f"imports {package}" + ("" if inside else " at the top"))
    return wrong


def _own(file, place, rest):
    module = rest.split(".")[0]
    if module == "__version__":
        return []
    if module not in TABLE:
        return [f"imports {module or 'dspreg'!r} from the package and not from its home"]
    home = TABLE.get("/".join(rest.split(".")[:2]) + ".py", TABLE[module])
    if module != file.parts[0].removesuffix(".py") and home.row >= place.row:
        return [f"imports dspreg.{module} from a row below"]
    is_an_algorithm = file.parts[0] == module == "algorithms" and file.name not in INDEXES
    if is_an_algorithm and not FOUNDATIONS & set(rest.split(".")[1:2]):
        return [f"imports dspreg.{rest}; what two algorithms share goes one row up"]
    return []


STARTER = SOURCE / "starter" / "files"  # the user's own to be: they import dspreg as users do
FILES = sorted(path for path in SOURCE.rglob("*.py") if STARTER not in path.parents)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_imports_keep_to_the_rows(path):
    assert faults(path, SOURCE) == []


def test_there_is_something_to_check():
    assert len(FILES) > 30
    assert sum(1 for path in FILES for _ in imports(ast.parse(path.read_text(encoding="utf-8")))) > 200


@pytest.mark.parametrize(
    ("file", "code", "fault"),
    [
        ("distributions.py", "import torch", "imports torch at the top"),
        ("distributions.py", "def f():\n    import torch", "imports torch"),
        ("vectors.py", "from dspreg.networks import Network", "dspreg.networks from a row below"),
        ("vectors.py", "def f():\n    from dspreg import penalty", "dspreg.penalty from a row below"),
        ("data/pacs.py", "import dspreg.algorithms as a", "dspreg.algorithms from a row below"),
        ("sensitivity/measure.py", "import pandas as pd", "imports pandas at the top"),
        (
            "sensitivity/measure.py",
            "try:\n    import rich.progress\nexcept ImportError: ...",
            "imports rich at the top",
        ),
        ("sensitivity/profile.py", "class A:\n    from matplotlib.figure import Figure", "imports matplotlib at"),
        (
            "sensitivity/profile.py",
            "if TYPE_CHECKING:\n    x = 1\nelse:\n    import pandas",
            "imports pandas at the top",
        ),
        ("sensitivity/plots.py", "import pandas", "imports pandas at the top"),
        ("data/base.py", "def f():\n    import timm", "imports timm"),
        ("networks/timm.py", "import timm", "imports timm at the top"),
        ("algorithms/sam.py", "from dspreg.algorithms.coral import covariance", "share goes one row up"),
        ("algorithms/sam.py", "from dspreg.algorithms import Fish", "share goes one row up"),
        ("algorithms/sam.py", "from .base import Algorithm", "relatively"),
        ("algorithms/sam.py", "from dspreg.training import train_step", "from a row below"),
        ("training/recording.py", "from dspreg.reporting.table import Cell", "dspreg.reporting from a row below"),
        ("domainbed/records.py", "from dspreg.reporting.table import Cell", "dspreg.reporting from a row below"),
        ("penalty.py", "from dspreg import ERM", "not from its home"),
        ("penalty.py", "import dspreg", "not from its home"),
        ("new_idea.py", "", "has no row"),
        ("new/idea.py", "", "has no row"),
    ],
)
def test_the_check_finds_what_it_should(tmp_path, file, code, fault):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(code, encoding="utf-8")
    found = faults(path, tmp_path)
    assert len(found) == 1
    assert fault in found[0]


@pytest.mark.parametrize(
    ("file", "code"),
    [
        ("errors.py", "import json\nfrom collections.abc import Mapping"),
        ("sensitivity/measure.py", "if TYPE_CHECKING:\n    import pandas as pd"),
        ("sensitivity/measure.py", "class A:\n    def f(self):\n        from matplotlib.figure import Figure"),
        ("sensitivity/plots.py", "from matplotlib.figure import Figure"),
        ("networks/timm.py", "def f():\n    import timm, huggingface_hub"),
        ("algorithms/sam.py", "from dspreg.algorithms.base import Algorithm\nfrom dspreg.vectors import displaced"),
        ("algorithms/registry.py", "import dspreg.algorithms as index"),
        ("cli.py", "import argparse\nfrom dspreg import __version__\nfrom dspreg.training import train_step"),
        ("domainbed/write_sweep.py", "from dspreg.reporting.load import load_run"),
    ],
)
def test_the_check_lets_pass_what_it_should(tmp_path, file, code):
    path = tmp_path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text(code, encoding="utf-8")
    assert faults(path, tmp_path) == []


@pytest.mark.parametrize("module", ["dspreg", "dspreg.errors, dspreg.distributions, dspreg.config.measure_config"])
def test_importing_starts_without_torch(module):
    program = f"import sys, {module}; print([m for m in ('torch', 'pandas', 'matplotlib') if m in sys.modules])"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout.strip() == "[]"


def test_public_names_are_those_of_their_homes():
    for name in dspreg.__all__:
        assert getattr(dspreg, name) is not None
        assert name in dir(dspreg)
    with pytest.raises(AttributeError, match="module 'dspreg' has no attribute 'erm'"):
        dspreg.erm  # noqa: B018


def test_architecture_has_these_rows():
    text = (Path(__file__).parents[1] / "ARCHITECTURE.md").read_text()
    rows = {name: int(row) for row, name in re.findall(r"^\| (\d+) \| `(\w+)` \|", text, re.M)}
    assert rows == {name: place.row for name, place in TABLE.items() if "/" not in name and not name.startswith("__")}


def test_the_stub_has_the_names_and_homes_of_the_package():
    stub = (SOURCE / "__init__.pyi").read_text()
    found = re.findall(r"^from dspreg\.([\w.]+) import (\w+) as (\w+)$", stub, re.M)
    homes = {name: f"{module}:{name}" if ":" not in module else module for name, module in dspreg._HOMES.items()}
    assert {name: f"{module}:{attribute}" for module, attribute, name in found} == homes
    assert set(re.findall(r"^from dspreg import (\w+) as \w+$", stub, re.M)) == set(dspreg._MODULES)


def test_old_names_of_modules_still_work():
    with pytest.warns(dspreg.Notice, match=r"dspreg\.priors is now dspreg\.distributions"):
        assert dspreg.priors is dspreg.distributions
    with pytest.warns(dspreg.Notice, match=r"dspreg\.TrainingCallback is now dspreg\.Callback"):
        assert dspreg.TrainingCallback is dspreg.Callback


# Scripts use `dspreg.X` and these modules. What they import from inside the package stands below, with the reason.
PUBLIC_MODULES = {"integrations", "algorithms", "data", "distributions", "networks", "testing", "vectors"}
SCRIPTS = sorted(path for folder in ("bench", "evidence", "examples") for path in (ROOT / folder).rglob("*.py"))
OPTIONAL = {"accelerate", "lightning", "transformers"}  # extras of single examples
INTERNAL = {
    "bench/algorithms.py": ("algorithms.registry", "times every method of the catalogue"),
    "bench/assumptions.py": ("training.experiment", "steps through a real training by hand"),
    "bench/engines.py": ("penalty", "compares engines, which users name by text"),
    "bench/forecast.py": ("forecast", "compares the forecast with other intervals"),
    "bench/kinks.py": ("batches penalty", "calls engines one by one"),
    "bench/leases.py": ("launch.queue runs.leases runs.store", "times the leases themselves"),
    "bench/many_runs.py": (
        "io.atomic_files runs.folder runs.store",
        "forges up to a million runs, untrained",
    ),
    "bench/loading.py": ("config.reading data.loader data.transforms", "times images without a training"),
    "bench/maps.py": ("paper.figures paper.heat_maps", "draws an item of the paper at other sizes"),
    "bench/noise.py": (
        "inference.adapt_bn randomness sensitivity.statistics",
        "resamples as `measure` does",
    ),
    "bench/peer/launch_dspreg.py": ("cli training", "runs the command line, up to its first step if asked"),
    "bench/peer/steps.py": ("training.experiment", "times a step without its training"),
    "bench/penalty.py": ("paper.overhead", "times steps as the paper's item does"),
    "bench/real.py": ("training.experiment", "steps through a real training by hand"),
    "bench/running.py": (
        "algorithms.measure sensitivity.refresh sensitivity.running sensitivity.samples sensitivity.statistics",
        "measures s as a refresh does",
    ),
    "bench/scale.py": ("errors launch.queue protocol.sweep_file", "starts sweeps that train nothing"),
    "bench/sensitivity.py": (
        "sensitivity.evaluation_mode sensitivity.meter sensitivity.refresh sensitivity.samples",
        "times one refresh without its training",
    ),
    "bench/step.py": (
        "networks.fold_batch_norm training.fastest training.state",
        "takes and logs a step as the loop of a training does",
    ),
    "bench/trajectory.py": (
        "batches data.readers penalty training.experiment training.serialization",
        "swaps engines between two steps, and saves its state",
    ),
    "evidence/archives.py": ("runs.archive", "packs and unpacks stores"),
    "evidence/choices.py": ("data.sampling sensitivity.summary training.experiment", "measures at a checkpoint"),
    "evidence/load_checkpoint.py": (
        "training.experiment",
        "puts a stack back to a step of its training",
    ),
    "evidence/patterns.py": ("penalty training.experiment", "calls engines at a checkpoint"),
    "evidence/premise_tables.py": ("reporting.statistics", "intervals over targets, by Student's t"),
    "evidence/readings.py": (
        "penalty.tangent randomness sensitivity.profile sensitivity.statistics training.experiment",
        "arranges c as a refresh does, at a checkpoint",
    ),
    "examples/quickstart.py": (
        "io.html reporting.expected reporting.html.dots reporting.html.page",
        "its page has the look of the report",
    ),
}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_scripts_use_the_public_interface(path):
    deep = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dspreg."):
            deep.add(node.module.removeprefix("dspreg."))
        elif isinstance(node, ast.ImportFrom) and node.module == "dspreg":
            assert {alias.name for alias in node.names} <= {*dspreg.__all__, *PUBLIC_MODULES}
        elif isinstance(node, ast.Import):
            assert not any(alias.name.startswith("dspreg.") for alias in node.names)
    allowed, _ = INTERNAL.get(path.relative_to(ROOT).as_posix(), ("", ""))
    assert deep - PUBLIC_MODULES == set(allowed.split())


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_imports_of_scripts_exist(path, monkeypatch):
    """A module that was renamed leaves a script behind, which no other test may run."""
    monkeypatch.syspath_prepend(str(path.parent))
    monkeypatch.setitem(sys.modules, "plots", None)  # bench/ and evidence/ have one each; undone at the end
    del sys.modules["plots"]
    for node in ast.parse(path.read_text("utf-8")).body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        module = node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        if module.split(".")[0] in OPTIONAL or module == "__future__":
            continue
        if module.split(".")[0] in ("dspreg", "helpers", "reference") and isinstance(node, ast.ImportFrom):
            found = importlib.import_module(module)
            for name in (alias.name for alias in node.names):
                inside = hasattr(found, "__path__") and importlib.util.find_spec(f"{module}.{name}")
                assert hasattr(found, name) or inside, f"{module} has no {name}"
        else:
            assert importlib.util.find_spec(module) is not None, f"there is no {module}"


def test_the_table_of_internals_names_scripts():
    assert set(INTERNAL) <= {path.relative_to(ROOT).as_posix() for path in SCRIPTS}


def test_the_public_modules_are_those_of_the_api_page():
    page = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    sentence = page[page.index("Modules you may import from") : page.index("Everything else is internal")]
    assert set(re.findall(r"`dspreg\.(\w+)`", sentence)) == PUBLIC_MODULES
