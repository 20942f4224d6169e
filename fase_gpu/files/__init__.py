"""Readers of sample and embedding files, and the writer of score files."""

from __future__ import annotations

from fase_gpu.files.embeddings import EmbeddingSet, read_embeddings
from fase_gpu.files.samples import SampleSet, read_samples
from fase_gpu.files.scores import check_output, write_scores

__all__ = ["EmbeddingSet", "SampleSet", "check_output", "read_embeddings", "read_samples", "write_scores"]
