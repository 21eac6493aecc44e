"""From finished runs to tables, for people and programs. No torch in here: results can be read on any laptop."""
