"""From the tree and a radius to classes (SPEC 5): runs of the tree for min_samples = 2, DBSCAN for the rest, HDBSCAN.

Samples or positions are on the first axis, then alphas where there are several, then tasks: [N, A, T].
"""

from __future__ import annotations

import torch

from fase_gpu.config import FaseConfig
from fase_gpu.errors import MissingExtraError
from fase_gpu.mst import Mst, edge_keys, minimum_spanning_trees
from fase_gpu.partitions import first_appearance


def radius(config: FaseConfig, mode: torch.Tensor, mst_mean: torch.Tensor, pdm_mean: torch.Tensor) -> torch.Tensor:
    """The radius of the configured variant, float32 [A, T], from float64 statistics [T] (equation 2 and SPEC 7).

    float32 because that is what is compared with the weights and what is reported: labels follow from reported values.
    """
    scale = torch.tensor(config.scale_list, dtype=torch.float64, device=mode.device)[:, None]
    variant = config.variant
    if variant == "fixed_eps":
        eps = scale.expand(-1, mode.shape[0])
    else:
        unscaled = variant in ("pdm_mean", "mst_mean")
        base = pdm_mean if variant.endswith("pdm_mean") else mst_mean if variant.endswith("mst_mean") else mode
        eps = scale * (base if unscaled else base * (1 - mst_mean / pdm_mean))
        floor = scale * (1e-3 if unscaled and config.semantics == "released" else 5e-4)
        eps = torch.where(eps > 0, eps, floor)
    single = torch.finfo(torch.float32)
    return eps.clamp(single.tiny, single.max).to(torch.float32)


def tree_runs(weight: torch.Tensor, eps: torch.Tensor) -> torch.Tensor:
    """The component of each position of the tree's order, int64 [N, A, T], numbered along the order.

    weight   [N-1, T], Mst.weight
    eps      [A, T]; an edge of weight <= eps joins
    """
    cut = (weight[:, None] > eps).to(torch.int64).cumsum_(0)
    return torch.cat([torch.zeros_like(eps, dtype=torch.int64)[None], cut])


def labels_of_runs(runs: torch.Tensor, tree: Mst) -> torch.Tensor:
    """Labels by first appearance in sample order, [N, A, T], from runs along the tree's order."""
    by_sample = torch.empty_like(runs).scatter_(0, tree.order[:, None].expand_as(runs), runs)
    return first_appearance(by_sample)


def dbscan_labels(distance: torch.Tensor, n: torch.Tensor, eps: torch.Tensor, min_samples: int) -> torch.Tensor:
    """DBSCAN for any min_samples, as sklearn.cluster.DBSCAN(metric="precomputed") labels it, noise as singletons.

    distance   [T, N, N] float32 with a zero diagonal; n [T]; eps [A, T]
    returns    [N, A, T] int64, by first appearance in sample order

    Two core samples share a cluster at a radius if they are connected through cores, which the tree of the mutual
    reachability distances max(core(i), core(j), d_ij) tells for every radius at once. A border sample joins the first
    cluster, in the order of the clusters' first cores, that has a core within the radius.
    """
    size = distance.shape[1]
    sample = torch.arange(size, device=distance.device)
    present = sample[:, None] < n
    apart = torch.where(present.T[:, None, :], distance, torch.inf)
    apart.diagonal(dim1=1, dim2=2).zero_()
    core = torch.full_like(apart[..., 0], torch.inf)
    if min_samples <= size:
        core = apart.kthvalue(min_samples, 2).values
    reach = torch.maximum(apart, torch.maximum(core[:, :, None], core[:, None, :]))
    reach.clamp_max_(torch.finfo(torch.float32).max)  # an edge must have a key below NO_EDGE
    tree = minimum_spanning_trees(edge_keys(reach), n)
    is_core = (core.T[:, None] <= eps) & present[:, None]
    component = labels_of_runs(tree_runs(tree.weight, eps), tree)
    # A cluster is named by its first core; no name (size) sorts behind every name.
    name = torch.full_like(component, size)
    cores = torch.where(is_core, sample[:, None, None], size)
    name.scatter_reduce_(0, component, cores, "amin")
    name = torch.where(is_core, name.gather(0, component), size)
    joined = name.clone()
    for j in range(size):
        near = apart[:, :, j].T[:, None] <= eps
        torch.where(near & (name[j] < joined) & ~is_core & present[:, None], name[j], joined, out=joined)
    noise = joined == size
    return first_appearance(torch.where(noise, sample[:, None, None] + size, joined), 2 * size)


def hdbscan_labels(distance: torch.Tensor, n: torch.Tensor, min_cluster_size: int) -> torch.Tensor:
    """HDBSCAN with allow_single_cluster, by scikit-learn, one task at a time; noise as singletons.

    distance   [T, N, N] float32; n [T]
    returns    [N, 1, T] int64, by first appearance; every sample alone where n < min_cluster_size
    raises     MissingExtraError without scikit-learn
    """
    try:
        from sklearn.cluster import HDBSCAN
    except ImportError as error:
        raise MissingExtraError('variant "fixed_mcs"', "eval") from error
    size = distance.shape[1]
    sample = torch.arange(size, device="cpu")
    labels = sample.repeat(distance.shape[0], 1)
    model = HDBSCAN(min_cluster_size=min_cluster_size, metric="precomputed", allow_single_cluster=True, copy=True)
    for task, (matrix, samples) in enumerate(zip(distance.cpu().double().numpy(), n.tolist(), strict=True)):
        if samples >= min_cluster_size:
            found = torch.from_numpy(model.fit(matrix[:samples, :samples]).labels_)
            labels[task, :samples] = torch.where(found < 0, sample[:samples] + size, found)
    return first_appearance(labels.T[:, None].to(distance.device), 2 * size)
