"""Every table and figure of the paper as runs, and what is shown of them. `dspreg paper` is its command."""
