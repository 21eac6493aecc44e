"""Objects by import path, and whose word an import needs.

To import a module is to run it. A name that the user wrote, on the command line or in a script, is imported from where
Python finds it. A name that a file holds, such as a model or a run, is imported from dspreg itself and from nowhere
else, unless the user says that its module is trusted.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dspreg.errors import ConfigError, IntegrityError
from dspreg.io.text import shorten

Trust = Sequence[str] | None  # modules or packages that a file may name besides dspreg; None: the user wrote the name

_here: list[str] = []  # the current folder, while `importable_here`


def is_import_path(text: str) -> bool:
    """`my_methods.LogitNorm`: two names or more, with dots between."""
    return "." in text and all(part.isidentifier() for part in text.split("."))


def import_object(path: str, trust: Trust = None) -> Any:
    """What an import path stands for.

    Args:
        path: Names with dots between.
        trust: For a name that a file holds: the modules and packages that it may come from.

    Raises:
        IntegrityError: A file holds the name, and its module is not trusted; nothing was imported.
    """
    if trust is not None and not is_trusted(path, trust):
        module = path.rpartition(".")[0]
        raise IntegrityError(
            f"{path!r} is to be imported, which runs code that is not dspreg's. If you know whose it is and trust it, "
            f"add --trust {module} (in Python: trust=({module!r},))"
        )
    if not _is_ours(path):
        search_here()
    try:
        return pkgutil.resolve_name(path)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{path!r}: no module {error.name!r}; is its folder on PYTHONPATH?") from error
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{shorten(path)} can't be imported: {error}") from error
    except Exception as error:  # the module is the user's, and so are its errors
        raise ConfigError(f"{shorten(path)} can't be imported: {type(error).__name__}: {error}") from error


def is_trusted(path: str, trust: Sequence[str]) -> bool:
    """Whether a name that a file holds is dspreg's, or lies in a module or package of `trust`."""
    trusted = (trust,) if isinstance(trust, str) else trust
    return _is_ours(path) or any(f"{path}.".startswith(f"{name}.") for name in trusted if name)


def _is_ours(path: str) -> bool:
    return path.startswith("dspreg.")


@contextmanager
def importable_here() -> Iterator[None]:
    """Inside, names that the user wrote or trusts may lie in the current folder, as for `python -m`.

    It goes onto the path with the first such name, and last. Not before: packages look for others that need not be
    installed, as pandas does for numexpr, and would find a file of that name beside a stranger's run.
    """
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed
        yield
        return
    _here.append(here)
    before = list(sys.path)
    try:
        yield
    finally:
        _here.remove(here)
        if here not in before and here in sys.path:
            sys.path.remove(here)


def search_here() -> None:
    """From now on modules are looked for in the current folder, too, where the command line allows it."""
    sys.path.extend(folder for folder in _here if folder not in sys.path)
