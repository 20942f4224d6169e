"""Laws of union and intersection of partitions, against networkx and plain Python."""

from __future__ import annotations

import networkx
import torch
from hypothesis import given
from hypothesis import strategies as st

from fase_gpu import reference
from fase_gpu.partitions import first_appearance, intersection, misaligned_union, union

Labels = list[int]
pairs = st.integers(1, 12).flatmap(lambda n: st.tuples(*[st.lists(st.integers(0, n - 1), min_size=n, max_size=n)] * 2))


def column(labels: Labels) -> torch.Tensor:
    return torch.tensor(labels)[:, None]


def of(partition: torch.Tensor) -> Labels:
    labels: Labels = partition[:, 0].tolist()
    return labels


def joined(a: Labels, b: Labels) -> Labels:
    graph = networkx.Graph()
    graph.add_nodes_from(range(len(a)))
    graph.add_edges_from((i, j) for i in range(len(a)) for j in range(i) if a[i] == a[j] or b[i] == b[j])
    number = {i: k for k, part in enumerate(networkx.connected_components(graph)) for i in part}
    return reference.relabel([number[i] for i in range(len(a))])


@given(pairs)
def test_union_is_the_components_of_the_joint_graph(labels: tuple[Labels, Labels]) -> None:
    a, b = labels
    assert of(union(column(a), column(b))) == joined(a, b) == reference.union(a, b)


@given(pairs)
def test_intersection_is_the_pairs(labels: tuple[Labels, Labels]) -> None:
    a, b = labels
    assert of(intersection(column(a), column(b))) == reference.relabel(list(zip(a, b, strict=True)))


@given(pairs)
def test_laws(labels: tuple[Labels, Labels]) -> None:
    a, b = map(column, labels)
    whole, each = torch.zeros_like(a), torch.arange(len(a))[:, None]
    same = first_appearance(a)
    for combine, neutral, absorbing in ((union, each, whole), (intersection, whole, each)):
        assert torch.equal(combine(a, b), combine(b, a))
        assert torch.equal(combine(a, a), same)
        assert torch.equal(combine(a, neutral), same)
        assert torch.equal(combine(a, absorbing), absorbing)
    assert torch.equal(union(a, intersection(a, b)), same)
    assert torch.equal(intersection(a, union(a, b)), same)


@given(st.lists(pairs, min_size=1, max_size=5))
def test_columns_do_not_mix(tasks: list[tuple[Labels, Labels]]) -> None:
    size = max(len(a) for a, _ in tasks)

    def padded(which: int) -> torch.Tensor:
        rows = [list(task[which]) + list(range(len(task[which]), size)) for task in tasks]
        return torch.tensor(rows).T

    for combine in (union, intersection):
        together = combine(padded(0), padded(1))
        for i, (a, b) in enumerate(tasks):
            assert together[: len(a), i].tolist() == of(combine(column(a), column(b)))


@given(pairs)
def test_misaligned_union_is_the_released_codes_list_shuffle(labels: tuple[Labels, Labels]) -> None:
    a, b = (reference.relabel(part) for part in labels)
    clustered = [x for x in a if a.count(x) > 1]
    noise = [x for x in a if a.count(x) == 1]
    by_cluster = [x for label in range(max(b) + 1) for x in b if x == label]
    found = misaligned_union(torch.tensor(a)[:, None, None], torch.tensor(b)[:, None, None], torch.tensor([len(a)]))
    assert found[:, 0, 0].tolist() == joined(clustered + noise, by_cluster)
