"""Every method on labelled sets: the numbers of the scores, the choice of a value, and the tables."""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest

import fase_gpu as fg
from fase_gpu import reference
from fase_gpu.cli import main
from fase_gpu.errors import InputError
from fase_gpu.evaluation import methods as scoring
from fase_gpu.evaluation import tables
from fase_gpu.evaluation.comparison import Comparison, SetFacts, compare, facts
from fase_gpu.evaluation.labelled import LabelledSet, read_labelled, read_sets
from fase_gpu.evaluation.methods import Inputs, Method, all_methods, read_inputs
from fase_gpu.evaluation.outcomes import Outcome, fingerprint, write_outcomes
from fase_gpu.structural import structural_classes

EXAMPLES = Path(__file__).parent.parent / "examples" / "samples.jsonl"
ALPHAS = (0.5, 1.6, 2.5)
RADII = (0.05, 0.1, 0.3)


@pytest.fixture(scope="module")
def samples() -> list[list[str]]:
    """Twelve real tasks, of which one is cut to three samples, one has one and one none."""
    lines = [json.loads(line) for line in EXAMPLES.read_text().splitlines()]
    tasks: dict[str, list[str]] = {}
    for line in lines:
        tasks.setdefault(line["task_id"], []).extend(line.get("samples") or [line["prompt"] + line["completion"]])
    found = list(tasks.values())[:12]
    return [*found[:9], found[9][:3], found[10][:1], []]


@pytest.fixture(scope="module")
def inputs(samples: list[list[str]]) -> Inputs:
    return read_inputs(samples, "ast", workers=0)


@pytest.fixture(scope="module")
def found(inputs: Inputs) -> dict[str, Method]:
    return {method.name: method for method in all_methods(inputs, ALPHAS, RADII)}


def entropy(labels: list[int]) -> float:
    counts = Counter(labels)
    n = len(labels)
    return -sum(c / n * math.log2(c / n) for c in counts.values()) / math.log2(n)


def test_methods_are_all_there(found: dict[str, Method]) -> None:
    alone = {*scoring.ADAPTIVE, "released_max_peak", "released_min_peak", "fixed_eps", "fixed_mcs", *scoring.MEANS}
    assert set(found) == {*alone, *(name + "+structural" for name in alone), "textual", "structural", "intersection"}
    assert tuple(found) == scoring.METHODS
    assert {variant for variant in fg.config.VARIANTS if variant != "union"} <= set(found)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((variant, {"variant": variant, "alpha": ALPHAS}) for variant in scoring.ADAPTIVE),
        ("scaled_mst_mode+structural", {"variant": "union", "alpha": ALPHAS}),
        ("intersection", {"variant": "intersection", "alpha": ALPHAS}),
        ("fixed_eps", {"variant": "fixed_eps", "eps": RADII}),
        ("released_max_peak", {"semantics": "released", "alpha": ALPHAS}),
        ("released_min_peak", {"semantics": "released", "peak": "min_peak", "alpha": ALPHAS}),
        ("textual", {"variant": "textual", "alpha": (1.6,)}),
        ("structural", {"variant": "structural", "alpha": (1.6,)}),
    ],
)
def test_numbers_are_those_of_score_samples(
    samples: list[list[str]], found: dict[str, Method], name: str, settings: dict[str, Any]
) -> None:
    result = fg.score_samples(samples, "ast", fg.FaseConfig(**settings), workers=0)
    expected = result.entropy.double().numpy().T
    # The union is taken here in float64, where a result has float32.
    np.testing.assert_allclose(
        found[name].uncertainty, expected, rtol=0, atol=1e-7 if "union" in settings.values() else 0
    )
    assert found[name].scored.tolist() == (result.status == fg.Status.OK).tolist()


def test_means_are_those_of_score_samples(samples: list[list[str]], found: dict[str, Method]) -> None:
    result = fg.score_samples(samples, "ast", workers=0)
    for name, column in (("multiscale", "multiscale"), ("pdm_distance", "pdm_mean"), ("mst_distance", "mst_mean")):
        np.testing.assert_array_equal(found[name].uncertainty[0], getattr(result, column).double().numpy())


@pytest.mark.parametrize("name", [*scoring.ADAPTIVE, "fixed_eps", "released_min_peak"])
def test_joined_with_structure_is_a_graph(samples: list[list[str]], found: dict[str, Method], name: str) -> None:
    settings: dict[str, Any] = {"variant": name, "alpha": ALPHAS}
    if name == "fixed_eps":
        settings = {"variant": name, "eps": RADII}
    if name == "released_min_peak":
        settings = {"semantics": "released", "peak": "min_peak", "alpha": ALPHAS}
    result = fg.score_samples(samples, "ast", fg.FaseConfig(**settings), workers=0)
    assert result.labels is not None
    for task, texts in enumerate(samples[:10]):
        keys = structural_classes(texts, workers=0).keys
        for a in range(3):
            labels = result.labels[task, a, : len(texts)].tolist()
            graph = nx.Graph([(i, i) for i in range(len(texts))])
            for i in range(len(texts)):
                for j in range(i):
                    if labels[i] == labels[j] or (keys[i] and keys[i] == keys[j]):
                        graph.add_edge(i, j)
            number = {i: c for c, nodes in enumerate(nx.connected_components(graph)) for i in nodes}
            expected = entropy([number[i] for i in range(len(texts))])
            assert found[name + "+structural"].uncertainty[a, task] == pytest.approx(expected, abs=1e-12)


def test_means_joined_with_structure_have_no_distance_within_a_class(
    samples: list[list[str]], found: dict[str, Method]
) -> None:
    vectors = fg.encode.load_encoder("ast", device="cpu", workers=0)
    for task, texts in enumerate(samples[:10]):
        keys = structural_classes(texts, workers=0).keys
        x = vectors.encode(texts).vectors.double().numpy()
        distance, _ = reference.cosine_distances(x, 1e-6)
        for i in range(len(texts)):
            for j in range(len(texts)):
                if i != j and keys[i] and keys[i] == keys[j]:
                    distance[i, j] = 1e-6
        edges = reference.kruskal(distance)
        n = len(texts)
        expected = {
            "multiscale": reference.multiscale(edges, n, (1e-2, 1.0)),
            "pdm_distance": distance.sum() / n**2,
            "mst_distance": sum(w for w, _, _ in edges) / (n - 1),
        }
        for name, value in expected.items():
            assert found[name + "+structural"].uncertainty[0, task] == pytest.approx(value, abs=1e-5)


def test_fixed_mcs_is_that_of_score_samples(samples: list[list[str]], found: dict[str, Method]) -> None:
    for row, size in enumerate(scoring.CLUSTER_SIZES):
        config = fg.FaseConfig(variant="fixed_mcs", min_cluster_size=size)
        result = fg.score_samples(samples, "ast", config, workers=0)
        np.testing.assert_array_equal(found["fixed_mcs"].uncertainty[row], result.entropy.double().numpy())


# --- the choice of a value


def labelled(name: str, rates: list[int], n: int = 10) -> LabelledSet:
    passed = [[i < rate for i in range(n)] for rate in rates]
    ids = [f"{name}/{i}" for i in range(len(rates))]
    return LabelledSet(name, ids, [""] * len(rates), [["x"] * n] * len(rates), passed)


RATES = [0, 2, 5, 10, 10, 7]
GOOD = [1.0, 0.8, 0.5, 0.0, 0.0, 0.3]
POOR = [0.0, 0.5, 0.8, 1.0, 0.9, 0.1]


def two_methods(uncertainty: dict[str, list[list[float]]]) -> Any:
    def methods_of(one: LabelledSet) -> tuple[list[Method], SetFacts]:
        swept = Method("adaptive", "alpha", (0.5, 1.6), np.array(uncertainty[one.name]))
        single = Method("multiscale", "", (math.nan,), np.array([GOOD]))
        return [swept, single], facts(one, swept.scored, None, 3)

    return methods_of


def compared(uncertainty: dict[str, list[list[float]]]) -> Comparison:
    sets = [labelled(name, RATES) for name in uncertainty]
    return compare("ast", sets, two_methods(uncertainty), resamples=50)


def test_the_value_of_a_set_is_chosen_on_the_others() -> None:
    # At 0.5 the first set is predicted well and the others poorly; at 1.6 it is the other way round.
    found = compared({"a": [GOOD, POOR], "b": [POOR, GOOD], "c": [POOR, GOOD]})
    row = next(row for row in found.rows if row.method == "adaptive")
    assert [row.settings["given"][name].value for name in "abc"] == [1.6, 1.6, 1.6]
    assert [row.settings["best"][name].value for name in "abc"] == [0.5, 1.6, 1.6]
    assert row.settings["held out"]["a"].value == 1.6
    assert row.settings["held out"]["a"].rho.value < 0
    assert row.settings["best"]["a"].rho.value == pytest.approx(1)
    assert row.settings["best"]["a"].auc.value == 1
    assert row.rho["a"][0] == pytest.approx(1)
    assert row.mean("best")[0] == pytest.approx(1)
    assert [row.method for row in found.ranked()] == ["multiscale", "adaptive"]


def test_an_undefined_value_is_never_the_best() -> None:
    flat, reverse = [0.5] * 6, GOOD[::-1]
    found = compared({"a": [flat, POOR], "b": [flat, reverse]})
    # Predicting nothing is worth 0, which is better than predicting the wrong way round...
    assert found.rows[0].settings["held out"]["a"].value == 0.5
    # ...and of equally good values the nearest to the given one is taken.
    assert compared({"a": [GOOD, GOOD]}).rows[0].settings["best"]["a"].value == 1.6


def test_one_set_holds_nothing_out() -> None:
    found = compared({"a": [GOOD, POOR]})
    row = found.rows[0]
    assert set(row.settings) == {"given", "best"}
    assert set(found.rows[1].settings) == {"given"}


def test_tasks_without_a_score_are_left_out_and_counted() -> None:
    holes = [math.nan, *GOOD[1:]]
    found = compared({"a": [holes, holes]})
    assert found.sets[0].left_out == 1
    assert found.rows[0].settings["given"]["a"].rho.value == pytest.approx(1)
    assert found.sets[0].pass_at_1 == pytest.approx(np.mean(RATES) / 10)
    assert found.sets[0].pass_at_k[10] == pytest.approx(5 / 6)
    assert found.sets[0].unparsable == 3


def test_a_set_where_nothing_differs_is_undefined_and_no_part_of_the_mean() -> None:
    sets = [labelled("a", RATES), labelled("b", [10] * 6)]
    found = compare("ast", sets, two_methods({"a": [GOOD, POOR], "b": [GOOD, POOR]}), {"alpha": 0.5}, resamples=0)
    row = found.rows[0]
    assert row.settings["given"]["b"].rho.undefined == "every task has pass@1 1"
    assert row.mean("given") == (pytest.approx(1), 1)
    text = tables.markdown([found])
    assert "Undefined: rho on b (every task has pass@1 1; every method)." in text
    assert "| undefined / undefined |" in text


def test_only_some_methods(inputs: Inputs, found: dict[str, Method]) -> None:
    names = ["multiscale", "fixed_eps+structural", "textual"]
    some = all_methods(inputs, ALPHAS, RADII, only=names)
    assert [method.name for method in some] == ["fixed_eps+structural", "multiscale", "textual"]
    for method in some:
        np.testing.assert_array_equal(method.uncertainty, found[method.name].uncertainty)
    with pytest.raises(InputError, match="methods: unknown 'multi'; did you mean 'multiscale'"):
        all_methods(inputs, only=["multi"])


def test_released_semantics_are_those_of_score_samples(samples: list[list[str]], inputs: Inputs) -> None:
    found = all_methods(inputs, ALPHAS, RADII, "released", ["mst_mean", "fixed_eps", "multiscale"])
    for method, settings in zip(found, ({"alpha": ALPHAS}, {"eps": RADII}), strict=False):
        config = fg.FaseConfig(variant=method.name, semantics="released", **settings)  # type: ignore[arg-type]
        result = fg.score_samples(samples, "ast", config, normalize_code=True, workers=0)
        np.testing.assert_array_equal(method.uncertainty, result.entropy.double().numpy().T)


def test_what_compare_refuses() -> None:
    sets = [labelled("a", RATES)]
    with pytest.raises(InputError, match=r"alpha: 0\.7 is not among the values that are swept"):
        compare("ast", sets[:1], two_methods({"a": [GOOD, POOR]}), {"alpha": 0.7})


# --- tables


@pytest.fixture(scope="module")
def small() -> Comparison:
    return compared({"set_a&b": [GOOD, POOR], "c": [POOR, GOOD]})


def test_markdown_has_a_row_for_every_method_and_set(small: Comparison) -> None:
    text = tables.markdown([small])
    assert text.count("| multiscale |") == text.count("| adaptive |") == 2
    assert "| set_a&amp;b | 6 | 60 | 0 | - | 3 | 0.567 |" in text
    widths = {line.count("|") for line in text.split("\n\n")[3].splitlines()}
    assert len(widths) == 1


def test_csv_has_a_line_for_every_choice(small: Comparison) -> None:
    rows = list(csv.DictReader(io.StringIO(tables.comma_separated([small]))))
    assert len(rows) == 2 * 3 + 2  # three choices of one method, one of the other, on two sets
    held = [row for row in rows if row["choice"] == "held out" and row["set"] == "c"]
    setting = small.rows[0].settings["held out"]["c"]
    assert [float(row["rho"]) for row in held] == [setting.rho.value]
    assert float(held[0]["auc_low"]) == setting.auc.low
    assert {row["value"] for row in rows if row["method"] == "multiscale"} == {""}


def test_json_holds_everything(small: Comparison) -> None:
    record = json.loads(tables.json_text([small]))
    (one,) = record["comparisons"]
    assert one["encoder"] == "ast"
    row = one["rows"][0]
    assert row["rho"]["c"] == small.rows[0].rho["c"]
    assert row["settings"]["best"]["c"]["auc"][0] == 1
    assert one["rows"][1]["values"] == [None]


def test_latex_escapes(small: Comparison) -> None:
    text = tables.latex([small])
    assert r"set\_a\&b" in text
    assert r"Spearman's $\rho$ / AUC" in text
    strange = compared({"a|b<img onerror=x>\n\x1b[31m\\input{x}": [GOOD, POOR]})
    assert r"a|b<img onerror=x>\textbackslash n\textbackslash x1b[31m\textbackslash input\{x\}" in tables.latex(
        [strange]
    )
    assert r"| a\|b&lt;img onerror=x&gt;\n\x1b[31m\input{x} |" in tables.markdown([strange])
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == 2
    for line in text.splitlines():
        if line.endswith(r" \\") and "multiscale" in line:
            assert line.count(" & ") in (15, 2)


def test_an_unknown_suffix_names_the_known() -> None:
    with pytest.raises(InputError, match=r"ends in .md, .tex, .csv, .json"):
        tables.render([], "table.xls")


# --- reading and the command


def write(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_labels_of_every_form(tmp_path: Path) -> None:
    path = write(
        tmp_path / "mixed.jsonl",
        [
            {"task_id": "a", "samples": ["x = 1", "x = 2"], "passed": [True, False], "prompt": "p"},
            {"task_id": "b", "solution": "y = 1", "passed": 1},
            {"task_id": "a", "completion": "z", "prompt": "q = ", "passed": False},
        ],
    )
    found = read_labelled(path)
    assert found.name == "mixed"
    assert found.passed == [[True, False, False], [True]]
    assert found.samples == [["x = 1", "x = 2", "q = z"], ["y = 1"]]
    assert found.prompts == ["p", ""]
    assert found.pass_at_1.tolist() == [pytest.approx(1 / 3), 1]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([{"task_id": "a", "samples": ["x"], "passed": True}], "expected a list of booleans, got a boolean"),
        ([{"task_id": "a", "samples": ["x"], "passed": [2]}], "expected a list of booleans, got a list"),
        ([{"task_id": "a", "samples": ["x"], "passed": [1.0]}], "expected a list of booleans, got a list"),
        ([{"task_id": "a", "samples": ["x"], "passed": []}], "expected one for each of 1 samples, got 0"),
        ([{"task_id": "a", "solution": "x", "passed": "yes"}], "expected a boolean, got a string"),
        ([{"task_id": "a", "solution": "x"}], r"has no labels \(passed\)"),
        (
            [{"task_id": "a", "solution": "x", "passed": True}, {"task_id": "a", "solution": "x"}],
            r"jsonl:2: task 'a': passed: expected in every record or in none",
        ),
    ],
)
def test_wrong_labels_name_the_task(tmp_path: Path, records: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_labelled(write(tmp_path / "x.jsonl", records))


def test_results_go_with_files(tmp_path: Path) -> None:
    path = write(tmp_path / "x.jsonl", [{"task_id": "a", "solution": "x", "passed": True}])
    with pytest.raises(InputError, match="expected none or one for each of 1 sample files, got 2"):
        read_sets([path], [path, path])
    with pytest.raises(InputError, match="x: two sets have this name"):
        read_sets([path, path])


def test_results_take_the_place_of_labels(tmp_path: Path) -> None:
    record = {"task_id": "a", "samples": ["x", "y"], "passed": "not a label", "prompt": "p"}
    path = write(tmp_path / "x.jsonl", [record])
    outcomes = [
        Outcome("a", i, fingerprint(text), text == "y", None if text == "y" else "assertion", None, 0.1)
        for i, text in enumerate("xy")
    ]
    results = tmp_path / "results.jsonl"
    write_outcomes(results, outcomes)
    found = read_labelled(path, results)
    assert (found.passed, found.prompts) == ([[False, True]], ["p"])
    with pytest.raises(InputError, match="sample 0 is not the program that was run"):
        read_labelled(write(tmp_path / "y.jsonl", [{"task_id": "a", "samples": ["z"]}]), results)
    with pytest.raises(InputError, match=r"no result for sample 0 of task 'b'.*\(it has 'a'\)"):
        read_labelled(write(tmp_path / "z.jsonl", [{"task_id": "b", "samples": ["x"]}]), results)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], samples: list[list[str]]) -> None:
    rng = np.random.default_rng(0)
    paths = []
    for name in ("one", "two"):
        records = [
            {"task_id": f"t{i}", "samples": texts, "passed": (rng.random(len(texts)) < rng.random()).tolist()}
            for i, texts in enumerate(samples)
        ]
        paths.append(str(write(tmp_path / f"{name}.jsonl", records)))
    outputs = [tmp_path / f"table{suffix}" for suffix in (".md", ".tex", ".csv", ".json")]
    arguments = ["evaluate", *paths, "--alphas", "0.5,1", "--resamples", "20"]
    for output in outputs:
        arguments += ["-o", str(output)]
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 0
    printed = capsys.readouterr().out
    assert "encoder    ast" in printed
    assert "multiscale+structural" in printed
    assert "fewer than 20 tasks in one, two" in printed
    assert all(output.stat().st_size for output in outputs)
    record = json.loads(outputs[3].read_text())["comparisons"][0]
    assert [one["left_out"] for one in record["sets"]] == [2, 2]
    assert record["rows"][0]["values"] == [0.5, 1.0, 1.6]  # what is given is swept
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 2
    assert "exists already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "table.xls"], "ends in .md"),
        (["--quiet"], "would go nowhere"),
        (["--alphas", "a"], "alphas: expected a number"),
        (["--alphas", "0.5,-1"], "alpha[0]: expected a finite number above 0"),
        (["-e", "asd"], "asd"),
        (["--methods", "multiscal"], "did you mean 'multiscale'"),
        (["-o", "x.jsonl"], "ends in .md"),
    ],
)
def test_the_command_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    path = write(tmp_path / "x.jsonl", [{"task_id": "a", "samples": ["x"] * 3, "passed": [True] * 3}])
    with pytest.raises(SystemExit) as exit_:
        main(["evaluate", str(path), *arguments])
    assert exit_.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.shared
@pytest.mark.slow
def test_what_the_findings_say_of_real_sets(shared_data: Path) -> None:
    """docs/findings.md, held to on three of its sets: the means there are over nine."""
    sets = read_sets(
        [
            shared_data / "samples" / f"{name}.jsonl"
            for name in ("humaneval_gpt-3.5_t1.0", "humaneval_ministral-8b_t1.0", "humaneval_codegen-16b_t0.8")
        ]
    )

    def methods_of(one: LabelledSet) -> tuple[list[Method], SetFacts]:
        inputs = read_inputs(one.samples, "ast")
        found = all_methods(inputs, (1.6,), only=("multiscale", "scaled_mst_mode"))
        return found, facts(one, found[0].scored, inputs.truncated, inputs.unparsable)

    rows = {row.method: row.mean("given") for row in compare("ast", sets, methods_of, resamples=0).rows}
    rho, auc = rows["multiscale"]
    assert rho > 0.5
    assert auc > 0.85
    assert rows["scaled_mst_mode"][0] < rho
