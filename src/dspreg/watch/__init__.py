"""`dspreg watch`: a page of a running sweep, for this machine alone."""

from dspreg.watch.server import WatchServer as WatchServer
