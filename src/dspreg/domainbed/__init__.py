"""Compatibility with DomainBed: its seeds, jobs, records, selection and tables. No torch in here."""
