"""What a finished run is good for: load it, evaluate it, predict, measure, export."""
