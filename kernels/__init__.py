"""Triton kernels, installed as fase_gpu.kernels. Nothing here imports more than torch, triton and its neighbours."""
