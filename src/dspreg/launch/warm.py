"""What every worker of a pool needs, loaded once in the process that they are forked from."""

import timm  # noqa: F401
import torchvision  # noqa: F401

import dspreg.launch.worker  # noqa: F401
