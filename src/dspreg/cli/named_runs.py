"""Runs of a store by plan ids on the command line, or by their first characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dspreg.errors import ConfigError
from dspreg.io.text import did_you_mean, join_few


def find_runs(given: Sequence[str], known: Iterable[str], store: object) -> list[str]:
    """The plan ids that are meant, each once.

    Args:
        given: What was typed.
        known: All plan ids of the store.
        store: Its path, for the message.

    Raises:
        ConfigError: One begins no id, or several.
    """
    ids, found = list(known), []
    for text in given:
        meant = [each for each in ids if text and each.startswith(text)]
        if not meant:
            hint = did_you_mean(text, ids) if len(text) > 8 else ""
            raise ConfigError(f"no run of {store} begins with {text!r}.{hint} dspreg status {store} --json has all ids")
        if len(meant) > 1:
            raise ConfigError(f"{text!r} begins {len(meant)} runs: {join_few(meant, 3)}; give more of it")
        found += meant
    return list(dict.fromkeys(found))
