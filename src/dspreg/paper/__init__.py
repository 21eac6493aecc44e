"""Every table and figure of the paper: its runs, tables and pictures. `dspreg paper` is its command."""
