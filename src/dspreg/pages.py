"""One HTML page that is whole by itself: pictures inside, no scripts, nothing to load, light or dark as set."""

from __future__ import annotations

import base64
import io
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; --line: #0003; --quiet: #555 }
@media (prefers-color-scheme: dark) { :root { --line: #fff4; --quiet: #aaa } }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere }
.wide { overflow-x: auto } table { border-collapse: collapse; overflow-wrap: normal }
td, th { padding: .25rem .9rem; text-align: left; border-bottom: 1px solid var(--line) }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
img { max-width: 100%; background: white } figure { margin: 1.5rem 0 }
figcaption, .quiet { font-size: .9rem; color: var(--quiet) }
.remark { border-left: .3rem solid #c2410c; padding-left: .8rem }
</style>
"""
PICTURE = """{% macro picture(caption, image) %}
<figure><img alt="{{ caption }}" src="data:image/png;base64,{{ image }}"><figcaption>{{ caption }}</figcaption></figure>
{% endmacro %}"""


def page(title: str, body: str, **values: Any) -> str:
    """The HTML of a page.

    Args:
        title: Of the window.
        body: A jinja template of what follows the head. In it `{{ picture(caption, image) }}` shows an image.
        values: For the template. All text is escaped.
    """
    from jinja2 import Environment

    return Environment(autoescape=True).from_string(PICTURE + HEAD + body + "\n</html>\n").render(title=title, **values)


def png(figure: Figure, dpi: int = 130) -> bytes:
    """A picture as a file."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a box stands for a letter; nothing else fails
        figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def inline(image: bytes) -> str:
    """For `picture` in a page."""
    return base64.b64encode(image).decode()
