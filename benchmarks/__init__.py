"""Measurements of the product. `python -m benchmarks` is their one door."""
