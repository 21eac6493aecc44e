"""What one run is: its settings and where their defaults come from. No torch in here."""
