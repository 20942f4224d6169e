"""How fast fase_gpu is, and what its kernels are compiled to: `python -m benchmarks`."""
