"""Tables as Markdown has them."""

from __future__ import annotations

from collections.abc import Sequence


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Nothing where there are no rows."""
    if rows:
        lines = [head, ["---"] * len(head), *rows]
        print(f"\n## {title}\n\n" + "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines))
