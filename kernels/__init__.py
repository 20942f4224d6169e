"""The Triton kernels, installed as fase_gpu.kernels; README.md beside them says how they are built and why.

Nothing here imports more than torch, triton and its neighbours. Shape letters, in every file: T tasks, S packed rows,
d dimensions, W slots (tasks that one launch works on), N padded samples, A alphas.
"""
