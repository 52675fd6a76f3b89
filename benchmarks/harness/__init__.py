"""Parts the benchmarks share: scripted upstream, load, processes, the stacks, the report."""
