"""The place of the benchmarks; there are none yet."""
