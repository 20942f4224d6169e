"""Calibration: the choice of alpha, the map to expected pass@1, the file, and the two commands that share it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from sklearn.isotonic import IsotonicRegression

import fase_gpu as fg
from fase_gpu.errors import InputError
from fase_gpu.evaluation import metrics
from fase_gpu.evaluation.calibration import Calibration, MonotoneMap, calibrate, read_calibration, write_calibration
from fase_gpu.evaluation.labelled import LabelledSet
from fase_gpu.evaluation.methods import Inputs, read_inputs

ALPHAS = (0.5, 1.6, 3.0)
Run = Callable[..., tuple[int, str, str]]


def programs(rng: np.random.Generator, agree: float, n: int) -> list[str]:
    """Samples of which a share is the same program."""
    same = "def f(a, b):\n    return a + b\n"
    others = [f"def f(a, b):\n    return [a * {k}, b.x{k}(a)] if a < {k} else {k}\n" for k in rng.integers(0, 99, n)]
    return [same if i < agree * n else other for i, other in enumerate(others)]


def labelled(name: str, tasks: int, seed: int) -> LabelledSet:
    rng = np.random.default_rng(seed)
    agree = rng.random(tasks)
    samples = [programs(rng, share, 8) for share in agree]
    passed = [(rng.random(8) < share).tolist() for share in agree]
    return LabelledSet(name, [f"t{i}" for i in range(tasks)], [""] * tasks, samples, passed)


@pytest.fixture(scope="module")
def sets() -> list[LabelledSet]:
    return [labelled("one", 40, 0), labelled("two", 30, 1)]


@pytest.fixture(scope="module")
def inputs(sets: list[LabelledSet]) -> list[Inputs]:
    return [read_inputs(one.samples, "ast", workers=0) for one in sets]


def write(path: Path, one: LabelledSet, labels: bool = True) -> Path:
    rows = zip(one.task_ids, one.samples, one.passed, strict=True)
    path.write_text(
        "".join(json.dumps({"task_id": t, "samples": s} | ({"passed": p} if labels else {})) + "\n" for t, s, p in rows)
    )
    return path


def test_the_map_is_isotonic_regression(sets: list[LabelledSet], inputs: list[Inputs]) -> None:
    found = calibrate(sets, inputs, "ast", alphas=ALPHAS, resamples=0)
    score = np.concatenate(
        [fg.score_samples(one.samples, "ast", workers=0).multiscale.double().numpy() for one in sets]
    )
    rate = np.concatenate([one.pass_at_1 for one in sets])
    expected = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(-score, rate)
    asked = np.linspace(-0.1, 1.1, 200)
    np.testing.assert_allclose(found.maps["multiscale"](asked), expected.predict(-asked), rtol=0, atol=1e-12)
    assert np.isnan(found.maps["multiscale"]([np.nan, 0.5])).tolist() == [True, False]
    assert found.maps["multiscale"](asked).mean() == pytest.approx(expected.predict(-asked).mean())
    assert found.sets == {"one": 40, "two": 30}


def test_alpha_is_the_best_on_all_and_judged_on_others(sets: list[LabelledSet], inputs: list[Inputs]) -> None:
    found = calibrate(sets, inputs, "ast", alphas=ALPHAS, resamples=0)
    entropy = {
        (one.name, alpha): fg.score_samples(one.samples, "ast", fg.FaseConfig(alpha=alpha), workers=0).entropy.numpy()
        for one in sets
        for alpha in ALPHAS
    }

    def rho(alpha: float, kept: dict[str, Any]) -> float:
        return float(
            np.mean(
                [
                    metrics.spearman(-entropy[one.name, alpha][kept[one.name]], one.pass_at_1[kept[one.name]], 0).value
                    for one in sets
                ]
            )
        )

    everything = {one.name: np.full(len(one), True) for one in sets}
    assert found.alpha == max(ALPHAS, key=lambda alpha: rho(alpha, everything))
    # Tasks t0 to t29 are in both sets, and are held out together.
    masks = metrics.folds([*sets[0].task_ids, *sets[1].task_ids])
    held = {one.name: np.full(len(one), np.nan) for one in sets}
    for mask in masks:
        fold = {"one": mask[:40], "two": mask[40:]}
        assert (fold["one"][:30] == fold["two"]).all()
        alpha = max(ALPHAS, key=lambda a: rho(a, {name: ~part for name, part in fold.items()}))
        train = {name: ~part for name, part in fold.items()}
        seen = np.concatenate([entropy[one.name, alpha][train[one.name]] for one in sets])
        rates = np.concatenate([one.pass_at_1[train[one.name]] for one in sets])
        fitted = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(-seen, rates)
        for name, part in fold.items():
            held[name][part] = fitted.predict(-entropy[name, alpha][part])
    for one in sets:
        judged = found.held_out["expected pass@1 from entropy"][one.name]
        assert judged["rho"][0] == pytest.approx(metrics.spearman(held[one.name], one.pass_at_1, 0).value, abs=1e-6)
        error = metrics.reliability(held[one.name], one.pass_at_1).error
        assert judged["calibration_error"] == pytest.approx(error, abs=1e-6)
        plain = found.held_out["entropy at alpha 1.6"][one.name]["rho"][0]
        assert plain == pytest.approx(metrics.spearman(-entropy[one.name, 1.6], one.pass_at_1, 0).value, abs=1e-12)


def test_the_error_is_that_of_the_map_of_all_sets() -> None:
    """Where one set is easy and one hard, one map for both is wrong for both, and says so."""
    hard, easy = labelled("hard", 40, 0), labelled("easy", 40, 1)
    rng = np.random.default_rng(5)
    hard = LabelledSet("hard", hard.task_ids, hard.prompts, hard.samples, (rng.random((40, 8)) < 0.1).tolist())
    easy = LabelledSet("easy", easy.task_ids, easy.prompts, easy.samples, (rng.random((40, 8)) < 0.9).tolist())
    both = [read_inputs(one.samples, "ast", workers=0) for one in (hard, easy)]
    found = calibrate([hard, easy], both, "ast", alphas=ALPHAS, resamples=0)
    for name in ("hard", "easy"):
        assert found.held_out["expected pass@1 from multiscale"][name]["calibration_error"] > 0.25


def test_a_fold_without_the_only_task_that_differs_takes_the_default_alpha() -> None:
    one = labelled("one", 12, 0)
    single = LabelledSet("one", one.task_ids, one.prompts, one.samples, [[True] * 8, *[[False] * 8] * 11])
    found = calibrate([single], [read_inputs(one.samples, "ast", workers=0)], "ast", alphas=ALPHAS, resamples=0)
    assert found.alpha in ALPHAS
    assert found.sets == {"one": 12}


def test_by_is_the_better_one_or_what_is_asked(sets: list[LabelledSet], inputs: list[Inputs]) -> None:
    found = calibrate(sets, inputs, "ast", alphas=ALPHAS, resamples=0)
    mean = {
        name: np.mean([s["rho"][0] for s in found.held_out[f"expected pass@1 from {name}"].values()])
        for name in ("multiscale", "entropy")
    }
    assert found.by == max(mean, key=lambda name: mean[name])
    for by in ("multiscale", "entropy"):
        assert calibrate(sets, inputs, "ast", alphas=ALPHAS, by=by, resamples=0).by == by


def test_a_file_reads_back(tmp_path: Path, sets: list[LabelledSet], inputs: list[Inputs]) -> None:
    found = calibrate(sets, inputs, "ast", alphas=ALPHAS, resamples=20)
    path = tmp_path / "calibration.json"
    write_calibration(path, found)
    again = read_calibration(path)
    assert again.maps == found.maps
    assert again.config == found.config
    assert (again.encoder, again.by, again.alpha) == (found.encoder, found.by, found.alpha)
    with pytest.raises(InputError, match="exists already"):
        write_calibration(path, found)


def damaged(tmp_path: Path, found: Calibration, change: dict[str, Any]) -> Path:
    path = tmp_path / "calibration.json"
    write_calibration(path, found, overwrite=True)
    record = json.loads(path.read_text()) | change
    path.write_text(json.dumps({name: value for name, value in record.items() if value != "gone"}))
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "another"}, "not a calibration; expected what fase-gpu calibrate writes"),
        ({"alpha": "gone"}, "damaged calibration: 'alpha'"),
        ({"alpha": [1, 2]}, "damaged calibration: alpha cannot be"),
        ({"variant": "structural"}, "damaged calibration: alpha cannot be"),
        ({"normalize_code": "no"}, "damaged calibration: normalize_code cannot be"),
        ({"sets": 5}, "damaged calibration: sets cannot be"),
        ({"by": "textual"}, "damaged calibration: by cannot be"),
        ({"maps": []}, "damaged calibration: "),
        ({"version": "0.0.1"}, "is of fase-gpu 0.0.1, whose scores may differ"),
        ({"alpha": -1}, "damaged calibration: alpha: expected a finite number above 0"),
        ({"variant": "nothing"}, "damaged calibration: variant: unknown 'nothing'"),
        ({"by": "entropy", "maps": {}}, "damaged calibration: "),
        ({"maps": {"multiscale": {"uncertainty": [1, 0], "pass_at_1": [1, 0]}}}, "damaged calibration: "),
        ({"maps": {"multiscale": {"uncertainty": [0, 1], "pass_at_1": [0, 1]}}}, "damaged calibration: "),
        ({"maps": {"multiscale": {"uncertainty": [0, 1], "pass_at_1": [7, 1]}}}, "damaged calibration: "),
        ({"maps": {"multiscale": {"uncertainty": [], "pass_at_1": []}}}, "damaged calibration: "),
        ({"maps": {"multiscale": {"uncertainty": ["a"], "pass_at_1": [1]}}}, "damaged calibration: "),
    ],
)
def test_damaged_files_are_refused(
    tmp_path: Path, sets: list[LabelledSet], inputs: list[Inputs], change: dict[str, Any], message: str
) -> None:
    found = calibrate(sets, inputs, "ast", alphas=ALPHAS, by="multiscale", resamples=0)
    with pytest.raises(InputError, match=message):
        read_calibration(damaged(tmp_path, found, change))


@pytest.mark.parametrize("content", ["[]", "{", '"x"', "\x00"])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(InputError, match="not a calibration"):
        read_calibration(path)


def test_a_set_without_a_score_is_undefined_and_no_part_of_the_mean(
    sets: list[LabelledSet], inputs: list[Inputs]
) -> None:
    single = LabelledSet("single", ["s1", "s2"], ["", ""], [["x = 1"], ["x = 2"]], [[True], [False]])
    both = [inputs[0], read_inputs(single.samples, "ast", workers=0)]
    found = calibrate([sets[0], single], both, "ast", alphas=ALPHAS, resamples=0)
    alone = calibrate(sets[:1], inputs[:1], "ast", alphas=ALPHAS, resamples=0)
    assert (found.alpha, found.maps) == (alone.alpha, alone.maps)
    assert np.isnan(found.held_out["expected pass@1 from multiscale"]["single"]["calibration_error"])


def test_both_scores_are_of_the_calibration_s_semantics(sets: list[LabelledSet], inputs: list[Inputs]) -> None:
    found = calibrate(sets[:1], inputs[:1], "ast", semantics="released", alphas=ALPHAS, resamples=0)
    result = fg.score_samples(sets[0].samples, "ast", found.config, normalize_code=True, workers=0)
    seen = result.multiscale.double().numpy()
    expected = IsotonicRegression(y_min=0, y_max=1, out_of_bounds="clip").fit(-seen, sets[0].pass_at_1).predict(-seen)
    np.testing.assert_allclose(found.maps["multiscale"](seen), expected, rtol=0, atol=1e-12)


def test_nothing_to_learn_is_told() -> None:
    one = labelled("one", 6, 0)
    always = LabelledSet("one", one.task_ids, one.prompts, one.samples, [[True] * 8] * 6)
    with pytest.raises(InputError, match="no alpha predicts anything"):
        calibrate([always], [read_inputs(one.samples, "ast", workers=0)], "ast", resamples=0)
    single = LabelledSet("one", one.task_ids[:1], one.prompts[:1], one.samples[:1], one.passed[:1])
    with pytest.raises(InputError, match="at least two labelled tasks"):
        calibrate([single], [read_inputs(single.samples, "ast", workers=0)], "ast", resamples=0)


def test_the_commands_work_together(tmp_path: Path, run: Run, sets: list[LabelledSet]) -> None:
    first, second = write(tmp_path / "one.jsonl", sets[0]), write(tmp_path / "two.jsonl", sets[1], labels=False)
    with second.open("a") as file:
        file.write(json.dumps({"task_id": "alone", "samples": ["x = 1"]}) + "\n")
    file_ = tmp_path / "calibration.json"
    status, out, err = run("calibrate", first, "-o", file_, "--alphas", "0.5,2", "--resamples", 20)
    assert (status, err) == (0, "")
    assert "on tasks held out" in out
    found = read_calibration(file_)
    scores = tmp_path / "scores.parquet"
    status, out, err = run("score", second, "--calibration", file_, "-o", scores)
    assert (status, err) == (0, "")
    assert "expected pass@1" in out
    assert f"alpha {found.alpha:g}" in out
    rows = pq.read_table(scores)
    expected = found.maps[found.by](rows[found.by].to_numpy())
    np.testing.assert_array_equal(rows["expected_pass_at_1"].to_numpy(), expected)
    assert np.isnan(expected).tolist() == [False] * 30 + [True]
    for suffix in (".csv", ".jsonl"):
        assert run("score", second, "--calibration", file_, "-o", tmp_path / f"scores{suffix}", "-q")[0] == 0
    lines = (tmp_path / "scores.jsonl").read_text().splitlines()
    assert json.loads(lines[0])["expected_pass_at_1"] == expected[0]
    assert json.loads(lines[-1])["expected_pass_at_1"] is None


def test_settings_that_are_the_same_may_be_named(
    tmp_path: Path, run: Run, sets: list[LabelledSet], inputs: list[Inputs]
) -> None:
    found = calibrate(sets, inputs, "ast", alphas=ALPHAS, resamples=0)
    write_calibration(tmp_path / "c.json", found)
    path = write(tmp_path / "one.jsonl", sets[0])
    options = ("-e", "ast", "--alpha", str(found.alpha), "--normalize-code")
    assert run("score", path, "--calibration", tmp_path / "c.json", *options)[0] == 0


@pytest.mark.parametrize(
    "option",
    [("--alpha", "1.7"), ("-e", "ast+ast"), ("--no-normalize-code",), ("--grid", "10"), ("--variant", "pdm_mean")],
)
def test_settings_of_a_calibration_are_its_own(
    tmp_path: Path, run: Run, sets: list[LabelledSet], inputs: list[Inputs], option: tuple[str, ...]
) -> None:
    found = calibrate(sets, inputs, "ast", alphas=ALPHAS, resamples=0)
    write_calibration(tmp_path / "c.json", found)
    path = write(tmp_path / "one.jsonl", sets[0])
    status, out, err = run("score", path, "--calibration", tmp_path / "c.json", *option)
    assert (status, out) == (2, "")
    assert "comes from --calibration" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--variant", "fixed_eps"], "variant: 'fixed_eps' has no alpha to choose"),
        (["--by", "entropi"], "did you mean 'entropy'?"),
        (["-o", "missing/c.json"], "does not exist"),
        (["-o", "c.txt"], "ends in .json"),
    ],
)
def test_what_calibrate_refuses(
    tmp_path: Path, run: Run, sets: list[LabelledSet], arguments: list[str], message: str
) -> None:
    path = write(tmp_path / "one.jsonl", sets[0])
    status, _, err = run("calibrate", path, "-o", tmp_path / "c.json", *arguments)
    assert status == 2
    assert message in err
    assert not (tmp_path / "c.json").exists()


def test_a_map_is_constant_beyond_its_points() -> None:
    found = MonotoneMap((0.2, 0.8), (0.9, 0.1))
    assert found([0, 0.2, 0.5, 0.8, 1]).tolist() == [0.9, 0.9, pytest.approx(0.5), 0.1, 0.1]
