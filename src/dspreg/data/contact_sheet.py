"""A contact sheet: what the network will see of a data set, by domain and class, as it is and changed at random."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from dspreg.config.train_config import TrainConfig
from dspreg.data.base import DomainDataset, labels_of
from dspreg.data.decode import BadImage
from dspreg.data.loader import DomainSplit
from dspreg.data.transforms import Transform
from dspreg.errors import ConfigError
from dspreg.io.html import inline, render_page
from dspreg.io.text import did_you_mean, escape_terminal, plural
from dspreg.randomness import seeded

if TYPE_CHECKING:
    from numpy.typing import NDArray

MOST_CLASSES = 20  # that are shown where none are chosen
TILE = 128  # pixels of an image on a PNG; smaller ones are enlarged by whole factors
GAP, LINE = 6, 22  # pixels between images, and of a line of text
INK, QUIET, PAPER, HOLE = "#111111", "#666666", "#ffffff", (228, 228, 228)


@dataclass(frozen=True)
class Cell:
    """Images of one class in one domain: what there are, and some as the network sees them.

    Attributes:
        count: Of all images.
        plain: (channels, size, size) of some, as they are evaluated.
        changed: The same, as they are trained on.
    """

    count: int
    plain: tuple[NDArray[np.uint8], ...]
    changed: tuple[NDArray[np.uint8], ...]


@dataclass(frozen=True)
class ContactSheet:
    """What `contact_sheet` found.

    Attributes:
        dataset: Its name.
        domains, classes: That are shown, by name.
        left_out: How many classes are not.
        cells: By class and domain.
        bad: Images that can't be read, and why.
        says: How files become what is shown, and what is changed at random, in sentences.
    """

    dataset: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    left_out: int
    cells: dict[tuple[str, str], Cell]
    bad: tuple[str, ...]
    says: tuple[str, ...]

    def png(self) -> bytes:
        """As one picture."""
        return draw_sheet(self)

    def html(self) -> str:
        """As a page that is whole by itself."""
        rows = [(name, [self._shown(name, domain) for domain in self.domains]) for name in self.classes]
        return render_page(f"Images of {self.dataset}", PAGE, style=STYLE, sheet=self, rows=rows)

    def _shown(self, name: str, domain: str) -> dict[str, Any]:
        cell = self.cells[name, domain]
        strips = [(alt, each) for alt, each in (("as they are", cell.plain), ("changed", cell.changed)) if each]
        return {"count": cell.count, "strips": [(f"{name}, {domain}, {a}", inline(strip(s))) for a, s in strips]}


def contact_sheet(
    data: DomainDataset,
    config: TrainConfig,
    *,
    images: int = 3,
    domains: Sequence[str] = (),
    classes: Sequence[str] = (),
) -> ContactSheet:
    """Read some images of every class in every domain as a training with this configuration does.

    Args:
        data: The data set.
        config: With every option filled in.
        images: Of each class in each domain at most, spread over all of them.
        domains: Some of them; all unless given.
        classes: Some of them; the first 20 unless given.
    """
    for name in domains:
        data.check_domain(name)
    for name in classes:
        if name not in data.classes:
            raise ConfigError(f"{data.name} has no class {name!r}.{did_you_mean(name, data.classes)}")
    chosen = [name for name in data.classes if name in classes] if classes else list(data.classes[:MOST_CLASSES])
    shown_in = tuple(name for name in data.domains if not domains or name in domains)
    data.read_as(config.reading)
    anything = (0.5,) * config.channels
    plain = Transform(config.image_size, anything, anything, resize=config.resize, reading=config.reading)
    changed = replace(plain, augment=config.augment)
    cells: dict[tuple[str, str], Cell] = {}
    bad: list[str] = []
    for domain in shown_in:
        found = data.domain(domain)
        labels = np.asarray(labels_of(found))
        for name in chosen:
            there = np.flatnonzero(labels == data.classes.index(name))
            picked = there[np.unique(np.linspace(0, len(there) - 1, min(images, len(there))).astype(int))]
            seen: list[list[NDArray[np.uint8]]] = [[], []]
            for i in picked.tolist():
                try:
                    ways = (plain,) if config.augment == "none" else (plain, changed)
                    for kept, way in zip(seen, ways, strict=False):
                        with seeded("show", data.name, domain, i):
                            kept.append(DomainSplit(domain, found, [i], way).batch([0], "show", i)[0][0].numpy())
                except BadImage as error:
                    bad.append(str(error))
            cells[name, domain] = Cell(len(there), tuple(seen[0]), tuple(seen[1]))
    left_out = 0 if classes else len(data.classes) - len(chosen)
    says = (f"Read as: {config.describe_reading()}.", describe_augmentation(config))
    return ContactSheet(data.name, shown_in, tuple(chosen), left_out, cells, tuple(bad), says)


def describe_augmentation(s: TrainConfig) -> str:
    if s.augment == "none":
        return "Training changes nothing at random."
    return f"Upper rows: as they are evaluated. Lower rows: changed at random as in training, --augment {s.augment}."


def colours_of(planes: NDArray[np.uint8]) -> Image.Image:
    """An image to look at: of more than three channels the first three."""
    shown = planes[:3] if len(planes) >= 3 else planes[[0, 0, 0]]
    return Image.fromarray(np.ascontiguousarray(shown.transpose(1, 2, 0)))


def strip(images: Sequence[NDArray[np.uint8]]) -> bytes:
    """Images beside each other, pixel for pixel, as PNG."""
    size = images[0].shape[-1]
    made = Image.new("RGB", (len(images) * (size + GAP) - GAP, size), PAPER)
    for n, each in enumerate(images):
        made.paste(colours_of(each), (n * (size + GAP), 0))
    file = io.BytesIO()
    made.save(file, "PNG")
    return file.getvalue()


def draw_sheet(sheet: ContactSheet) -> bytes:
    """A column for each domain, and for each class a row of images with the changed ones below."""
    import matplotlib  # which brings a font with letters of many languages

    font = ImageFont.truetype(f"{matplotlib.get_data_path()}/fonts/ttf/DejaVuSans.ttf", 14)
    across = max([1, *(len(cell.plain) for cell in sheet.cells.values())])
    rows = 2 if any(cell.changed for cell in sheet.cells.values()) else 1
    wide, high = across * (TILE + GAP) + 2 * GAP, rows * (TILE + GAP) + 2 * GAP + LINE
    left = 10 + max(int(font.getlength(text)) for text in (*map(short, sheet.classes), ""))
    top = LINE * (len(sheet.says) + 3)
    width = max(left + wide * len(sheet.domains), 30 + max(int(font.getlength(text)) for text in sheet.says))
    made = Image.new("RGB", (width, top + high * len(sheet.classes) + LINE), PAPER)
    pen = ImageDraw.Draw(made)
    pen.text((10, 6), escape_terminal(sheet.dataset), INK, font)
    for n, text in enumerate(sheet.says):
        pen.text((10, 6 + LINE * (n + 1)), escape_terminal(text), QUIET, font)
    for d, domain in enumerate(sheet.domains):
        pen.text((left + d * wide, top - LINE), short(domain), INK, font)
    for c, name in enumerate(sheet.classes):
        y = top + c * high
        pen.text((6, y + LINE), short(name), INK, font)
        for d, domain in enumerate(sheet.domains):
            cell, x = sheet.cells[name, domain], left + d * wide
            pen.text((x, y), plural(cell.count, "image"), QUIET, font)
            for row, images in enumerate((cell.plain, cell.changed)):
                for n, each in enumerate(images):
                    made.paste(tile(each), (x + n * (TILE + GAP), y + LINE + row * (TILE + GAP)))
    if sheet.left_out:
        text = f"and {plural(sheet.left_out, 'class', 'classes')} more"
        pen.text((6, made.height - LINE), text, QUIET, font)
    file = io.BytesIO()
    made.save(file, "PNG")
    return file.getvalue()


def tile(planes: NDArray[np.uint8]) -> Image.Image:
    image, size = colours_of(planes), planes.shape[-1]
    if size > TILE:
        return image.resize((TILE, TILE), Image.Resampling.LANCZOS)
    side = size * (TILE // size)
    made = Image.new("RGB", (TILE, TILE), HOLE if side < TILE else PAPER)
    made.paste(image.resize((side, side), Image.Resampling.NEAREST), ((TILE - side) // 2,) * 2)
    return made


def short(name: str) -> str:
    text = escape_terminal(name)
    return text if len(text) <= 28 else text[:27] + "…"


STYLE = """
body { max-width: none } td, th { vertical-align: top; padding: .4rem .8rem } td img { display: block; margin: .3rem 0;
max-width: none; image-rendering: auto }
"""
PAGE = """
<h1>Images of {{ sheet.dataset }}</h1>
{% for text in sheet.says %}<p>{{ text }}</p>{% endfor %}
{% if sheet.bad %}<p class="remark">{{ sheet.bad|length }} of the chosen images can't be read:
{% for text in sheet.bad %}<br>{{ text }}{% endfor %}</p>{% endif %}
<div class="wide"><table><tr><th>class{% for domain in sheet.domains %}<th>{{ domain }}{% endfor %}</tr>
{% for name, cells in rows %}<tr><th>{{ name }}{% for cell in cells %}<td><span class="quiet">
{{ "{:,}".format(cell.count) }} image{{ "" if cell.count == 1 else "s" }}</span>{% for alt, image in cell.strips %}
<img alt="{{ alt }}" src="data:image/png;base64,{{ image }}">{% endfor %}{% endfor %}</tr>
{% endfor %}</table></div>
{% if sheet.left_out %}<p class="quiet">{{ sheet.left_out }} more classes are left out; --class shows them.</p>
{% endif %}
"""
