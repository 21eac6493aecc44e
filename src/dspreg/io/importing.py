"""Objects by import path."""

from __future__ import annotations

import pkgutil
from typing import Any

from dspreg.errors import ConfigError


def is_import_path(text: str) -> bool:
    """`my_methods.LogitNorm`: two names or more, with dots between."""
    return "." in text and all(part.isidentifier() for part in text.split("."))


def import_object(path: str) -> Any:
    """What an import path stands for."""
    try:
        return pkgutil.resolve_name(path)
    except ModuleNotFoundError as error:
        raise ConfigError(f"{path!r}: no module {error.name!r}; is its folder on PYTHONPATH?") from error
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"{path!r} can't be imported: {error}") from error
