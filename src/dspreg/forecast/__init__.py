"""What to expect on a site that nobody has seen, by what came of sites that were held out. No torch."""
