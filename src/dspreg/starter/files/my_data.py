"""A data set of my own. Images in folders need no code: --dataset folder:photos reads photos/domain/class/image.jpg."""

import dspreg


class Turned(dspreg.DomainDataset):
    """Handwritten digits; every domain is turned by another angle."""

    name, small, image_size = "Turned", True, 28
    domains, classes = ("00", "15", "30", "45"), tuple("0123456789")

    def domain(self, name):
        self.check_domain(name)
        digits = dspreg.open_dataset("digits").domain("handwritten")
        return [(image.rotate(int(name)), label) for image, label in digits]
