"""One HTML page that is whole by itself: pictures inside, nothing to load, light or dark as set.

A policy in its head forbids everything but the style, the script if there is one, and images inside the page; style and
script are allowed by their SHA-256 alone. A page that is watched may ask its own server, and nobody else.
"""

from __future__ import annotations

import base64
import hashlib
import io
import warnings
from typing import TYPE_CHECKING, Any

from dspreg.io.text import escape_terminal

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HEAD = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{{ title }}</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{{ policy }}">
<style>{{ style|safe }}</style>
"""
LIGHT = "--line: #0003; --quiet: #555;"
DARK = "--line: #fff4; --quiet: #aaa;"
STYLE = """
:root { font: 16px/1.5 system-ui, sans-serif }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; overflow-wrap: anywhere }
.wide { overflow-x: auto } table { border-collapse: collapse; overflow-wrap: normal }
td, th { padding: .25rem .9rem; text-align: left; border-bottom: 1px solid var(--line) }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap }
img { max-width: 100%; background: white } figure { margin: 1.5rem 0 }
figcaption, .quiet { font-size: .9rem; color: var(--quiet) }
.remark { border-left: .3rem solid #c2410c; padding-left: .8rem }
"""
PICTURE = """{% macro picture(caption, image) %}
<figure><img alt="{{ caption }}" src="data:image/png;base64,{{ image }}"><figcaption>{{ caption }}</figcaption></figure>
{% endmacro %}"""


def render_page(
    title: str,
    body: str,
    *,
    style: str = "",
    light: str = "",
    dark: str = "",
    script: str = "",
    connects: bool = False,
    **values: Any,
) -> str:
    """The HTML of a page.

    Args:
        title: Of the window.
        body: A jinja template of what follows the head. In it `{{ picture(caption, image) }}` shows an image.
        style: More of it.
        light: CSS variables on light ground, and
        dark: the same on dark ground. `data-theme` on the root, `light` or `dark`, goes before what the reader has set.
        script: The only one, at the end of the page.
        connects: Whether the script may ask the server that the page is from.
        values: For the template. All text is escaped, and without what turns a line round or moves a cursor.
    """
    from jinja2 import Environment

    style = themes(LIGHT + light, DARK + dark) + STYLE + style
    source = PICTURE + HEAD + body + ("<script>{{ script|safe }}</script>" if script else "") + "\n</html>"
    harmless = Environment(
        autoescape=True, finalize=lambda value: escape_terminal(value) if type(value) is str else value
    )
    values |= {"title": title, "style": style, "script": script, "policy": policy(style, script, connects=connects)}
    return harmless.from_string(source).render(values) + "\n"


def themes(light: str, dark: str) -> str:
    """CSS of two sets of variables."""
    return f"""
:root {{ color-scheme: light dark; {light} }}
@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}
:root[data-theme="light"] {{ color-scheme: light; {light} }}
:root[data-theme="dark"] {{ color-scheme: dark; {dark} }}"""


def policy(style: str, script: str = "", *, connects: bool = False) -> str:
    """What the browser lets the page do."""
    allowed = ["default-src 'none'", "img-src data:", f"style-src '{_hash(style)}'"]
    if script:
        allowed.append(f"script-src '{_hash(script)}'")
    if connects:
        allowed.append("connect-src 'self'")
    return "; ".join([*allowed, "base-uri 'none'", "form-action 'none'"])


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


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
