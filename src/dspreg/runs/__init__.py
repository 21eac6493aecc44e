"""Runs on disk: one run's folder, the store of many, their status and leases. No torch."""
