"""What benchmarks are made of: races, reports, scratch folders, logs of a given size."""
