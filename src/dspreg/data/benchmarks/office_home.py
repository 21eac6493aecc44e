"""OfficeHome: everyday objects as art, clip art, product picture and photograph."""

from __future__ import annotations

from dspreg.data.benchmarks.base import Benchmark


class OfficeHome(Benchmark):
    """Things of office and home in four styles; 15,588 images.

    Input (x):
        RGB image of any size.

    Label (y):
        65 things from Alarm_Clock to Webcam.

    Domain:
        - Art: 2,427
        - Clipart: 4,365
        - Product: 4,439
        - Real World: 4,357

    Get it from the authors, www.hemanthdv.org/officeHomeDataset.html. Some copies write `Real_World` or `RealWorld`;
    it is `Real World` here, as in the original and in DomainBed.

    Licence: for research; the authors give a notice of fair use, as the images are other people's.

    Reference: Venkateswara, Eusebio, Chakraborty and Panchanathan, "Deep Hashing Network for Unsupervised Domain
    Adaptation", CVPR 2017.
    """

    name = "OfficeHome"
    subfolder = "office_home"
    domains = ("Art", "Clipart", "Product", "Real World")
    classes = (
        "Alarm_Clock", "Backpack", "Batteries", "Bed", "Bike", "Bottle", "Bucket", "Calculator", "Calendar", "Candles",
        "Chair", "Clipboards", "Computer", "Couch", "Curtains", "Desk_Lamp", "Drill", "Eraser", "Exit_Sign", "Fan",
        "File_Cabinet", "Flipflops", "Flowers", "Folder", "Fork", "Glasses", "Hammer", "Helmet", "Kettle", "Keyboard",
        "Knives", "Lamp_Shade", "Laptop", "Marker", "Monitor", "Mop", "Mouse", "Mug", "Notebook", "Oven", "Pan",
        "Paper_Clip", "Pen", "Pencil", "Postit_Notes", "Printer", "Push_Pin", "Radio", "Refrigerator", "Ruler",
        "Scissors", "Screwdriver", "Shelf", "Sink", "Sneakers", "Soda", "Speaker", "Spoon", "TV", "Table", "Telephone",
        "ToothBrush", "Toys", "Trash_Can", "Webcam",
    )  # fmt: skip
    counts = {"Art": 2_427, "Clipart": 4_365, "Product": 4_439, "Real World": 4_357}
    example = "Art/Alarm_Clock/00001.jpg"
    source = "Get it from www.hemanthdv.org/officeHomeDataset.html; rename its folder to 'office_home'."
