"""DomainBed from a checkout, without what it imports and ERM does not use.

DomainBed imports `wilds` for two data sets that are not measured here. Where it is not installed, modules without
content stand in for it. Nothing of DomainBed itself is changed.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

WILDS = {
    "wilds": (),
    "wilds.datasets": (),
    "wilds.datasets.camelyon17_dataset": ("Camelyon17Dataset",),
    "wilds.datasets.fmow_dataset": ("FMoWDataset",),
}


def make_importable(checkout: Path) -> None:
    """Let `import domainbed` find the checkout. Ends the program with code 3 where there is none."""
    if not (checkout / "domainbed" / "scripts" / "train.py").is_file():
        print(f"{checkout} is no checkout of DomainBed: there is no domainbed/scripts/train.py in it", file=sys.stderr)
        raise SystemExit(3)
    if str(checkout) not in sys.path:
        sys.path.insert(0, str(checkout))
    if "wilds" not in sys.modules and importlib.util.find_spec("wilds") is None:
        for name, attributes in WILDS.items():
            module = ModuleType(name)
            for attribute in attributes:
                setattr(module, attribute, type(attribute, (), {}))
            sys.modules[name] = module
