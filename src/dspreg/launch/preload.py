"""What every process of a pool needs, loaded once in the process that they are forked from."""

import dspreg.launch.pool_worker  # noqa: F401
from dspreg.networks.lean_imports import import_timm

import_timm()
