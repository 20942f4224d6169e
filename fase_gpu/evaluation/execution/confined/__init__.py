"""What runs inside the sandbox's processes: only the standard library, and as little of it as starts quickly.

The folder above is put on the path of a bare interpreter, so these modules import each other relatively and never
fase_gpu.
"""
