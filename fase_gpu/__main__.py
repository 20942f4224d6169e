"""`python -m fase_gpu`: the fase-gpu command."""

from __future__ import annotations

from fase_gpu.cli import main

main()
