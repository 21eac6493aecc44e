"""Where the benchmarks can be had, and how each is brought into DomainBed's layout: `get_dataset`."""

from dspreg.data.sources.get import Fetched, get_dataset

__all__ = ["Fetched", "get_dataset"]
