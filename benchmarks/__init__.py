"""Benchmarks: one runner and a registry of cases."""
