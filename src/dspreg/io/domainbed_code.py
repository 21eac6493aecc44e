"""A checkout of DomainBed, or of a fork of it: where it is, which code it holds, and whose word its import needs.

To import it is to run it. It is imported because the user names its folder, on the command line, in a sweep file or as
trusted; never because a stored run was trained with it. A stored run has the SHA-256 of the code and no path.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

from dspreg.errors import ConfigError, IntegrityError
from dspreg.io.text import did_you_mean

PACKAGE = "domainbed"
NEEDED = ("algorithms.py", "hparams_registry.py", "networks.py")
SMALL_IMAGES = "RotatedMNIST"  # a data set that its registry of hyper-parameters knows to be of small images

_named: dict[str, DomainBedCode] = {}  # SHA-256 → the code that the user named in this process


@dataclass(frozen=True)
class DomainBedCode:
    """The package `domainbed` of a checkout.

    Attributes:
        folder: The folder that holds the package.
    """

    folder: Path

    @classmethod
    def open(cls, path: str | Path) -> DomainBedCode:
        """From the folder of a checkout, or of the package in it. The user named it, so it may be imported.

        Raises:
            ConfigError: It is no DomainBed.
        """
        given = Path(path).expanduser().resolve()
        folder = given.parent if given.name == PACKAGE and not (given / PACKAGE).is_dir() else given
        missing = [name for name in NEEDED if not (folder / PACKAGE / name).is_file()]
        if missing:
            wanted = f"{PACKAGE}/{missing[0]}"
            raise ConfigError(
                f"{path} is no checkout of DomainBed: it has no {wanted}. Give the folder that has {PACKAGE}/ in it"
            )
        code = cls(folder)
        _named[code.sha256] = code
        return code

    @cached_property
    def sha256(self) -> str:
        """Of all Python files of the package, by their names."""
        digest = hashlib.sha256()
        package = self.folder / PACKAGE
        for path in sorted(package.rglob("*.py"), key=lambda path: path.relative_to(package).as_posix()):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(package).as_posix()}\0{len(content)}\0".encode())
            digest.update(content)
        return digest.hexdigest()

    def module(self, name: str) -> ModuleType:
        """`domainbed.name`, imported.

        Raises:
            ConfigError: It can't be imported, or another checkout was imported before.
        """
        before = sys.modules.get(PACKAGE)
        if before is not None and self.folder / PACKAGE not in map(Path, getattr(before, "__path__", ())):
            raise ConfigError(
                f"another DomainBed was imported in this process, from {list(getattr(before, '__path__', ()))}. Python "
                "can't tell two apart; use a process for each"
            )
        sys.path.insert(0, str(self.folder))
        try:
            return importlib.import_module(f"{PACKAGE}.{name}")
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"DomainBed in {self.folder} needs the package {error.name!r}, which is not installed"
            ) from error
        except Exception as error:  # its code is the user's, and so are its errors
            raise ConfigError(
                f"{PACKAGE}.{name} in {self.folder} can't be imported: {type(error).__name__}: {error}"
            ) from error
        finally:
            sys.path.remove(str(self.folder))

    def algorithm_class(self, name: str) -> type:
        """A class of its algorithms.py that can be trained.

        Raises:
            ConfigError: There is none of that name, or it lacks `update` or `predict`.
        """
        module = self.module("algorithms")
        base = getattr(module, "Algorithm", None)
        known = [
            each
            for each, cls in vars(module).items()
            if isinstance(cls, type) and base and issubclass(cls, base) and cls is not base
        ]
        found = getattr(module, name, None)
        if name not in known or not isinstance(found, type):
            few = ", ".join(sorted(known, key=str.lower))
            raise ConfigError(
                f"DomainBed in {self.folder} has no algorithm {name!r}.{did_you_mean(name, known)} It has: {few}"
            )
        lacking = [each for each in ("update", "predict") if getattr(found, each) is getattr(base, each, None)]
        if lacking:
            raise ConfigError(f"{name} of DomainBed in {self.folder} has no {' and no '.join(lacking)} of its own")
        return found

    def hparams(self, name: str, dataset: str, seed: int | None) -> dict[str, Any]:
        """Its registry's hyper-parameters of an algorithm: the defaults, or the random draw of a seed."""
        registry = self.module("hparams_registry")
        try:
            found = (
                registry.default_hparams(name, dataset)
                if seed is None
                else registry.random_hparams(name, dataset, seed)
            )
        except Exception as error:
            raise ConfigError(f"DomainBed's registry has no hyper-parameters of {name}: {error}") from error
        return {key: plain_value(value) for key, value in sorted(found.items())}


def plain_value(value: Any) -> Any:
    """A number of numpy's as one of Python's."""
    return value.item() if hasattr(value, "item") and getattr(value, "ndim", 0) == 0 else value


def named_code(sha256: str) -> DomainBedCode:
    """The code with this SHA-256, if the user named it.

    Raises:
        IntegrityError: He did not; nothing was imported.
    """
    if sha256 in _named:
        return _named[sha256]
    raise IntegrityError(
        "it was trained by code of a DomainBed that is not dspreg's, and to load it is to run that code. If you know "
        f"whose it is and trust it, add --trust FOLDER, the checkout with SHA-256 {sha256[:16]}… (in Python: "
        "trust=(FOLDER,))"
    )


def name_folders(trusted: Iterable[str]) -> None:
    """Let what the user trusts be imported, where it is a folder of DomainBed."""
    for each in trusted:
        if (Path(each).expanduser() / PACKAGE / NEEDED[0]).is_file():
            DomainBedCode.open(each)
