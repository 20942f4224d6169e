"""The public edge: every form of input gives the same scores, nothing is modified, bad input gets one clear line."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import fase_gpu as fg
from fase_gpu.results import SCORES, Status

Array = npt.NDArray[Any]
Form = Callable[[Array, Sequence[int]], tuple[Any, dict[str, Any]]]
COLUMNS = (*SCORES, "n_clusters", "n_samples", "status", "labels")
BACKENDS = ("torch", "reference")

RAGGED = (0, 3, 7, 1, 0, 8, 2, 0)
UNIFORM = (8,) * 5


def packed(n: Sequence[int], d: int = 24, seed: int = 0) -> Array:
    """Rows [S, d] float32 of tasks of n samples: each a few clusters of near-duplicates."""
    rng = np.random.default_rng([seed, d])
    centres = rng.standard_normal((3 * len(n), d))
    task = np.repeat(np.arange(len(n)), n)
    spread = 10.0 ** rng.uniform(-2, -0.5, (sum(n), 1))
    rows = centres[3 * task + rng.integers(3, size=sum(n))] + spread * rng.standard_normal((sum(n), d))
    return rows.astype(np.float32)


def tasks_of(x: Array, n: Sequence[int]) -> list[Array]:
    return np.split(x, np.cumsum(n)[:-1])


def padded(x: Array, n: Sequence[int], width: int = 0) -> Array:
    """Tasks as [T, N, d], NaN behind their samples: what is padding must not be read."""
    out = np.full((len(n), width or max(n), x.shape[1]), np.nan, dtype=x.dtype)
    for row, task in zip(out, tasks_of(x, n), strict=True):
        row[: len(task)] = task
    return out


class Exported:
    """Nothing but DLPack."""

    def __init__(self, array: Any) -> None:
        self.__dlpack__ = lambda **options: array.__dlpack__(**options)
        self.__dlpack_device__ = lambda: array.__dlpack_device__()


def offsets_of(n: Sequence[int]) -> Array:
    return np.concatenate([[0], np.cumsum(n)])


def spaced(x: Array) -> Array:
    """The same values as every other row and column of a larger array."""
    wide = np.full([2 * size + 3 for size in x.shape], np.nan, dtype=x.dtype)
    view = wide[tuple(slice(3, None, 2) for _ in x.shape)]
    view[...] = x
    return view


def frozen(x: Array) -> Array:
    x = x.copy()
    x.setflags(write=False)
    return x


def on_packed(change: Callable[[Array], Any]) -> Form:
    return lambda x, n: (change(x), {"offsets": offsets_of(n)})


def on_padded(change: Callable[[Array], Any], width: int = 0) -> Form:
    return lambda x, n: (change(padded(x, n, width)), {"n_samples": list(n)})


def on_tasks(change: Callable[[Array], Any], sequence: Callable[[Any], Any] = list) -> Form:
    return lambda x, n: (sequence(change(task) for task in tasks_of(x, n)), {})


CHANGES: dict[str, Callable[[Array], Any]] = {
    "array": lambda x: x,
    "read-only": frozen,
    "fortran": np.asfortranarray,
    "spaced": spaced,
    "reversed": lambda x: np.ascontiguousarray(x[::-1, ..., ::-1])[::-1, ..., ::-1],
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "tensor": torch.from_numpy,
    "strided tensor": lambda x: torch.from_numpy(spaced(x)),
    "transposed tensor": lambda x: torch.from_numpy(np.asfortranarray(x)),
    "requires_grad": lambda x: torch.from_numpy(x.copy()).requires_grad_(),
    "parameter": lambda x: torch.nn.Parameter(torch.from_numpy(x.copy())),
    "negated view": lambda x: torch.from_numpy(-x)._neg_view(),
    "dlpack of torch": lambda x: Exported(torch.from_numpy(spaced(x))),
    "dlpack of numpy": lambda x: Exported(x),
}
FORMS: dict[str, Form] = {
    f"{layout} {name}": wrap(change)
    for layout, wrap in (("packed", on_packed), ("padded", on_padded), ("list of", on_tasks))
    for name, change in CHANGES.items()
} | {
    "tuple of tensors": on_tasks(torch.from_numpy, tuple),
    "mixed list": lambda x, n: ([[np.asarray, torch.from_numpy][len(t) % 2](t) for t in tasks_of(x, n)], {}),
    "wider padding": on_padded(torch.from_numpy, 19),
    "padded, sizes in a tensor": lambda x, n: (padded(x, n), {"n_samples": torch.tensor(n, dtype=torch.int32)}),
    "padded, sizes in an array": lambda x, n: (padded(x, n), {"n_samples": np.array(n, dtype=">u2")}),
    "packed, offsets in a list": lambda x, n: (x, {"offsets": offsets_of(n).tolist()}),
    "packed, offsets in a tensor": lambda x, n: (x, {"offsets": torch.from_numpy(offsets_of(n))}),
    "packed, offsets in uint8": lambda x, n: (x, {"offsets": offsets_of(n).astype(np.uint8)}),
}


def assert_same(found: fg.FaseResult, expected: fg.FaseResult, tasks: Any = slice(None)) -> None:
    """Bit for bit, type for type; labels may have more or less padding. `tasks` are those of `found` to compare."""
    for name in COLUMNS:
        a, b = getattr(found, name)[tasks], getattr(expected, name)
        if name == "labels":
            width = min(a.shape[-1], b.shape[-1])
            assert (a[..., width:] == -1).all()
            assert (b[..., width:] == -1).all()
            a, b = a[..., :width], b[..., :width]
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("n", "d"), [(RAGGED, 24), (UNIFORM, 24), (UNIFORM, 1100), ((1,), 5), ((9,), 24)])
def test_every_form_gives_the_same_scores(n: tuple[int, ...], d: int, backend: str) -> None:
    x = packed(n, d)
    expected = fg.score_embeddings(tasks_of(x, n), backend=backend)
    assert expected.n_samples.tolist() == list(n)
    for name, form in FORMS.items():
        given, sizes = form(x, n)
        try:
            assert_same(fg.score_embeddings(given, **sizes, backend=backend), expected)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from error


@pytest.mark.parametrize("n", [UNIFORM, (1, 1), (4,)])
def test_without_sizes_padded_tasks_are_full(n: tuple[int, ...]) -> None:
    x = packed(n)
    assert_same(fg.score_embeddings(padded(x, n)), fg.score_embeddings(tasks_of(x, n)))


def test_slices_of_a_larger_tensor_are_scored_where_they_lie() -> None:
    x = packed(UNIFORM)
    expected = fg.score_embeddings(tasks_of(x, UNIFORM))
    around = torch.full((len(UNIFORM) + 2, 8 + 3, 24 + 5), torch.nan)
    around[1:-1, 2:-1, 4:-1] = torch.from_numpy(padded(x, UNIFORM))
    assert_same(fg.score_embeddings(around[1:-1, 2:-1, 4:-1]), expected)
    behind = torch.cat([torch.full((7, 24), torch.nan), torch.from_numpy(x)])[7:]
    assert behind.storage_offset() == 7 * 24
    assert_same(fg.score_embeddings(behind, offsets=offsets_of(UNIFORM)), expected)


def test_one_task_expanded_is_that_task_many_times() -> None:
    task = packed((6,))
    alone = fg.score_embeddings([task])
    many = np.broadcast_to(task, (4, *task.shape))
    for x in (many, torch.from_numpy(task).expand(4, -1, -1)):
        found = fg.score_embeddings(x)
        for i in range(4):
            assert_same(found, alone, slice(i, i + 1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["packed", "padded", "list"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_score_as_their_values_do(dtype: torch.dtype, form: str, backend: str) -> None:
    x = torch.from_numpy(packed(RAGGED)).to(dtype)
    assert not torch.equal(x.float(), torch.from_numpy(packed(RAGGED)))

    def score(x: torch.Tensor) -> fg.FaseResult:
        if form == "packed":
            return fg.score_embeddings(x, offsets=offsets_of(RAGGED), backend=backend)
        if form == "list":
            return fg.score_embeddings(x.split(RAGGED), backend=backend)
        wide = torch.nn.utils.rnn.pad_sequence(x.split(RAGGED), batch_first=True, padding_value=torch.nan)
        return fg.score_embeddings(wide, RAGGED, backend=backend)

    assert_same(score(x), score(x.float()))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ">f2", ">f8"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_float_types_of_numpy_score_as_their_values_do(dtype: npt.DTypeLike, backend: str) -> None:
    x = packed(RAGGED).astype(np.float16).astype(dtype)
    found = fg.score_embeddings(x, offsets=offsets_of(RAGGED), backend=backend)
    expected = fg.score_embeddings(x.astype(np.float64), offsets=offsets_of(RAGGED), backend="reference")
    # The specification's 1e-6 for a distance is one for their means.
    torch.testing.assert_close(found.pdm_mean.double(), expected.pdm_mean, rtol=0, atol=1e-6, equal_nan=True)
    torch.testing.assert_close(found.mst_mean.double(), expected.mst_mean, rtol=0, atol=1e-6, equal_nan=True)
    assert torch.equal(found.labels, expected.labels)  # type: ignore[arg-type]


def test_float64_keeps_what_float32_cannot_hold() -> None:
    x = np.full((1, 2, 4), 1e200)
    x[0, 1, 0] = -1e200
    for backend in BACKENDS:
        found = fg.score_embeddings(x, backend=backend)
        assert found.status.tolist() == [Status.OK]
        assert found.mode[0].item() == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_form_of_distances_gives_the_same_scores(backend: str) -> None:
    n = (0, 5, 1, 7, 0)
    matrices = [np.abs(a - a.T) for a in (packed((size,), 24)[:, :1] for size in n)]
    expected = fg.score_distances(matrices, backend=backend)
    wide = np.full((len(n), 9, 9), np.nan, dtype=np.float32)
    for row, matrix in zip(wide, matrices, strict=True):
        row[: len(matrix), : len(matrix)] = matrix
    for name, change in CHANGES.items():
        assert_same(fg.score_distances([change(m) for m in matrices], backend=backend), expected)
        found = fg.score_distances(change(wide), n, backend=backend)
        assert_same(found, expected)
        assert found.n_samples.tolist() == list(n), name
    one = fg.score_distances(matrices[3], backend=backend)
    assert_same(expected, one, slice(3, 4))
    assert_same(fg.score_distances(wide[3], [7], backend=backend), one)


X = packed(UNIFORM[:4], 6).reshape(4, 8, 6)
ROWS = X[0]
TENSOR = torch.from_numpy(X)
FLOATS = "expected float32, float16, bfloat16, float64, got "
ANY_FORM = "expected a tensor, a NumPy array or a list of them, got "
SHAPES = r"expected [T, N, d] or packed [S, d] with offsets, got shape "

BAD_EMBEDDINGS: list[tuple[Any, str]] = [
    (None, ANY_FORM + "NoneType"),
    ("embeddings", ANY_FORM + "str"),
    (1.5, ANY_FORM + "float"),
    ({0: X}, ANY_FORM + "dict"),
    ((task for task in X), ANY_FORM + "generator"),
    (torch.zeros(()), SHAPES + "()"),
    (ROWS[0], SHAPES + "(6,)"),
    (ROWS, SHAPES + "(8, 6)"),
    (X[None], SHAPES + "(1, 4, 8, 6)"),
    (X[:, :, :0], "expected at least one dimension, got d = 0"),
    (X.astype(np.int64), FLOATS + "int64"),
    (X > 0, FLOATS + "bool"),
    (X.astype(np.longdouble), f"{FLOATS}dtype {np.dtype(np.longdouble)}"),
    (X + 1j, "expected a float array, got dtype complex64"),
    (X.astype(object), "expected a float array, got dtype object"),
    (X.astype(str), "expected a float array, got dtype <U32"),
    (X.view("M8[s]"), "expected a float array, got dtype datetime64[s]"),
    (np.ma.masked_less(X, 0), "expected "),
    (TENSOR.long(), FLOATS + "int64"),
    (TENSOR > 0, FLOATS + "bool"),
    (TENSOR + 1j, FLOATS + "complex64"),
    (TENSOR.to(torch.float8_e4m3fn), FLOATS + "float8_e4m3fn"),
    (TENSOR.to_sparse(), "expected a dense tensor, got layout torch.sparse_coo"),
    (TENSOR.to("meta"), "expected "),
    (Exported(TENSOR.long()), FLOATS + "int64"),
    (Exported(object()), "cannot be read through DLPack: "),
]
BAD_PARTS: list[tuple[Any, str]] = [
    ([ROWS, None], f"[1]: {ANY_FORM}NoneType"),
    (["x = 1"], f"[0]: {ANY_FORM}str"),
    (X.tolist(), f"[0]: {ANY_FORM}list"),
    ([ROWS, ROWS.astype(int)], f"[1]: {FLOATS}int64"),
    ([ROWS, ROWS[0]], "[1]: expected [n, d], got shape (6,)"),
    ([X], "[0]: expected [n, d], got shape (4, 8, 6)"),
    ([ROWS, ROWS[:, :0]], "[1]: expected at least one dimension, got d = 0"),
    ([ROWS, ROWS[:, :5]], "[1]: expected d = 6 as in embeddings[0], got 5"),
    ([ROWS, ROWS.astype(np.float64)], "[1]: expected torch.float32 on cpu as in embeddings[0], got torch.float64"),
    ([TENSOR[0], TENSOR[0].half()], "[1]: expected torch.float32 on cpu as in embeddings[0], got torch.float16"),
    ([TENSOR[0], TENSOR[0].to("meta")], "[1]: expected "),
    ([TENSOR[0], TENSOR[0].to_sparse()], "[1]: expected a dense tensor, got layout torch.sparse_coo"),
]
BAD_INTEGERS: list[tuple[Any, str]] = [
    ([1.0, 2.0], "expected integers, got dtype float64"),
    (np.array([1, np.nan]), "expected integers, got dtype float64"),
    (torch.tensor([1.0]), "expected integers, got dtype float32"),
    (torch.tensor([1.0], requires_grad=True), "expected integers, got dtype float32"),
    (torch.tensor([1.0], dtype=torch.bfloat16), "expected integers, got dtype bfloat16"),
    ([True, False], "expected integers, got dtype bool"),
    (["1"], "expected integers, got dtype <U1"),
    ("1234", "expected integers, got dtype <U4"),
    ([None], "expected integers, got dtype object"),
    ([2**70], "expected integers, got dtype object"),
    (8, "expected one dimension, got shape ()"),
    ([[0, 8]], "expected one dimension, got shape (1, 2)"),
    ([[0], [8, 8]], "expected "),
    (torch.tensor([0, 8]).to_sparse(), "expected "),
    (torch.tensor([0, 8], device="meta"), "expected "),
]
BAD_SIZES: list[tuple[Any, dict[str, Any], str]] = [
    (X, {"n_samples": [8, 9, 8, 8]}, "n_samples[1]: expected 0 to N = 8, got 9"),
    (X, {"n_samples": [8, 8, 8, -1]}, "n_samples[3]: expected 0 to N = 8, got -1"),
    (X, {"n_samples": np.array([2**64 - 1] * 4, np.uint64)}, "n_samples[0]: expected 0 to N = 8, got "),
    (X, {"n_samples": [8, 8, 8]}, "n_samples: expected one for each of 4 tasks, got 3"),
    (X, {"n_samples": [8] * 5}, "n_samples: expected one for each of 4 tasks, got 5"),
    (X, {"n_samples": []}, "n_samples: expected one for each of 4 tasks, got 0"),
    (ROWS, {"offsets": []}, "offsets: expected to start at 0, got none"),
    (ROWS, {"offsets": [1, 8]}, "offsets: expected to start at 0, got 1"),
    (ROWS, {"offsets": [-1, 8]}, "offsets: expected to start at 0, got -1"),
    (ROWS, {"offsets": [0, 5, 3, 8]}, "offsets[2]: expected at least 5, the one before, got 3"),
    (ROWS, {"offsets": np.array([0, 5, 3, 8], np.uint8)}, "offsets[2]: expected at least 5, the one before, got 3"),
    (ROWS, {"offsets": [0, 9, 8]}, "offsets[2]: expected at least 9, the one before, got 8"),
    (ROWS, {"offsets": [0, 7]}, "offsets: expected to end at S = 8, got 7"),
    (ROWS, {"offsets": [0, 9]}, "offsets: expected to end at S = 8, got 9"),
    (ROWS, {"offsets": [0]}, "offsets: expected to end at S = 8, got 0"),
    (ROWS, {"n_samples": [8]}, f"embeddings: {SHAPES}(8, 6)"),
    (ROWS, {"n_samples": [8], "offsets": [0, 8]}, "n_samples: only for padded [T, N, d]; packed [S, d] takes offsets"),
    (ROWS[:, :0], {"offsets": [0, 8]}, "embeddings: expected at least one dimension, got d = 0"),
    (X, {"offsets": [0, 8, 16, 24, 32]}, "offsets: only for packed [S, d], got embeddings of shape (4, 8, 6)"),
    (X, {"n_samples": [8] * 4, "offsets": [0]}, "offsets: only for packed [S, d], got embeddings of shape (4, 8, 6)"),
    (list(X), {"n_samples": [8] * 4}, "embeddings: a list of [n, d] says its own sizes; drop n_samples and offsets"),
    (list(X), {"offsets": [0, 8]}, "embeddings: a list of [n, d] says its own sizes; drop n_samples and offsets"),
]
SQUARE = "expected [T, N, N] or [N, N], got shape "
BAD_DISTANCES: list[tuple[Any, Any, str]] = [
    (X, None, f"distances: {SQUARE}(4, 8, 6)"),
    (ROWS, None, f"distances: {SQUARE}(1, 8, 6)"),
    (ROWS[0], None, f"distances: {SQUARE}(6,)"),
    (X[None], None, f"distances: {SQUARE}(1, 4, 8, 6)"),
    (X[:, :6], [6, 7, 6, 6], "n_samples[1]: expected 0 to N = 6, got 7"),
    (X[:, :6], [6], "n_samples: expected one for each of 4 tasks, got 1"),
    (X[0, :6], 6, "n_samples: expected one dimension, got shape ()"),
    (list(X[:, :6]), [6] * 4, "distances: a list of [n, n] says its own sizes; drop n_samples"),
    (list(X), None, "distances[0]: expected [n, n], got shape (8, 6)"),
    ([TENSOR[0, :6], TENSOR[0, :6].double()], None, "distances[1]: expected torch.float32 on cpu as in distances[0]"),
    ([X[0, :6], X[0, :6].tolist()], None, f"distances[1]: {ANY_FORM}list"),
]
LISTS = "expected a list of lists of strings, got "
BAD_SAMPLES: list[tuple[Any, str]] = [
    (None, f"samples: {LISTS}NoneType"),
    ("x = 1", f"samples: {LISTS}str"),
    ({"task": ["x = 1"]}, f"samples: {LISTS}dict"),
    (iter([["x = 1"]]), f"samples: {LISTS}list_iterator"),
    (["x = 1", "x = 2"], "samples[0]: expected a list of strings, got str"),
    ([["x = 1"], None], "samples[1]: expected a list of strings, got NoneType"),
    ([["x = 1"], {"x = 1"}], "samples[1]: expected a list of strings, got set"),
    ([["x = 1"], ["x = 1", None]], "samples[1][1]: expected a string, got NoneType"),
    ([["x = 1", b"x = 1"]], "samples[0][1]: expected a string, got bytes"),
    ([[], [["x = 1"]]], "samples[1][0]: expected a string, got list"),
    ([["x = 1", 1]], "samples[0][1]: expected a string, got int"),
]


def refusal(call: Callable[[], object]) -> str:
    """The message of the InputError that the call has to raise, which is one line."""
    with pytest.raises(fg.InputError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(("x", "message"), BAD_EMBEDDINGS)
def test_what_cannot_be_embeddings_is_refused(x: Any, message: str) -> None:
    assert refusal(lambda: fg.score_embeddings(x)).startswith(f"embeddings: {message}")
    if SHAPES not in message and "d = 0" not in message:
        assert refusal(lambda: fg.score_distances(x)).startswith(f"distances: {message}")


@pytest.mark.parametrize(("parts", "message"), BAD_PARTS)
def test_the_part_of_a_list_that_cannot_be_is_named(parts: Any, message: str) -> None:
    for sequence in (parts, tuple(parts)):
        assert refusal(lambda x=sequence: fg.score_embeddings(x)).startswith(f"embeddings{message}")


@pytest.mark.parametrize(("values", "message"), BAD_INTEGERS)
def test_sizes_are_integers(values: Any, message: str) -> None:
    assert refusal(lambda: fg.score_embeddings(X, values)).startswith(f"n_samples: {message}")
    assert refusal(lambda: fg.score_distances(X[:, :6], values)).startswith(f"n_samples: {message}")
    assert refusal(lambda: fg.score_embeddings(ROWS, offsets=values)).startswith(f"offsets: {message}")


@pytest.mark.parametrize(("x", "sizes", "message"), BAD_SIZES)
def test_sizes_fit_the_embeddings(x: Any, sizes: dict[str, Any], message: str) -> None:
    assert refusal(lambda: fg.score_embeddings(x, **sizes)).startswith(message)


@pytest.mark.parametrize(("d", "n_samples", "message"), BAD_DISTANCES)
def test_what_cannot_be_distances_is_refused(d: Any, n_samples: Any, message: str) -> None:
    assert refusal(lambda: fg.score_distances(d, n_samples)).startswith(message)


@pytest.mark.parametrize(("samples", "message"), BAD_SAMPLES)
def test_what_cannot_be_samples_is_refused(samples: Any, message: str) -> None:
    for encoder in ("ast", "all-MiniLM-L6-v2"):
        assert refusal(lambda name=encoder: fg.score_samples(samples, name)) == message


def test_other_layouts_of_tensors_are_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls both unfinished
        csr = TENSOR[0].to_sparse_csr()
        nested = torch.nested.nested_tensor(list(TENSOR))
    assert refusal(lambda: fg.score_embeddings([csr])).startswith("embeddings[0]: expected a dense tensor, got layout")
    assert refusal(lambda: fg.score_embeddings(nested)).startswith("embeddings: expected ")
