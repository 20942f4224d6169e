"""The place of the Triton kernels, installed as fase_gpu.kernels; there are none yet.

Nothing here imports more than torch, triton and its neighbours.
"""
