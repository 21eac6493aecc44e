"""Files, text and pages: what every other package writes and reads with."""
