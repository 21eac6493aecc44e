"""A profile, a comparison of two, or what c says about a held-out domain, as an HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dspreg import __version__
from dspreg.io.html import inline, render_page

PROFILE = """
{% macro number(x, places=2) %}{{ "–" if x is none else ("%." ~ places ~ "f")|format(x) }}{% endmacro %}
<h1>{{ title }}</h1>
<p>Mean c <strong>{{ number(f.c_mean, 3) }}</strong>, null {{ number(f.null_mean, 3) }}, reliability
{{ number(f.reliability) }}; {{ "{:,}".format(f.parameters) }} parameters, of which
{{ "%.1f"|format(100 * f.insensitive) }} % no domain is sensitive to.</p>
{% for remark in f.remarks %}<p class="remark">{{ remark }}</p>{% endfor %}
<p class="quiet">c is 0 where all domains agree on how much a parameter matters, and {{ number(f.c_bound) }} where one
domain alone decides. <em>null</em> is c under random domain labels: the same images dealt at random to as many groups.
Only c above null says something about domains. Reliability is the rank correlation of c from one half of the images
with c from the other.</p>
<h2>The most domain-sensitive layers</h2>
<div class="wide"><table><tr><th>layer<th>kind<th class="n">parameters<th class="n">c<th class="n">null
<th class="n">insensitive<th></tr>
{% for row in f.layers %}<tr><td>{{ row.layer or "(top)" }}<td>{{ row.kind }}
<td class="n">{{ "{:,}".format(row.parameters) }}
<td class="n">{{ number(row.c) }}<td class="n">{{ number(row.null) }}
<td class="n">{{ "%.0f"|format(100 * row.insensitive) }} %<td class="n">{{ "≈ null" if row.near_null }}</tr>
{% endfor %}</table></div>
<p class="quiet">{{ f.layers|length }} of {{ f.layers_measured }} layers, by the median of c over their parameters.</p>
{% for caption, image in pictures %}{{ picture(caption, image) }}{% endfor %}
<h2>What was measured</h2>
<div class="wide"><table>{% for name, value in provenance %}<tr><th>{{ name }}<td>{{ value }}</tr>
{% endfor %}</table></div>
"""

COMPARISON = """
{% macro number(x, places=2) %}{{ "–" if x is none else ("%." ~ places ~ "f")|format(x) }}{% endmacro %}
<h1>{{ title }}</h1>
<p>Mean c {{ number(f.c_before, 3) }} before (null {{ number(f.null_before, 3) }}) and
<strong>{{ number(f.c_after, 3) }}</strong> after (null {{ number(f.null_after, 3) }}), over
{{ "{:,}".format(f.sensitive_both_times) }} of {{ "{:,}".format(f.parameters) }} parameters, those that some domain is
sensitive to both times. Rank correlation of c before and after: {{ number(f.agreement) }}. The median c of {{ f.rose }}
layers rose, that of {{ f.fell }} fell.</p>
{% for remark in f.remarks %}<p class="remark">{{ remark }}</p>{% endfor %}
<h2>The layers that changed most</h2>
<div class="wide"><table><tr><th>layer<th>kind<th class="n">parameters<th class="n">c before<th class="n">null
<th class="n">c after<th class="n">null<th class="n">change</tr>
{% for row in f.layers %}<tr><td>{{ row.layer or "(top)" }}<td>{{ row.kind }}
<td class="n">{{ "{:,}".format(row.parameters) }}
<td class="n">{{ number(row.c_median_before) }}<td class="n">{{ number(row.null_median_before) }}
<td class="n">{{ number(row.c_median_after) }}<td class="n">{{ number(row.null_median_after) }}
<td class="n">{{ "%+.2f"|format(row.c_median_change) }}</tr>
{% endfor %}</table></div>
<p class="quiet">{{ f.layers|length }} of {{ f.layers_measured }} layers; medians of c over their parameters.</p>
{% for caption, image in pictures %}{{ picture(caption, image) }}{% endfor %}
{% for when, rows in provenance %}<h2>What was measured {{ when }}</h2>
<div class="wide"><table>{% for name, value in rows %}<tr><th>{{ name }}<td>{{ value }}</tr>{% endfor %}</table></div>
{% endfor %}"""

HELD_OUT = """
{% macro number(x) %}{{ "–" if x is none else "%+.2f"|format(x) }}{% endmacro %}
{% macro interval(e) %}{{ number(e.value) }}{% if e.low is not none %} <span class="quiet">({{ number(e.low) }} …
{{ number(e.high) }})</span>{% endif %}{% endmacro %}
<h1>{{ title }}</h1>
<p class="remark">{{ f.verdict[0]|upper if f.verdict[0] != "c" else "c" }}{{ f.verdict[1:] }}.</p>
<p>The <em>change</em> of a parameter on some images is |log s/s̄|: how far its sensitivity s there is from the mean s̄
over the sources. <em>Sources</em> are {{ f.images }} held-out images of {{ f.sources|join(", ") }} together, as many as
there are of {{ f.unseen }}: what noise gives. The <em>excess</em> is the squared change on {{ f.unseen }} less that on
the sources. A useful predictor has a large correlation with the excess. The last two rows have seen
{{ f.unseen }}.</p>
{% for caption, image in pictures %}{{ picture(caption, image) }}{% endfor %}
{% for suffix, heading in blocks %}<h2>{{ heading }}</h2>
<div class="wide"><table><tr><th rowspan="2">rank correlation of<th class="n" colspan="3">over all parameters
<th class="n" colspan="3">within tensor and tenth by s̄</tr>
<tr>{% for _ in range(2) %}<th class="n">{{ f.unseen }}<th class="n">sources<th class="n">excess{% endfor %}</tr>
{% for name, row in f.correlations.items() %}<tr><td>{{ f.labels[name] }}{% for which in ("all", "within") %}
<td class="n">{{ number(row["unseen" ~ suffix][which].value) }}
<td class="n">{{ number(row["sources" ~ suffix][which].value) }}
<td class="n">{{ interval(row["excess" ~ suffix][which]) }}{% endfor %}</tr>
{% endfor %}</table></div>{% endfor %}
<p class="quiet">In brackets 95 % intervals from resampled tensors. {{ "{:,}".format(f.compared) }} of
{{ "{:,}".format(f.parameters) }} parameters, those that some source is sensitive to.</p>
<h2>What was measured</h2>
<div class="wide"><table>{% for name, value in provenance %}<tr><th>{{ name }}<td>{{ value }}</tr>
{% endfor %}</table></div>
"""


def held_out_page(found: Mapping[str, Any], pictures: Mapping[str, bytes]) -> str:
    """The page of what `HeldOutComparison.to_json` returns, with pictures by caption."""
    title = f"Does c know {found['unseen']}?"
    blocks = [("_less_level", "Change, with the level of each domain taken off"), ("", "Change as it is")]
    shown = [(caption, inline(image)) for caption, image in pictures.items()]
    settings = found["settings"]
    about = {key: value for key, value in settings.get("about", {}).items() if key != "domains"}
    rows = [*held_out_images(found), *provenance({**settings, "about": about, "domains": {}})]
    return render_page(title, HELD_OUT, f=found, blocks=blocks, pictures=shown, provenance=rows)


def held_out_images(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Which images of every domain were used for what, as pairs of name and text."""
    number = f"{found['images']:,}"
    for name, there in found["settings"].get("about", {}).get("domains", {}).items():
        first, second = there["images"]
        if name == found["unseen"]:
            yield f"images of {name}", f"{number} and {number} others, of {first + second:,}"
        elif there["part"] == "in":
            yield f"images of {name}", f"{number} of {first:,} trained on, {number} held out of {second:,} others"
        else:
            yield f"images of {name}", f"{number}, and {number} others held out, of {first + second:,}"


def profile_page(found: Mapping[str, Any], pictures: Mapping[str, bytes]) -> str:
    """The page of what `summarize_profile` returns, with pictures by caption."""
    about = found["settings"].get("about", {})
    title = f"Domain sensitivity of {about['model']} on {about['data']}" if about else "Domain sensitivity"
    shown = [(caption, inline(image)) for caption, image in pictures.items()]
    return render_page(title, PROFILE, f=found, pictures=shown, provenance=list(provenance(found["settings"])))


def comparison_page(found: Mapping[str, Any], pictures: Mapping[str, bytes], names: tuple[str, str]) -> str:
    """The page of what `summarize_comparison` returns; `names` are the names of the two files."""
    shown = [(caption, inline(image)) for caption, image in pictures.items()]
    each = [
        (when, [("file", name), *provenance(found["settings"][when])])
        for when, name in zip(("before", "after"), names, strict=True)
    ]
    return render_page("Domain sensitivity before and after", COMPARISON, f=found, pictures=shown, provenance=each)


def provenance(settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What was measured and how, as pairs of name and text."""
    about = settings.get("about", {})
    for name in ("model", "run", "algorithm", "which", "step", "head", "outputs"):
        if about.get(name) is not None:
            yield name, str(about[name])
    if "averaged_steps" in about:
        yield "weights", f"averaged over {about['averaged_steps']:,} steps"
    if "weights" in about:
        w = about["weights"]
        yield "weights", w["tag"] + (f", SHA-256 {w['sha256']}" if w["sha256"] else "")
    if "data" in about:
        yield "data", about["data"]
    for name, counts in settings.get("domains", {}).items():
        data = about.get("domains", {}).get(name)
        of = f" of {data['images']:,}{PARTS[data['part']]}" if data else ""
        yield f"images of {name}", f"{counts['samples']:,}{of}, in {counts['batches']} batches"
    if "image_size" in about:
        numbers = (", ".join(f"{x:.3g}" for x in about[what]) for what in ("mean", "std"))
        yield "input", "{} pixels, mean {}, standard deviation {}".format(about["image_size"], *numbers)
    for name in ("of", "estimator", "draws", "eps", "variance"):
        if settings.get(name) is not None:
            yield name, str(settings[name])
    if "seed" in about:
        yield "seed", str(about["seed"])
        yield "versions", f"dspreg {about['dspreg']}, torch {about['torch']}"
    else:
        yield "page made by", f"dspreg {__version__}"


PARTS = {"all": "", "in": " trained on"}
