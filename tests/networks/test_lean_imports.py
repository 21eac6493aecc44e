"""timm and torchvision come without torch's compiler, and do what they do with it."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dspreg
from dspreg.networks import lean_imports
from dspreg.networks.lean_imports import Deferred, compiler_deferred, import_timm, import_torchvision_models

SOURCE = Path(dspreg.__file__).parents[1]


def run(code):
    """What a fresh process prints."""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, env={"PYTHONPATH": str(SOURCE)}
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.split()


def test_neither_imports_the_compiler():
    code = (
        "import sys, torch; disable = torch.compiler.disable\n"
        "from dspreg.networks.lean_imports import import_timm, import_torchvision_models\n"
        "timm, models = import_timm(), import_torchvision_models()\n"
        "print(timm.__name__, models.__name__, 'torch._dynamo' in sys.modules, torch.compiler.disable is disable)\n"
        "import torch._dynamo.utils; r = sys.modules['torchvision.ops.roi_align']\n"  # and now it comes, as itself
        "print(torch._dynamo.utils.__file__.endswith('utils.py'), type(torch._dynamo.utils).__name__)\n"
        "print(all(r.is_compile_supported(d) == torch._dynamo.utils.is_compile_supported(d) for d in ('cpu', 'xpu')))"
    )
    assert run(code) == ["timm", "torchvision.models", "False", "True", "True", "module", "True"]


def test_what_was_put_off_is_done_when_it_is_called():
    code = (
        "import sys\n"
        "from dspreg.networks.lean_imports import import_timm\n"
        "import_timm()\n"
        "r = sys.modules['torchvision.ops.roi_align']\n"
        "print(r.is_compile_supported('cpu'), 'torch._dynamo' in sys.modules)"
    )
    assert run(code)[1] == "True"


def test_a_stand_in_has_all_that_the_module_has():
    stand_in = Deferred("torch._dynamo.utils")
    from torch._dynamo import utils

    assert stand_in.counters is utils.counters
    with pytest.raises(AttributeError):
        stand_in.no_such_name  # noqa: B018


def test_where_the_compiler_is_there_nothing_stands_in_for_it():
    import torch._dynamo.utils

    disable = torch.compiler.disable
    with compiler_deferred():
        assert type(sys.modules[lean_imports.COMPILER]) is type(sys)
        assert torch.compiler.disable is disable


def test_an_error_leaves_no_stand_in(monkeypatch):
    monkeypatch.delitem(sys.modules, lean_imports.COMPILER, raising=False)
    disable = torch.compiler.disable
    with pytest.raises(ZeroDivisionError), compiler_deferred():
        1 / (torch.compiler.disable is disable)  # False: 0
    assert lean_imports.COMPILER not in sys.modules
    assert torch.compiler.disable is disable


def test_features_are_still_found_in_a_graph():
    """timm's feature extraction from any network is torchvision's."""
    net = import_timm().create_model("test_vit", features_only=True, feature_cls="fx", out_indices=(0,))
    assert net(torch.zeros(1, 3, 160, 160))
    assert import_torchvision_models().get_model("resnet18").fc.out_features == 1000
