"""A data set of your own in a dozen lines: handwritten digits, every domain turned by another angle.

PYTHONPATH=examples dspreg train --dataset my_dataset.Turned --target 45 --steps 60 --out runs/turned
"""

from PIL import Image
from sklearn.datasets import load_digits

import dspreg


class Turned(dspreg.DomainDataset):
    """Handwritten digits, turned by 0, 15, 30 or 45 degrees."""

    name, small, image_size = "Turned", True, 28
    domains, classes = ("00", "15", "30", "45"), tuple("0123456789")

    def domain(self, name):
        self.check_domain(name)
        digits = load_digits()
        pictures = [Image.fromarray((15 * x).astype("uint8")).resize((28, 28)) for x in digits.images]
        return [(p.rotate(int(name)).convert("RGB"), int(y)) for p, y in zip(pictures, digits.target, strict=True)]
