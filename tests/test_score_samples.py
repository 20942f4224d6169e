"""From texts to scores, with the encoders that need no download."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.stats import entropy as scipy_entropy

import fase_gpu as fg
from fase_gpu.encode import load_encoder
from fase_gpu.files import read_samples

ADD = "def f(a, b):\n    return a + b\n"
SWAPPED = "def f(x, y):\n    '''Sum.'''\n    return x + y  # the same tree\n"
LOOP = "def f(a, b):\n    for _ in range(b):\n        a += 1\n    return a\n"
BROKEN = "def f(a, b:\n"
NEURAL = "all-MiniLM-L6-v2"
TASKS = [[ADD, ADD, SWAPPED, LOOP], [LOOP, BROKEN, BROKEN], [], [ADD]]


def test_ast_scores_counts_and_statuses() -> None:
    result = fg.score_samples(TASKS, encoder="ast")
    assert result.to_dict()["status"] == ["OK", "OK", "EMPTY", "SINGLE"]
    assert result.labels is not None
    assert result.labels[0].tolist() == [0, 0, 0, 1]
    # Equal texts are at the minimum distance, parsable or not.
    assert result.labels[1].tolist() == [0, 1, 1, -1]
    assert result.config.multiscale_range == (1e-2, 1.0)
    info = result.info
    assert (info.samples, info.distinct_texts, info.unparsable_samples) == (8, 4, 2)
    assert info.truncated_samples is None
    assert info.normalize_code is None
    assert list(info.seconds) == ["load", "encode", "score"]


def test_a_range_that_is_asked_for_is_kept() -> None:
    config = fg.FaseConfig(multiscale_range=(0.01, 0.5))
    assert fg.score_samples(TASKS, encoder="ast", config=config).config == config


def test_minilm_scores_are_those_of_its_embeddings() -> None:
    result = fg.score_samples(TASKS, NEURAL, normalize_code=False)
    encoder = load_encoder("all-MiniLM-L6-v2", normalize=False)
    x = [encoder.encode(texts).vectors.numpy() if texts else np.zeros((0, 384), dtype=np.float32) for texts in TASKS]
    expected = fg.score_embeddings(x)
    torch.testing.assert_close(result.multiscale, expected.multiscale, atol=1e-4, rtol=0, equal_nan=True)
    assert result.info.truncated_samples == 0
    assert result.info.unparsable_samples is None
    assert result.info.normalize_code is False


def test_normalising_makes_comments_and_docstrings_invisible_to_a_neural_encoder() -> None:
    commented = [ADD, ADD.replace("return", "# adds\n    return"), ADD.replace("return", "'''Adds.'''\n    return")]
    assert float(fg.score_samples([commented], NEURAL).pdm_mean[0]) == pytest.approx(6 / 9 * 1e-6)
    raw = fg.score_samples([commented], NEURAL, config=fg.FaseConfig(semantics="released"))
    assert float(raw.pdm_mean[0]) > 1e-3
    assert raw.info.normalize_code is False
    assert fg.score_samples([commented], NEURAL).info.unparsable_samples == 0


def test_two_encoders_average_their_distances() -> None:
    both, tree, neural = (
        fg.score_samples(TASKS, encoder=e) for e in ("ast+all-MiniLM-L6-v2", "ast", "all-MiniLM-L6-v2")
    )
    torch.testing.assert_close(both.pdm_mean, (tree.pdm_mean + neural.pdm_mean) / 2, equal_nan=True)
    assert both.config.multiscale_range == (1e-3, 1.0)
    reference = fg.score_samples(TASKS, encoder="ast+all-MiniLM-L6-v2", backend="reference")
    torch.testing.assert_close(both.multiscale.double(), reference.multiscale, atol=1e-6, rtol=0, equal_nan=True)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_variants_on_texts(backend: str) -> None:
    def labels(variant: str) -> list[list[int]]:
        result = fg.score_samples(TASKS, encoder="ast", config=fg.FaseConfig(variant=variant), backend=backend)
        assert "classes" in result.info.seconds
        columns: list[list[int]] = result.to_dict()["labels"]
        return columns

    assert labels("textual") == [[0, 0, 1, 2], [0, 1, 1], [], [0]]
    # Structural classes see the docstring's node; what does not parse is alone, equal or not.
    assert labels("structural") == [[0, 0, 1, 2], [0, 1, 2], [], [0]]
    assert labels("union") == [[0, 0, 0, 1], [0, 1, 1], [], [0]]
    assert labels("intersection") == [[0, 0, 1, 2], [0, 1, 2], [], [0]]


def test_every_text_variant_reports_unparsable_samples() -> None:
    config = fg.FaseConfig(variant="structural")
    assert fg.score_samples(TASKS, NEURAL, config=config, normalize_code=False).info.unparsable_samples == 2


@pytest.mark.shared
def test_real_samples_textual_entropy_and_counts(shared_data: Path) -> None:
    read = read_samples(shared_data / "samples" / "humaneval_gpt-3.5_t0.6.jsonl")
    result = fg.score_samples(read.samples, encoder="ast", config=fg.FaseConfig(variant="textual"))
    expected = [scipy_entropy(list(Counter(task).values()), base=len(task)) for task in read.samples]
    np.testing.assert_allclose(result.entropy.numpy(), expected, atol=1e-6)
    assert result.info.samples == 10 * len(read.task_ids) == 1510
    assert result.info.distinct_texts == len({text for task in read.samples for text in task})


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ("text", "samples: expected a list of lists of strings, got str"),
        (["text"], r"samples\[0\]: expected a list of strings, got str"),
        ([["a"], ["b", None]], r"samples\[1\]\[1\]: expected a string, got NoneType"),
        ([["a"], 3], r"samples\[1\]: expected a list of strings, got int"),
    ],
)
def test_what_is_not_texts_is_named(samples: object, message: str) -> None:
    with pytest.raises(fg.InputError, match=message):
        fg.score_samples(samples, encoder="ast")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "ast+", "+ast"])
def test_half_an_encoder_name_is_an_error(name: str) -> None:
    with pytest.raises(fg.InputError, match="encoder: expected a name"):
        fg.score_samples(TASKS, encoder=name)


def test_no_tasks_at_all() -> None:
    result = fg.score_samples([], encoder="ast")
    assert len(result) == 0
    assert result.to_arrow().num_rows == 0


def test_threads_may_load_a_neural_encoder_at_the_same_time() -> None:
    """In a process of its own: transformers fills its module on first use."""
    script = """
import sys, threading
import fase_gpu as fg
samples = [["x = 1", "x = 2", "y = 1"]]
found = []
def score():
    found.append(fg.score_samples(samples, "all-MiniLM-L6-v2").multiscale.item())
threads = [threading.Thread(target=score) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
sys.exit(len(found) != 4 or len(set(found)) != 1)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_a_radius_below_the_minimum_distance_splits_identical_samples(backend: str) -> None:
    """What the formula of the paper gives where nearly all samples are identical: the mode is the minimum distance."""
    result = fg.score_samples([[ADD] * 9 + [LOOP]], encoder="ast", backend=backend)
    assert float(result.eps[0]) < result.config.min_distance
    assert result.n_clusters.tolist() == [10]
    assert float(result.multiscale[0]) < 0.15


def test_classes_may_be_tensors_of_one_value() -> None:
    x = torch.randn(1, 6, 4, generator=torch.Generator().manual_seed(0))
    config = fg.FaseConfig(variant="structural")
    for zeros in ([list(torch.zeros(6, dtype=torch.int64))], [list(np.zeros(6))], torch.zeros(1, 6)):
        labels = fg.score_embeddings(x, config=config, classes=zeros).labels
        assert labels is not None
        assert labels.tolist() == [[0] * 6]
    with pytest.raises(fg.InputError, match=r"classes\[0\]: expected hashable values"):
        fg.score_embeddings(x, config=config, classes=[[np.array([1, 2])] * 6])
