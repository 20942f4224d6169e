"""FaseResult: its shapes and types, its statuses, its tables; and that scoring leaves its input as it was."""

from __future__ import annotations

import dataclasses
import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
import torch
from test_inputs import BACKENDS, COLUMNS, FORMS, RAGGED, UNIFORM, assert_same, offsets_of, packed, padded, tasks_of

import fase_gpu as fg
from fase_gpu.results import SCORES, SWEPT_SCORES, Status

Array = npt.NDArray[Any]
nan = math.nan


def made_result(alphas: int | None = None, *, labels: bool = True, dtype: torch.dtype = torch.float32) -> fg.FaseResult:
    """Four tasks, OK with 3 samples, SINGLE, EMPTY and OK with 2, whose numbers say where they come from."""
    task = torch.tensor([0.1, nan, nan, 3.1], dtype=dtype)
    swept = task if alphas is None else task[:, None] + torch.arange(alphas)
    clusters = torch.tensor([2, 1, 0, 1], dtype=torch.int32)
    classes = torch.tensor([[0, 1, 0, -1], [0, -1, -1, -1], [-1, -1, -1, -1], [0, 0, -1, -1]], dtype=torch.int32)
    scores = {name: (swept if name in SWEPT_SCORES else task) + 10 * i for i, name in enumerate(SCORES)}
    return fg.FaseResult(
        **scores,
        n_samples=torch.tensor([3, 1, 0, 2]),
        n_clusters=clusters if alphas is None else clusters[:, None].expand(-1, alphas),
        status=torch.tensor([Status.OK, Status.SINGLE, Status.EMPTY, Status.OK], dtype=torch.int8),
        labels=None if not labels else classes if alphas is None else classes[:, None].expand(-1, alphas, -1),
        config=fg.FaseConfig(alpha=1.6 if alphas is None else tuple(range(1, alphas + 1))),
        info=fg.RunInfo(backend="torch"),
    )


def same_values(found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Equal to the last bit and the type, where NaN equals NaN."""
    return repr(list(found)) == repr(list(expected))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_to_dict_has_plain_values_a_row_per_task(dtype: torch.dtype) -> None:
    result = made_result(dtype=dtype)
    columns = result.to_dict()
    assert list(columns) == [*SCORES, "n_samples", "n_clusters", "status", "labels"]
    for i, name in enumerate(SCORES):
        exact = (torch.tensor([0.1, 3.1], dtype=dtype) + 10 * i).tolist()
        assert same_values(columns[name], [exact[0], nan, nan, exact[1]]), name
    assert same_values(columns["n_samples"], [3, 1, 0, 2])
    assert same_values(columns["n_clusters"], [2, 1, 0, 1])
    assert same_values(columns["status"], ["OK", "SINGLE", "EMPTY", "OK"])
    assert same_values(columns["labels"], [[0, 1, 0], [0], [], [0, 0]])


def test_to_dict_has_lists_where_there_are_alphas() -> None:
    columns = made_result(2, dtype=torch.float64).to_dict()
    assert same_values(columns["entropy"], [[0.1, 1.1], [nan, nan], [nan, nan], [3.1, 4.1]])
    assert same_values(columns["n_clusters"], [[2, 2], [1, 1], [0, 0], [1, 1]])
    assert same_values(columns["labels"], [[[0, 1, 0]] * 2, [[0]] * 2, [[]] * 2, [[0, 0]] * 2])
    assert {name for name in SCORES if isinstance(columns[name][0], list)} == {*SWEPT_SCORES}


@pytest.mark.parametrize("alphas", [None, 1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_to_arrow_is_the_same_table_with_types(alphas: int | None, dtype: torch.dtype) -> None:
    result = made_result(alphas, dtype=dtype)
    table = result.to_arrow()
    columns = result.to_dict()
    assert table.column_names == list(columns)
    for name in columns:
        assert same_values(table.column(name).to_pylist(), columns[name]), name
        assert table.column(name).null_count == 0
    value = pa.float32() if dtype == torch.float32 else pa.float64()
    types = dict.fromkeys(SCORES, value) | {"n_samples": pa.int64(), "status": pa.string(), "n_clusters": pa.int32()}
    if alphas:
        types |= {name: pa.list_(types[name]) for name in (*SWEPT_SCORES, "n_clusters")}
    types["labels"] = pa.list_(pa.list_(pa.int32())) if alphas else pa.list_(pa.int32())
    assert dict(zip(table.schema.names, table.schema.types, strict=True)) == types


@pytest.mark.parametrize("alphas", [None, 3])
def test_to_pandas_is_the_same_table(alphas: int | None) -> None:
    result = made_result(alphas)
    frame = result.to_pandas()
    columns = result.to_dict()
    assert list(frame.columns) == list(columns)
    assert frame.index.tolist() == [0, 1, 2, 3]
    for name in columns:
        assert same_values(frame[name].tolist(), columns[name]), name
    numeric = [name for name in (*SCORES, "n_samples", "n_clusters") if not isinstance(columns[name][0], list)]
    assert {name: frame[name].dtype.kind for name in numeric} == {
        name: "f" if name in SCORES else "i" for name in numeric
    }


@pytest.mark.parametrize("alphas", [None, 3])
def test_tables_without_labels_have_no_such_column(alphas: int | None) -> None:
    result = made_result(alphas, labels=False)
    for columns in (list(result.to_dict()), result.to_arrow().column_names, list(result.to_pandas().columns)):
        assert columns == [*SCORES, "n_samples", "n_clusters", "status"]


@pytest.mark.parametrize("alpha", [1.6, (0.5, 1.6)])
def test_tables_of_no_tasks_keep_their_columns_and_types(alpha: Any) -> None:
    config = fg.FaseConfig(alpha=alpha)
    empty, one = (fg.score_embeddings(x, config=config) for x in ([], [packed((3,))]))
    assert empty.to_arrow().schema == one.to_arrow().schema
    assert empty.to_arrow().num_rows == len(empty.to_pandas()) == 0
    assert list(empty.to_pandas().columns) == list(one.to_dict())


def test_without_pandas_the_error_gives_the_pip_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(fg.MissingExtraError) as caught:
        made_result().to_pandas()
    assert str(caught.value) == "to_pandas needs packages that are not installed: pip install 'fase-gpu[pandas]'"
    assert isinstance(caught.value, ImportError)


def test_raise_for_status_names_the_tasks_without_a_score() -> None:
    result = made_result()
    for ids, names in ((None, ("1", "2")), (["a", "b", "c", "d"], ("b", "c"))):
        with pytest.raises(fg.TaskStatusError) as caught:
            result.raise_for_status(ids)
        assert str(caught.value) == f"2 of 4 tasks have no score: {names[0]} (SINGLE), {names[1]} (EMPTY)"
    assert issubclass(fg.TaskStatusError, fg.FaseError)


@pytest.mark.parametrize(("bad", "more"), [(5, ""), (6, " and 1 more"), (99, " and 94 more")])
def test_raise_for_status_stops_at_five(bad: int, more: str) -> None:
    result = fg.score_embeddings(torch.full((bad, 2, 3), nan))
    names = ", ".join(f"t{i} (NOT_FINITE)" for i in range(5))
    with pytest.raises(fg.TaskStatusError) as caught:
        result.raise_for_status([f"t{i}" for i in range(bad)])
    assert str(caught.value) == f"{bad} of {bad} tasks have no score: {names}{more}"


def test_raise_for_status_is_silent_where_all_have_scores() -> None:
    fg.score_embeddings(packed((4, 4)), offsets=[0, 4, 8]).raise_for_status()


@pytest.mark.parametrize("task_ids", [["a"], ["a"] * 5])
def test_raise_for_status_wants_an_id_for_each_task(task_ids: list[str]) -> None:
    with pytest.raises(fg.InputError) as caught:
        made_result().raise_for_status(task_ids)
    assert str(caught.value) == f"task_ids: expected one for each of 4 tasks, got {len(task_ids)}"


def test_a_result_and_its_info_never_change() -> None:
    result = made_result()
    assert len(result) == 4
    for record, name in ((result, "entropy"), (result.info, "samples")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, 0)


def test_the_info_says_what_was_read_and_how_long_it_took() -> None:
    info = fg.score_embeddings(tasks_of(packed(RAGGED), RAGGED)).info
    assert (info.backend, info.samples, list(info.seconds)) == ("torch", sum(RAGGED), ["score"])
    assert info.seconds["score"] > 0
    unknown = (info.encoder, info.normalize_code, info.distinct_texts, info.truncated_samples, info.unparsable_samples)
    assert unknown == (None,) * 5
    samples = [["x = 1", "x = 1", "def f(:"], [], ["def f(:", "y = 2"]]
    config = fg.FaseConfig(variant="union")
    info = fg.score_samples(samples, "ast", config, workers=0, backend="reference").info
    assert (info.backend, info.encoder, info.samples, info.distinct_texts) == ("reference", "ast", 5, 3)
    assert (info.unparsable_samples, info.truncated_samples, info.normalize_code) == (2, None, None)
    assert list(info.seconds) == ["load", "encode", "classes", "score"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("width", [0, 3])
@pytest.mark.parametrize("alpha", [1.6, (0.5, 1.6)])
def test_no_tasks_are_a_result_without_rows(backend: str, width: int, alpha: Any) -> None:
    config = fg.FaseConfig(alpha=alpha)
    for x, sizes in (
        (np.zeros((0, width, 4), np.float32), {}),
        (np.zeros((0, width, 4), np.float32), {"n_samples": []}),
        (torch.zeros(0, 4), {"offsets": [0]}),
        ([], {}),
        ((), {}),
    ):
        result = fg.score_embeddings(x, **sizes, config=config, backend=backend)  # type: ignore[arg-type]
        assert len(result) == 0
        assert result.entropy.shape == (0, *np.shape(alpha))
        result.raise_for_status()
    for d in (np.zeros((0, width, width), np.float32), []):
        assert len(fg.score_distances(d, config=config, backend=backend)) == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_tasks_without_samples_are_empty_in_every_form(backend: str) -> None:
    for x, sizes in (
        (np.zeros((3, 0, 4), np.float32), {}),
        (np.full((3, 5, 4), np.nan, np.float32), {"n_samples": [0, 0, 0]}),
        (np.zeros((0, 4), np.float32), {"offsets": [0, 0, 0, 0]}),
        ([np.zeros((0, 4), np.float32)] * 3, {}),
    ):
        result = fg.score_embeddings(x, **sizes, backend=backend)  # type: ignore[arg-type]
        assert result.status.tolist() == [Status.EMPTY] * 3
        assert result.entropy.isnan().all()
        assert (result.labels == -1).all()  # type: ignore[union-attr]


def bits(x: Any) -> bytes:
    array = x.detach().view(torch.uint8).numpy() if isinstance(x, torch.Tensor) else x
    return array.tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("semantics", ["paper", "released"])
def test_embeddings_are_not_modified(backend: str, semantics: str) -> None:
    config = fg.FaseConfig(alpha=(0.5, 1.6), semantics=semantics)
    for n in (RAGGED, UNIFORM):
        rows = packed(n)
        rows[-1] *= 1e30  # one that is computed in another way
        rows[-2] = 0
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64):
            x = torch.from_numpy(rows).to(dtype)
            wide = torch.from_numpy(padded(rows, n)).to(dtype).requires_grad_()
            sizes, offsets = torch.tensor(n), torch.from_numpy(offsets_of(n))
            arguments = (x, wide, sizes, offsets, *x.split(n))
            before = [bits(a) for a in arguments]
            result = fg.score_embeddings(x, offsets=offsets, config=config, backend=backend)
            fg.score_embeddings(wide, sizes, config=config, backend=backend)
            fg.score_embeddings(x.split(n), config=config, backend=backend)
            result.n_samples.zero_()
            assert [bits(a) for a in arguments] == before
            assert (wide.requires_grad, wide.grad, result.entropy.requires_grad) == (True, None, False)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_distances_are_not_modified(backend: str, dtype: torch.dtype) -> None:
    d = torch.rand(3, 6, 6, generator=torch.Generator().manual_seed(0))
    d = ((d + d.mT) / 2).to(dtype)
    d[0, 1, 2] += 1e-5  # the halves are averaged, small ones raised, the diagonal and padding ignored
    d[0, 3, 4] = d[0, 4, 3] = -1e-5
    d.diagonal(dim1=1, dim2=2).fill_(torch.nan)
    d[1, 4:] = -torch.inf
    sizes = np.array([6, 4, 6])
    before = [bits(d), bits(sizes)]
    result = fg.score_distances(d, sizes, backend=backend)
    fg.score_distances(list(d), config=fg.FaseConfig(semantics="released"), backend=backend)
    assert [bits(d), bits(sizes)] == before
    assert result.status.tolist() == [Status.OK] * 3


@pytest.mark.parametrize("labels", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize(
    "alpha", [1.6, 2, [0.5], (0.5, 1.6, 3.0), np.array([0.5, 1.6, 3.0]), torch.tensor([0.5, 1.6, 3.0])], ids=repr
)
def test_shapes_and_types_are_as_documented(alpha: Any, dtype: torch.dtype, backend: str, labels: bool) -> None:
    x = torch.from_numpy(packed(RAGGED)).to(dtype)
    config = fg.FaseConfig(alpha=alpha, return_labels=labels)
    result = fg.score_embeddings(x, offsets=offsets_of(RAGGED), config=config, backend=backend)
    tasks, swept = len(RAGGED), (len(RAGGED), *np.shape(alpha))
    for name in SCORES:
        column = getattr(result, name)
        assert column.shape == (swept if name in SWEPT_SCORES else (tasks,)), name
        assert column.dtype == (torch.float32 if backend == "torch" else torch.float64), name
    assert (result.n_samples.dtype, result.n_samples.shape) == (torch.int64, (tasks,))
    assert (result.n_clusters.dtype, result.n_clusters.shape) == (torch.int32, swept)
    assert (result.status.dtype, result.status.shape) == (torch.int8, (tasks,))
    if result.labels is None:
        assert not labels
    else:
        assert (result.labels.dtype, result.labels.shape) == (torch.int32, (*swept, max(RAGGED)))
        for t, n in enumerate(RAGGED):
            assert (result.labels[t, ..., n:] == -1).all()
            distinct = result.labels[t, ..., :n].amax(-1) + 1 if n else torch.tensor(0)
            assert (distinct == result.n_clusters[t]).all()
    assert {getattr(result, name).device.type for name in COLUMNS[:-1]} == {"cpu"}
    assert (len(result), result.info.backend, result.info.samples) == (tasks, backend, sum(RAGGED))


@pytest.mark.parametrize("backend", BACKENDS)
def test_labels_are_all_the_difference_of_return_labels(backend: str) -> None:
    x = packed(RAGGED)
    for variant in ("scaled_mst_mode", "fixed_mcs"):
        config = {"alpha": (0.5, 1.6), "variant": variant}
        with_labels, without = (
            fg.score_embeddings(
                tasks_of(x, RAGGED), config=fg.FaseConfig(return_labels=kept, **config), backend=backend
            )
            for kept in (True, False)
        )
        assert without.labels is None
        for name in COLUMNS[:-1]:
            a, b = getattr(with_labels, name), getattr(without, name)
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def spoiled(value: float | None, n: int = 5) -> Array:
    """A task with one value that is bad, or with a zero vector."""
    x = packed((n,), seed=9)
    if value is None:
        x[n // 2] = 0
    else:
        x[n // 2, -1] = value
    return x


BAD_TASKS: dict[str, tuple[Array, Status]] = {
    "nan": (spoiled(np.nan), Status.NOT_FINITE),
    "inf": (spoiled(np.inf, 7), Status.NOT_FINITE),
    "-inf": (spoiled(-np.inf, 8), Status.NOT_FINITE),
    "all nan": (np.full((7, 24), np.nan, np.float32), Status.NOT_FINITE),
    "zero vector": (spoiled(None), Status.ZERO_VECTOR),
    "all zero": (np.zeros((8, 24), np.float32), Status.ZERO_VECTOR),
    "zero and nan": (np.stack([np.zeros(24), np.full(24, np.nan)]).astype(np.float32), Status.NOT_FINITE),
    "empty": (np.zeros((0, 24), np.float32), Status.EMPTY),
    "single": (spoiled(1.0, 1), Status.SINGLE),
    "single nan": (np.full((1, 24), np.nan, np.float32), Status.NOT_FINITE),
    "single zero": (np.zeros((1, 24), np.float32), Status.ZERO_VECTOR),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("form", ["list of array", "packed array", "padded tensor"])
@pytest.mark.parametrize("alpha", [1.6, (0.5, 1.6)])
def test_a_bad_task_never_harms_its_neighbours(backend: str, form: str, alpha: Any) -> None:
    good = tasks_of(packed((5, 8, 7, 2, 5, 8, 33)), (5, 8, 7, 2, 5, 8, 33))
    config = fg.FaseConfig(alpha=alpha)
    expected = fg.score_embeddings(good, config=config, backend=backend)
    assert expected.status.tolist() == [Status.OK] * len(good)
    tasks, places, statuses = [], [], []
    for i, (bad, status) in enumerate([*BAD_TASKS.values(), *BAD_TASKS.values()]):
        tasks.append(bad)
        statuses.append(int(status))
        if i < len(good):
            places.append(len(tasks))
            tasks.append(good[i])
            statuses.append(int(Status.OK))
    n = [len(task) for task in tasks]
    x, sizes = FORMS[form](np.concatenate(tasks), n)
    found = fg.score_embeddings(x, **sizes, config=config, backend=backend)
    assert found.status.tolist() == statuses
    assert_same(found, expected, places)
    for t, (size, status) in enumerate(zip(n, statuses, strict=True)):
        if status != Status.OK:
            assert all(getattr(found, name)[t].isnan().all() for name in SCORES)
            single = status == Status.SINGLE
            assert (found.n_clusters[t] == single).all()
            assert (found.labels[t, ..., :size] == (0 if single else -1)).all()  # type: ignore[index]


@pytest.mark.gpu
def test_the_result_is_on_the_device_of_the_input() -> None:
    n = torch.tensor(RAGGED, device="cuda")
    x = torch.from_numpy(padded(packed(RAGGED), RAGGED)).to("cuda")
    result = fg.score_embeddings(x, n)
    assert {getattr(result, name).device.type for name in COLUMNS} == {"cuda"}
    assert result.to_dict()["status"] == fg.score_embeddings(x.cpu(), RAGGED).to_dict()["status"]
