"""What SECURITY.md promises about the source: nothing in it can run code out of a file, a name or a shell."""

import ast
import re
import tomllib
from pathlib import Path

import pytest

import dspreg

SOURCE = Path(dspreg.__file__).parent
ROOT = Path(__file__).parent.parent
FILES = sorted(SOURCE.rglob("*.py"))

UNSAFE_MODULES = {
    **dict.fromkeys(
        ("pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"), "runs code from files"
    ),
    **dict.fromkeys(("subprocess", "pty", "commands"), "starts programs"),
    **dict.fromkeys(("tarfile", "zipfile"), "unpacks what a stranger packed"),
    **dict.fromkeys(("xmlrpc", "ctypes", "cffi"), "has no business here"),
}
UNSAFE_CALLS = {
    "eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "builtins.compile",
    "torch.load", "torch.jit.load", "torch.hub.load", "torch.serialization.add_safe_globals", "torch.package",
    "os.system", "os.popen", "os.startfile", "os.execv", "os.execvp", "os.spawnv",
    "yaml.load", "yaml.full_load", "yaml.unsafe_load", "yaml.load_all", "yaml.full_load_all", "yaml.unsafe_load_all",
    "pandas.read_pickle", "pd.read_pickle", "np.load", "numpy.load", "np.fromfile", "np.memmap",
    "shutil.unpack_archive", "tempfile.mktemp", "runpy.run_path", "runpy.run_module",
}  # fmt: skip
UNSAFE_WORDS = {  # keyword arguments that switch a protection off
    "allow_pickle": lambda value: value != "False",
    "shell": lambda value: value != "False",
    "autoescape": lambda value: value == "False",
    "weights_only": lambda value: value != "True",
    "trust_remote_code": lambda value: value != "False",
    "verify": lambda value: value == "False",
}
# Where the source may import a module whose name it was given. Everything else asks these.
IMPORTERS = {
    "io/domainbed_code.py": "a checkout of DomainBed that the user named or trusted",
    "io/importing.py": "names the user typed or trusted",
    "protocol/sweep_file.py": "a sweep written in Python, which the user named on the command line",
    "__init__.py": "the public names of this package",
}
ALLOWED = {
    ("runs/archive.py", "tarfile"): "writes plain files itself, each path checked",
    ("download/archives.py", "tarfile"): "the same",
    ("download/archives.py", "zipfile"): "the same",
    ("networks/convert.py", "subprocess"): "starts Python on a module of ours, to read a checkpoint out of the way",
    ("networks/pickle_reader.py", "torch.load"): "with weights_only=True, in that process and nowhere else",
}


def unsafe(path: Path, root: Path) -> list[str]:
    """What is unsafe in one file, in words."""
    file = path.relative_to(root).as_posix()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [fault for node in ast.walk(tree) for fault in _faults(node, file)]


def _faults(node: ast.AST, file: str):
    if isinstance(node, ast.Import | ast.ImportFrom):
        names = [alias.name for alias in node.names]
        modules = names if isinstance(node, ast.Import) else [node.module or ""]
        for package in {module.split(".")[0] for module in modules}:
            if package in UNSAFE_MODULES and (file, package) not in ALLOWED:
                yield f"imports {package}, which {UNSAFE_MODULES[package]}"
        full = names if isinstance(node, ast.Import) else [f"{node.module}.{name}" for name in names]
        yield from (f"imports {name}" for name in full if name in UNSAFE_CALLS)
        if any(name.split(".")[0] == "importlib" and not _only_reads(name) for name in full) and file not in IMPORTERS:
            yield "imports importlib; names are imported by io/importing.py"
    if isinstance(node, ast.Call):
        if (called := ast.unparse(node.func)) in UNSAFE_CALLS or called.endswith((".extractall", ".extract")):
            if (file, called) not in ALLOWED:
                yield f"calls {called}"
            elif called == "torch.load" and "weights_only=True" not in ast.unparse(node):
                yield f"calls {called} without weights_only=True"
        for word in node.keywords:
            if word.arg in UNSAFE_WORDS and UNSAFE_WORDS[word.arg](ast.unparse(word.value)):
                yield f"calls {called} with {word.arg}={ast.unparse(word.value)}"


def _only_reads(name: str) -> bool:
    """Parts of importlib that import nothing: files of the package, versions, whether a module exists."""
    return name.startswith(("importlib.resources", "importlib.metadata")) or name == "importlib.util.find_spec"


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.relative_to(SOURCE).as_posix())
def test_no_file_runs_code_from_outside(path):
    assert unsafe(path, SOURCE) == []


def test_there_are_files_to_check():
    assert len(FILES) > 200
    assert all((SOURCE / file).exists() for file in IMPORTERS)
    assert all((SOURCE / file).exists() for file, _ in ALLOWED)


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("import pickle", "imports pickle"),
        ("from pickle import loads", "imports pickle"),
        ("def f():\n    import joblib", "imports joblib"),
        ("import torch\nstate = torch.load('a.pt')", "calls torch.load"),
        ("import torch\nstate = torch.load('a.pt', weights_only=True)", "calls torch.load"),
        ("from torch import load", "imports torch.load"),
        ("def f(text):\n    return eval(text)", "calls eval"),
        ("exec('x = 1')", "calls exec"),
        ("code = compile(text, 'a', 'exec')", "calls compile"),
        ("import subprocess", "imports subprocess"),
        ("run(['ls'], shell=True)", "with shell=True"),
        ("import os\nos.system('ls')", "calls os.system"),
        ("import yaml\nyaml.load(text, Loader=yaml.Loader)", "calls yaml.load"),
        ("from yaml import unsafe_load", "imports yaml.unsafe_load"),
        ("read('a.npy', allow_pickle=True)", "with allow_pickle=True"),
        ("Environment(autoescape=False)", "with autoescape=False"),
        ("read('a.pt', weights_only=False)", "with weights_only=False"),
        ("from_pretrained('a/b', trust_remote_code=flag)", "with trust_remote_code=flag"),
        ("import tarfile", "imports tarfile"),
        ("tar.extractall(folder, filter='data')", "calls tar.extractall"),
        ("from importlib import import_module", "imports importlib"),
        ("import importlib.util", "imports importlib"),
    ],
)
def test_the_check_finds(tmp_path, code, fault):
    path = tmp_path / "training" / "loop.py"
    path.parent.mkdir()
    path.write_text(code, encoding="utf-8")
    found = unsafe(path, tmp_path)
    assert len(found) == 1
    assert fault in found[0]


@pytest.mark.parametrize(
    "code",
    [
        "net.eval()\nast.parse(text, mode='eval')\njson.load(file)",
        "import re\nre.compile('a')\ntorch.compile(net)",
        "import yaml\nyaml.compose(text, Loader=yaml.SafeLoader)\nyaml.safe_load(text)",
        "from importlib.resources import files\nfrom importlib.util import find_spec",
        "Environment(autoescape=True)",
    ],
)
def test_the_check_lets_pass(tmp_path, code):
    path = tmp_path / "loop.py"
    path.write_text(code, encoding="utf-8")
    assert unsafe(path, tmp_path) == []


def floors() -> dict[str, str]:
    """The lowest version of each required package that opens files from outside."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", each).groups() for each in project["dependencies"])


def test_security_page_gives_the_reason_of_every_floor():
    page = (ROOT / "SECURITY.md").read_text()
    listed = dict(re.findall(r"^\| `([\w-]+)` \| ([\d.]+) \|", page, re.M))
    assert listed.items() <= floors().items()
    assert {"torch", "pillow", "safetensors", "jinja2", "pyyaml"} <= listed.keys()
