"""The report: its numbers against what others compute, its file as written, and the page in a browser."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import sys
import xml.etree.ElementTree
from collections.abc import Callable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import pdist, squareform
from scipy.stats import spearmanr
from sklearn.metrics import roc_auc_score

from fase_gpu import FaseConfig, InputError, MissingExtraError, reference, score_samples
from fase_gpu.batching import EmbeddingSource, Rows
from fase_gpu.cli import main
from fase_gpu.evaluation.report import ReportTasks, Scored, check_report, read_tasks, score_tasks, write_report
from fase_gpu.evaluation.report.details import MOST_CHARACTERS, chosen_tasks, cut, details, table_columns
from fase_gpu.evaluation.report.figures import FIGURE_NAMES, draw
from fase_gpu.evaluation.report.geometry import Edge, geometries, leaf_order, merges, tree_layout
from fase_gpu.evaluation.report.page import escaped, page, script_json
from fase_gpu.evaluation.report.ratios import pair_ratios

ATTACK = '</script><script>window.hacked=1</script><img src=x onerror="window.hacked=1"><!--<script> \'&lt;'
PROGRAMS = [
    "def f(a):\n    return a + 1\n",
    "def f(a):\n    b = a\n    return b + 1\n",
    "def f(a):\n    return sum([a, 1])\n",
    "def f(a):\n    for i in range(1):\n        a += 1\n    return a\n",
    "def f(a):\n    if a:\n        return a - -1\n    return 1\n",
    "import math\ndef f(a):\n    return math.floor(a + 1)\n",
]


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def ordinary(count: int = 24, n: int = 6) -> list[dict[str, Any]]:
    """Tasks of n samples that agree more or less, and pass the more often the more they agree."""
    random = np.random.default_rng(1)
    records = []
    for task in range(count):
        kinds = 1 + task % len(PROGRAMS)
        picks = random.integers(0, kinds, n)
        passed = (random.random(n) < 1 - picks / 5).tolist()
        samples = [PROGRAMS[k] for k in picks]
        records.append({"task_id": f"t/{task}", "prompt": f"Task {task}", "samples": samples, "passed": passed})
    return records


def hostile() -> list[dict[str, Any]]:
    """Whatever a file may hold: every text is to be shown as text."""
    texts = [
        ATTACK,
        f"def f():\n    return '''{ATTACK}'''\n",
        "x = '\u202e\x00\x1b\u2028\u2029\x7f'\n",
        "y = 1\r\nz = 2",
    ]
    return [
        {
            "task_id": ATTACK,
            "prompt": ATTACK,
            "samples": [*texts, texts[0]],
            "passed": [True, False, True, False, True],
        },
        {"task_id": "\u202e\"'\x00\n&#task=x&set=y", "samples": texts, "passed": [False] * 4},
        {
            "task_id": "large",
            "samples": ["# " + "x" * 1_000_000, "y = '" + "é" * 1_000_000 + "'"],
            "passed": [True, True],
        },
        {"task_id": "one", "samples": ["x = 1"], "passed": [True]},
        {"task_id": "none", "samples": [], "passed": []},
        {"task_id": "", "samples": ["x = 1", "x = 2", "(", ""], "passed": [True, False, False, False]},
    ]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> ReportTasks:
    return read_tasks([write(tmp_path_factory.mktemp("sets") / "set.jsonl", [*ordinary(), *hostile()])])


@pytest.fixture(scope="module")
def scored(tasks: ReportTasks) -> Scored:
    return score_tasks(tasks, "ast")


def source_of(x: torch.Tensor) -> EmbeddingSource:
    """One task."""
    n = np.array([len(x)])
    return EmbeddingSource((Rows(x, np.zeros_like(n), n),), len(x))


# Numbers


def test_scores_are_those_of_score_samples(tasks: ReportTasks, scored: Scored) -> None:
    expected = score_samples(tasks.samples, encoder="ast")
    for name, column in expected.to_dict().items():
        np.testing.assert_equal(scored.result.to_dict()[name], column, name)
    assert scored.result.config == expected.config
    for name in ("distinct_texts", "unparsable_samples", "truncated_samples", "samples"):
        assert getattr(scored.result.info, name) == getattr(expected.info, name)
    columns = table_columns(tasks, scored)
    for name in ("entropy", "multiscale", "mst_mean", "pdm_mean"):
        shown = np.array([np.nan if x is None else x for x in columns[name]])
        np.testing.assert_allclose(shown, getattr(expected, name).numpy(), rtol=1e-5)
    assert columns["status"] == expected.to_dict()["status"]
    assert [k for k in columns["classes"] if k is not None] == expected.n_clusters[expected.status == 0].tolist()


def test_sweeps_are_those_of_score_samples(tasks: ReportTasks, scored: Scored) -> None:
    assert [curve.name for curve in scored.curves] == [
        *(
            "scaled_mst_mode",
            "scaled_mst_mode+structural",
            "scaled_mst_mean",
            "scaled_pdm_mean",
            "mst_mean",
            "pdm_mean",
        ),
        *("fixed_eps", "fixed_mcs"),
    ]
    for curve in scored.curves:
        if curve.name == "fixed_mcs":
            assert curve.values == (2, 3, 4, 5, 6, 7, 8, 9)
            continue
        if curve.name == "scaled_mst_mode+structural":
            expected = score_samples(tasks.samples, config=FaseConfig(variant="union", alpha=curve.values))
            np.testing.assert_allclose(curve.uncertainty.T, expected.entropy.numpy(), rtol=0, atol=1e-7)
            continue
        scales: dict[str, Any] = {curve.swept: curve.values}
        expected = score_samples(tasks.samples, encoder="ast", config=FaseConfig(variant=curve.name, **scales))
        np.testing.assert_array_equal(curve.uncertainty.T, expected.entropy.numpy())
        assert (curve.values[0], curve.values[-1]) == ((0.01, 1.0) if curve.name == "fixed_eps" else (0.1, 3.0))
    structural = score_samples(tasks.samples, encoder="ast", config=FaseConfig(variant="structural")).entropy
    np.testing.assert_array_equal(scored.levels[0].uncertainty[0], structural.numpy())


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("n", [2, 3, 10, 33, 100])
def test_trees_and_merges_are_those_of_others(n: int, seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.randn(n, 8)
    ((task, geometry),) = geometries(source_of(x), 1e-6, np.array([0]))
    assert task == 0
    np.testing.assert_allclose(geometry.distance, squareform(pdist(x.double().numpy(), "cosine")), atol=1e-6)
    assert [tuple(edge) for edge in geometry.edges] == reference.kruskal(geometry.distance.astype(np.float64))

    found = merges(geometry.edges)
    expected = linkage(squareform(geometry.distance, checks=False), "single")
    np.testing.assert_allclose([m.weight for m in found], expected[:, 2])
    assert [m.size for m in found] == expected[:, 3].tolist()
    assert sorted(leaf_order(found)) == sorted(leaves_list(expected).tolist()) == list(range(n))
    place = np.argsort(leaf_order(found))
    members = [{i} for i in range(n)]
    for a, b, _, size in found:
        members.append(members[a] | members[b])
        at = sorted(place[list(members[-1])].tolist())
        assert at == list(range(at[0], at[0] + size))


def test_what_is_drawn_is_what_is_scored(tasks: ReportTasks, scored: Scored) -> None:
    found = dict(details(tasks, scored, np.arange(len(tasks))))
    assert sorted(found) == list(range(len(tasks)))
    for task, detail in found.items():
        labels = scored.result.labels[task].tolist()
        assert sorted(i for members in detail["classes"] for i in members) == list(range(len(tasks.samples[task])))
        for members in detail["classes"]:
            assert len({labels[i] for i in members}) == 1
        assert [detail["texts"][k] for k in detail["text"]] == [cut(text)[0] for text in tasks.samples[task]]
        if not scored.ok[task]:
            assert "order" not in detail
            continue
        n = len(tasks.samples[task])
        weights = [edge[0] for edge in detail["edges"]]
        assert np.mean(weights) == pytest.approx(scored.result.mst_mean[task].item(), rel=1e-4)
        assert 2 * sum(detail["distance"]) / n**2 == pytest.approx(scored.result.pdm_mean[task].item(), rel=1e-3)
        joined = {(i, j) for _, i, j, within in detail["edges"] if within}
        assert all(labels[i] == labels[j] for i, j in joined)
        assert n - len(joined) == scored.result.n_clusters[task].item() == len(detail["classes"])
        merged = [(weight, i, j) for weight, i, j, _ in detail["edges"]]
        assert scored.result.config.multiscale_range is not None
        multiscale = reference.multiscale(merged, n, scored.result.config.multiscale_range)
        assert multiscale == pytest.approx(scored.result.multiscale[task].item(), abs=1e-4)


def test_the_representative_is_the_sample_nearest_to_its_class(tasks: ReportTasks, scored: Scored) -> None:
    same, other = "def f(a):\n    return a\n", "def f(a):\n    print(a)\n    return a\n"
    tasks = ReportTasks(["s"], np.array([0]), ["t"], [""], [[other, same, same, same]], [None])
    scored = score_tasks(tasks, "ast", FaseConfig(variant="fixed_eps", eps=1.0))
    ((_, detail),) = details(tasks, scored, np.array([0]))
    assert detail["classes"] == [[1, 0, 2, 3]]
    assert detail["passed"] is None


def test_pair_ratios_against_loops() -> None:
    x = torch.randn(9, 5, generator=torch.Generator().manual_seed(3))
    ((_, geometry),) = geometries(source_of(x), 1e-6, np.array([0]))
    passed = [True, True, False, True, False, False, True, False, True]
    kinds: list[list[float]] = [[], [], []]
    for i, j in combinations(range(9), 2):
        kinds[0 if passed[i] and passed[j] else 2 if passed[i] or passed[j] else 1].append(
            float(geometry.distance[i, j])
        )
    distances, edges = pair_ratios(geometry, passed)
    np.testing.assert_allclose(
        distances, [np.mean(kind) / np.mean([*kinds[0], *kinds[1], *kinds[2]]) for kind in kinds]
    )
    assert distances @ [len(kind) for kind in kinds] == pytest.approx(36)  # weighted by the pairs, the mean ratio is 1
    mixed = [edge.weight for edge in geometry.edges if passed[edge.low] != passed[edge.high]]
    assert edges[2] == pytest.approx(np.mean(mixed) / np.mean([edge.weight for edge in geometry.edges]))
    assert np.isnan(pair_ratios(geometry, [True] * 8 + [False])[0][1])  # one failing sample has no pair


def random_tree(n: int, seed: int) -> list[Edge]:
    random = np.random.default_rng(seed)
    kind = (lambda i: 0, lambda i: i - 1, lambda i: int(random.integers(0, i)))[seed % 3]  # a star, a path, any
    return sorted(Edge(float(10 ** random.uniform(-6, 0)), kind(i), i) for i in range(1, n))


@pytest.mark.parametrize("seed", range(9))
@pytest.mark.parametrize("n", [2, 3, 10, 40, 100])
def test_layout_has_no_crossing_edges_and_no_overlapping_neighbours(n: int, seed: int) -> None:
    edges = random_tree(n, seed)
    at = np.array(tree_layout(edges))
    assert at.shape == (n, 2)
    assert np.isfinite(at).all()
    assert pdist(at).min() > 1  # diameters of a node

    def side(a: int, b: int, c: int) -> float:
        return float(np.cross(np.append(at[b] - at[a], 0), np.append(at[c] - at[a], 0))[2])

    for (_, a, b), (_, c, d) in combinations(edges, 2):
        if len({a, b, c, d}) == 4:
            assert not (side(a, b, c) * side(a, b, d) < 0 and side(c, d, a) * side(c, d, b) < 0)


def test_the_summary_has_the_numbers_of_scipy_and_scikit_learn(tasks: ReportTasks, scored: Scored) -> None:
    text = page(tasks, scored, [], [], 0)
    pass_at_1 = tasks.pass_at_1
    for name in ("entropy", "multiscale"):
        score = 1 - getattr(scored.result, name).numpy()[scored.ok]
        assert f"<td>{spearmanr(score, pass_at_1[scored.ok]).statistic:.3f}<" in text
        assert f"<td>{roc_auc_score(pass_at_1[scored.ok] == 1, score):.3f}<" in text
    assert f"<td>{np.nanmean(pass_at_1):.3f}</td>" in text
    assert "2 SINGLE" not in text
    assert "1 SINGLE, 1 EMPTY" in text


# Which tasks and texts are in the page


def test_details_go_to_the_least_and_the_most_certain_by_turns(tasks: ReportTasks, scored: Scored) -> None:
    order = chosen_tasks(scored, 10_000).tolist()
    assert sorted(order) == list(range(len(tasks)))
    multiscale = scored.result.multiscale.tolist()
    ranked = sorted((m for m in multiscale if m == m), reverse=True)
    assert [multiscale[t] for t in order[:4]] == [ranked[0], ranked[-1], ranked[1], ranked[-2]]
    assert np.isnan([multiscale[t] for t in order[-2:]]).all()
    assert chosen_tasks(scored, 3).tolist() == order[:3]
    assert chosen_tasks(scored, 0).tolist() == []


def embedded(text: str) -> dict[int, Any]:
    found = re.findall(r'<script type="application/json" id="detail-(\d+)">(.*?)</script>', text, re.DOTALL)
    return {int(task): json.loads(detail) for task, detail in found}


def test_what_is_left_out_is_said(tasks: ReportTasks, scored: Scored, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page(tasks, scored, [], [], 10_000)
    assert len(embedded(text)) == len(tasks)
    assert "--details" not in text.partition("<main>")[2].partition('<script type="application/json"')[0]
    text = page(tasks, scored, [], [], 5)
    assert set(embedded(text)) == set(chosen_tasks(scored, 5).tolist())
    assert f"for 5 of {len(tasks)} tasks, the least and the most certain ones (<code>--details</code>)" in text
    monkeypatch.setitem(page.__globals__, "MOST_BYTES", 8_000)
    text = page(tasks, scored, [], [], 20)
    assert sum(len(json.dumps(detail)) for detail in embedded(text).values()) < 10_000
    assert re.search(r"; \d+ did not fit into 0 MB", text)


def test_long_texts_are_cut_and_counted() -> None:
    assert cut("a\nb") == ("a\nb", 0)
    assert cut("é" * 1_000_000) == ("é" * MOST_CHARACTERS, 1_000_000 - MOST_CHARACTERS)
    assert cut("\n" * 1000) == ("\n" * 400, 600)


def test_large_tasks_have_a_sample_for_each_class(tmp_path: Path) -> None:
    kinds = ("class C:\n    pass\n", "for i in x:\n    print(i)\n", "def f(a):\n    return {a: a}\n")
    samples = [kinds[i % 3] + f"# {i}\n" for i in range(600)]
    tasks = read_tasks([write(tmp_path / "s.jsonl", [{"task_id": "t", "samples": samples}])])
    scored = score_tasks(tasks, "ast", FaseConfig(variant="fixed_eps", eps=1e-4))
    ((_, detail),) = details(tasks, scored, np.array([0]))
    assert sorted(detail["classes"]) == [list(range(k, 600, 3)) for k in range(3)]
    assert [i for i, k in enumerate(detail["text"]) if k >= 0] == [0, 1, 2]
    assert len(detail["texts"]) == 3
    assert "distance" not in detail


# Texts in the page


def test_json_in_a_script_element_starts_no_tag_and_reads_back() -> None:
    value = {ATTACK: [ATTACK, "\u2028\u2029\x00\U0001f600 é", None, 1.5]}
    text = script_json(value)
    assert json.loads(text) == value
    assert text.isascii()
    assert not set(text) & set("<>&")
    with pytest.raises(ValueError, match="JSON"):
        script_json(float("nan"))


def test_text_in_html_is_escaped_and_shows_what_does_not_print() -> None:
    assert escaped("<b>&'\"") == "&lt;b&gt;&amp;&#x27;&quot;"
    assert escaped("a\x00\u202e\x1b") == "a\\x00\\u202e\\x1b"


def test_the_page_is_self_contained(tmp_path: Path, tasks: ReportTasks, scored: Scored) -> None:
    drawings, missing = draw(tasks, scored, png=False)
    assert ([d.name for d in drawings], missing) == (list(FIGURE_NAMES), [])
    text = page(tasks, scored, drawings, missing, 500)
    assert set(re.findall(r"https?://[\w./]*", text)) == {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert not re.search(
        r"<(link|img|iframe|object|embed|base)\b|\bsrc=[\"']|url\((?!#)|@import",
        re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL),
    )
    script = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    digest = base64.b64encode(hashlib.sha256(script[0].encode()).digest()).decode()
    assert len(script) == 1
    assert policy.startswith("default-src 'none';")
    assert f"script-src 'sha256-{digest}'" in policy
    ids = re.findall(r'\bid="([^"]*)"', re.sub(r"<svg.*?</svg>|<script>.*?</script>", "", text, flags=re.DOTALL))
    assert len(ids) == len(set(ids))
    assert "{{" not in text.replace("`", "")
    assert "#c8500a" not in text.partition("<main>")[2]  # colours of figures follow the colour scheme


# Figures


def test_figures_are_svg_and_png_and_equal_tasks_give_equal_ones(tasks: ReportTasks, scored: Scored) -> None:
    first, _ = draw(tasks, scored, png=True)
    second, _ = draw(tasks, scored, png=True)
    assert first == second
    for drawing in first:
        xml.etree.ElementTree.fromstring(drawing.svg)
        assert drawing.png.startswith(b"\x89PNG")
        assert drawing.caption.endswith(".")
        assert "nan" not in drawing.svg.lower()


def few(passed: list[list[bool] | None]) -> tuple[ReportTasks, Scored]:
    count = len(passed)
    samples = [PROGRAMS[: 2 + i % 3] for i in range(count)]
    labels = [
        None if p is None else [p[k % len(p)] for k in range(len(s))] for p, s in zip(passed, samples, strict=True)
    ]
    tasks = ReportTasks(["s"], np.zeros(count, np.int64), [str(i) for i in range(count)], [""] * count, samples, labels)
    return tasks, score_tasks(tasks, "ast")


def test_without_labels_there_are_no_figures_and_a_word_on_it() -> None:
    tasks, scored = few([None] * 3)
    assert scored.curves == scored.levels == []
    drawings, missing = draw(tasks, scored, png=False)
    assert (drawings, len(missing)) == ([], 1)
    assert "no labels" in missing[0]
    text = page(tasks, scored, drawings, missing, 500)
    assert ">no labels<" in text
    assert missing[0] in text


def test_figures_that_labels_do_not_allow_are_named() -> None:
    tasks, scored = few([[True]] * 4)
    drawings, missing = draw(tasks, scored, png=False)
    assert [d.name for d in drawings] == ["pass_at_1", "tree_over_mean", "risk_coverage"]
    assert [line.partition(":")[0] for line in missing] == [
        *("Distances by outcome", "Rank correlation over alpha", "Reliability")
    ]
    text = page(tasks, scored, drawings, missing, 500)
    assert "undefined<span class=why>every task has pass@1 1</span>" in text
    assert "undefined<span class=why>every task is entirely correct</span>" in text
    tasks, scored = few([[True], [True, False], [False], None])
    drawings, missing = draw(tasks, scored, png=False)
    assert len(missing) == 1
    assert "Reliability" in missing[0]
    assert "fewer than 20 tasks" in missing[0]


# Files


def test_labels_are_optional_and_sets_of_one_name_told_apart(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    one = write(tmp_path / "set.jsonl", [{"task_id": "a", "samples": ["x"], "passed": [True], "prompt": "p"}])
    two = write(
        tmp_path / "b" / "set.jsonl", [{"task_id": "a", "samples": ["x", "y"]}, {"task_id": "b", "samples": []}]
    )
    tasks = read_tasks([one, two])
    assert tasks.sets == ["set", "set (2)"]
    assert (tasks.set_of.tolist(), tasks.task_ids, tasks.prompts) == ([0, 1, 1], ["a", "a", "b"], ["p", "", ""])
    assert tasks.passed == [[True], None, None]
    np.testing.assert_array_equal(tasks.pass_at_1, [1, np.nan, np.nan])
    with pytest.raises(InputError, match="expected none or one for each of 2 sample files, got 1"):
        read_tasks([one, two], [one])


def test_only_a_radius_can_be_drawn(tasks: ReportTasks) -> None:
    for config in (FaseConfig(variant="union"), FaseConfig(alpha=[1.0, 2.0]), FaseConfig(min_samples=3)):
        with pytest.raises(InputError, match="a report needs one alpha"):
            score_tasks(tasks, "ast", config)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        main([str(argument) for argument in arguments])
    assert isinstance(caught.value.code, int)
    return caught.value.code, *capsys.readouterr()


def test_the_command_writes_the_page_and_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    samples, out, folder = write(tmp_path / "s.jsonl", ordinary()), tmp_path / "r.html", tmp_path / "a" / "figures"
    status, printed, err = run(capsys, "report", samples, "-e", "ast", "-o", out, "--figures", folder)
    assert (status, err) == (0, "")
    assert re.search(r"size +\d+\.\d\d MB", printed)
    assert {file.name for file in folder.iterdir()} == {f"{n}.{kind}" for n in FIGURE_NAMES for kind in ("svg", "png")}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a", "r.html", "s.jsonl"]
    first = out.read_bytes()
    assert run(capsys, "report", samples, "-e", "ast", "-o", out)[0] == 2
    status, printed, err = run(capsys, "report", samples, "-e", "ast", "-o", tmp_path / "q.html", "--figures", folder)
    assert (status, "pass_at_1.svg: exists already (--overwrite replaces it)" in err) == (2, True)
    assert run(capsys, "report", samples, "-e", "ast", "-o", out, "-q", "--overwrite") == (0, "", "")
    assert out.read_bytes() == first


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "r.txt"], "r.txt: expected a name that ends in .html"),
        (["-o", "no/r.html"], "the folder no does not exist"),
        (["-o", "r.html", "--figures", "s.jsonl"], "s.jsonl: is a file, expected a folder for the figures"),
        (["-o", "r.html", "--variant", "union"], "a report needs one alpha"),
        (["-o", "r.html", "--alpha", "1,2"], "a report needs one alpha"),
        (
            ["-o", "r.html", "--results", "s.jsonl", "--results", "s.jsonl"],
            "results: expected none or one for each of 1",
        ),
        (["-o", "r.html", "--details", "-1"], "--details"),
    ],
)
def test_an_error_is_one_line_and_nothing_is_written(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "s.jsonl", ordinary(3))
    status, out, err = run(capsys, "report", "s.jsonl", "-e", "ast", *arguments)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert [p.name for p in tmp_path.iterdir()] == ["s.jsonl"]


def test_a_page_that_fails_half_way_leaves_nothing(
    tmp_path: Path, tasks: ReportTasks, scored: Scored, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_report(tmp_path / "r.html", tasks, scored)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="details: expected"):
        write_report(tmp_path / "r.html", tasks, scored, details=-1)


def test_without_matplotlib_the_extra_is_named(
    tmp_path: Path, tasks: ReportTasks, scored: Scored, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"fase-gpu\[eval\]"):
        write_report(tmp_path / "r.html", tasks, scored)
    check_report(tmp_path / "r.html")


# In a browser

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed (the extra browser)")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    options = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-background-networking"]
    with api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=options)
        yield started
        started.close()


@pytest.fixture(scope="module")
def html(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sets, the second of a hostile name, with 20 of their tasks in detail."""
    folder = tmp_path_factory.mktemp("report")
    one = write(folder / "ordinary.jsonl", ordinary(120))
    two = write(folder / "<img src=x onerror=alert(1)>&.jsonl", [*hostile(), {**ordinary(1)[0], "task_id": "t/7"}])
    tasks = read_tasks([one, two])
    write_report(folder / "report.html", tasks, score_tasks(tasks, "ast"), details=130)
    return folder / "report.html"


@pytest.fixture
def opened(browser: Any, html: Path) -> Iterator[Open]:
    """Opens the page, and sees to it that it had no error and asked for nothing but itself."""
    wrong: list[str] = []
    pages = []

    def call(fragment: str = "", width: int = 1280, **options: Any) -> Any:
        shown = browser.new_page(viewport={"width": width, "height": 800}, **options)
        pages.append(shown)
        address = html.as_uri()
        shown.on("console", lambda m: wrong.append(f"console: {m.text}"))
        shown.on("pageerror", lambda e: wrong.append(f"error: {e}"))
        shown.on("dialog", lambda d: wrong.append(f"dialog: {d.message}"))
        shown.on("request", lambda r: wrong.append(r.url) if r.url.partition("#")[0] != address else None)
        shown.goto(address + fragment)
        return shown

    yield call
    for shown in pages:
        assert shown.evaluate("window.hacked") is None
        shown.close()
    assert wrong == []


def column(shown: Any, place: int) -> list[str]:
    found: list[str] = shown.locator(f"#rows td:nth-child({place})").all_text_contents()
    return found


def test_the_table_sorts_by_number_with_missing_ones_last(opened: Open) -> None:
    shown = opened()
    assert len(column(shown, 1)) == 100
    shown.get_by_role("button", name="Show 27 more of 127 rows").click()
    assert len(column(shown, 1)) == 127
    heads = shown.locator("#heads th button").all_text_contents()
    assert heads == ["task", "set", "n", "pass@1", "entropy", "multiscale", "classes", "mst_mean", "pdm_mean", "status"]
    for place, name in enumerate(heads, start=1):
        if name in ("task", "set", "status"):
            continue
        head = shown.locator(f"#heads th:nth-child({place})")
        for _ in range(2):
            head.get_by_role("button").press("Enter")  # by keyboard
            falling = head.get_attribute("aria-sort") == "descending"
            cells = column(shown, place)
            numbers = [float(c) for c in cells if c != "–"]
            assert numbers == sorted(numbers, reverse=falling)
            assert cells[len(numbers) :] == ["–"] * (127 - len(numbers))
    assert "–" in column(shown, heads.index("multiscale") + 1)
    assert shown.locator("#heads th:not([aria-sort=none])").count() == 1
    shown.locator("#heads th:nth-child(1) button").click()
    ids = [name for name in column(shown, 1) if name.startswith("t/")]
    assert ids == sorted(ids, key=lambda name: int(name[2:]))  # t/2 before t/10


def test_the_table_is_filtered(opened: Open) -> None:
    shown = opened()
    shown.fill("#find", "T/11")
    assert set(column(shown, 1)) == {"t/11", *(f"t/11{i}" for i in range(10))}
    assert shown.text_content("#shown") == "11 of 127 tasks"
    shown.fill("#find", "")
    shown.select_option("#status", "SINGLE")
    assert column(shown, 1) == ["one"]
    shown.select_option("#status", "")
    shown.select_option("#outcome", "mixed")
    assert all(0 < float(p) < 1 for p in column(shown, 4))
    shown.select_option("#outcome", "1")
    assert set(column(shown, 4)) == {"1.000"}
    shown.fill("#find", "no such task")
    assert column(shown, 1) == []


def test_a_task_opens_with_all_its_parts(opened: Open, html: Path) -> None:
    shown = opened()
    shown.fill("#find", "t/5")
    shown.select_option("#status", "OK")
    shown.locator("#rows a").first.focus()
    shown.keyboard.press("Enter")
    shown.wait_for_selector("#samples")
    name = shown.text_content("#task-title")
    task = int(name.removeprefix("t/"))
    detail = embedded(html.read_text())[task]
    assert "#task=t%2F" in shown.url
    assert "&set=ordinary" in shown.url
    assert shown.text_content("#task details pre").strip() == f"Task {task}"
    assert shown.locator("#heatmap svg rect").count() >= 36
    assert shown.locator("#tree .node").count() == 6
    assert shown.locator("#tree .within").count() == sum(edge[3] for edge in detail["edges"])
    assert shown.locator("#tree .beyond").count() == sum(not edge[3] for edge in detail["edges"])
    assert shown.locator("#tree .node rect").count() == detail["passed"].count(0)
    assert shown.locator("#merges .merge").count() == 5
    assert shown.locator("#merges .radius").count() == 1
    assert shown.locator(".class").count() == len(detail["classes"])
    assert shown.locator("#tasks tr.open").count() == 1
    heat = shown.locator("#heatmap svg")
    heat.focus()
    shown.keyboard.press("ArrowRight")
    i, j = detail["order"][:2]
    low, high = sorted((i, j))
    value = detail["distance"][low * 6 - low * (low + 1) // 2 + high - low - 1]
    readout = shown.text_content("#heatmap .readout")
    assert readout.startswith(f"sample {i}, class ")
    assert float(readout.rpartition(": ")[2]) == pytest.approx(value, abs=6e-5)
    shown.get_by_role("button", name="Close").click()
    assert not shown.locator("#task").is_visible()


def test_differences_between_classes_are_marked(opened: Open, html: Path) -> None:
    task, detail = max(embedded(html.read_text()).items(), key=lambda item: len(item[1]["classes"]) * (item[0] < 120))
    shown = opened(f"#task=t/{task}&set=ordinary")
    first, second = (detail["texts"][detail["text"][members[0]]] for members in detail["classes"][:2])

    def lines(kinds: str) -> list[str]:
        return [
            line[2:] for line in shown.locator(".class").nth(1).locator("pre").first.locator(kinds).all_text_contents()
        ]

    assert lines("span, ins") == second.split("\n")
    assert lines("span, del") == first.split("\n")
    assert lines("ins")
    assert shown.locator(".class").first.locator("pre").first.locator("ins, del").count() == 0
    shown.select_option("#against", "")
    assert lines("span") == second.split("\n")


def test_a_link_shows_its_task_or_says_why_not(opened: Open) -> None:
    shown = opened("#task=t%2F7&set=%3Cimg+src%3Dx+onerror%3Dalert%281%29%3E%26")
    assert shown.text_content("#task-title") == "t/7"
    assert "<img src=x onerror=alert(1)>&" in shown.text_content("#task .facts")
    assert shown.locator("#task img").count() == 0
    shown.evaluate("location.hash = '#task=unheard+of'")
    shown.wait_for_function("document.getElementById('task').textContent.includes('no such task')")
    shown.evaluate("location.hash = '#task=none'")
    shown.wait_for_function("document.getElementById('task').textContent.includes('No score: EMPTY')")


def test_tasks_left_out_say_so(opened: Open, html: Path) -> None:
    shown = opened()
    inside = embedded(html.read_text())
    assert len(inside) == 127
    shown.evaluate("hasDetails.delete(3)")
    shown.evaluate("location.hash = '#task=t/3&set=ordinary'")
    shown.wait_for_function("document.getElementById('task').textContent.includes('left out of this file')")


@pytest.mark.parametrize("task", [0, 1, 2, 5])
def test_hostile_texts_stay_texts(opened: Open, task: int) -> None:
    record = hostile()[task]
    shown = opened()
    fragment = shown.evaluate("id => '#' + new URLSearchParams({task: id})", record["task_id"])
    shown.evaluate("fragment => { location.hash = fragment }", fragment)
    shown.wait_for_selector("#samples")
    assert shown.locator("main img, main script").count() == 0
    shown.evaluate("for (const one of document.querySelectorAll('details')) one.open = true")
    shown.wait_for_timeout(50)
    if task == 0:
        assert shown.text_content("#task-title") == ATTACK
        assert shown.text_content("#task details pre").strip() == ATTACK
        assert any(ATTACK in text for text in shown.locator("#samples pre").all_text_contents())
        text = " ".join(shown.locator("#samples pre").all_text_contents())
        assert "\\u202e\u2400\u241b\\u2028\\u2029\\u007f" in text
        assert not set(text) & set("\u202e\x00\x1b\u2028\u2029")
    if task == 1:
        assert shown.text_content("#task-title") == "\\u202e\"'\u2400\\n&#task=x&set=y"
    if task == 2:
        assert "Cut here: " in shown.text_content("#samples")
    if task == 5:
        assert shown.text_content("#task-title") == "(no name)"


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_its_window_in_both_colour_schemes(opened: Open, width: int, scheme: str) -> None:
    shown = opened("#task=t/5&set=ordinary", width, color_scheme=scheme)
    shown.wait_for_selector("#samples")
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.locator("#figures figure > svg").count() == len(FIGURE_NAMES)
    paper = shown.evaluate("getComputedStyle(document.body).backgroundColor")
    ink = shown.evaluate("getComputedStyle(document.querySelector('#figures svg text')).fill")
    dark = sum(map(int, re.findall(r"\d+", paper))) < sum(map(int, re.findall(r"\d+", ink)))
    assert dark == (scheme == "dark")
    shown.emulate_media(media="print")
    assert not shown.locator(".filters").is_visible()
    assert shown.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
