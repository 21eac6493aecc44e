"""Where the runs of a sweep are run."""
