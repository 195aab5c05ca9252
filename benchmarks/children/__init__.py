"""Programs that a benchmark starts in processes of their own. `benchmarks.processes` starts them as modules."""
