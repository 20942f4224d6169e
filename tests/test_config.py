"""FaseConfig, and the settings beside it: what is refused and in which words, and that a config is a plain value."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
import torch
from cases import refused
from hypothesis import given
from hypothesis import strategies as st

import fase_gpu as fg
from fase_gpu.config import CLASS_VARIANTS, PEAKS, RADIUS_VARIANTS, SEMANTICS, VARIANTS, FaseConfig
from fase_gpu.errors import FaseError, InputError

inf, nan = math.inf, math.nan

NOT_POSITIVE = [0, 0.0, -1, -0.5, nan, inf, -inf]
NOT_A_NUMBER = [True, False, "1.6", b"1.6", None, 1j, {}, {1.6}, Decimal("1.6"), iter([1.6]), object()]
NOT_AN_INTEGER = [2.0, "2", True, None, [2], nan, np.float64(2), torch.tensor(2.0)]
SEQUENCES = [
    [0.5, 1, 2.5],
    (0.5, 1, 2.5),
    np.array([0.5, 1, 2.5]),
    np.array([0.5, 1, 2.5], dtype=np.float16),
    torch.tensor([0.5, 1, 2.5], dtype=torch.bfloat16),
    torch.tensor([0.5, 1, 2.5], requires_grad=True),
]

positive = st.floats(min_value=0, exclude_min=True, allow_infinity=False, allow_nan=False)
scales = positive | st.lists(positive, min_size=1, max_size=4).map(tuple)
ranges = st.tuples(positive, positive).filter(lambda pair: pair[0] != pair[1]).map(lambda pair: tuple(sorted(pair)))


@st.composite
def configs(draw: st.DrawFn) -> FaseConfig:
    variant, semantics = draw(st.sampled_from(VARIANTS)), draw(st.sampled_from(SEMANTICS))
    slip = (semantics, variant) == ("released", "union") and draw(st.booleans())
    return FaseConfig(
        alpha=draw(scales),
        variant=variant,
        semantics=semantics,
        min_samples=draw(st.integers(1, 99)),
        grid=draw(st.integers(2, 5000)),
        min_distance=draw(st.floats(1e-30, 2.0)),
        multiscale_range=draw(st.none() | ranges),
        eps=draw(scales) if variant == "fixed_eps" else None,
        min_cluster_size=draw(st.integers(2, 99)),
        peak=draw(st.sampled_from(PEAKS)),
        misaligned_union=slip,
        return_labels=draw(st.booleans()),
    )


def refusal(**settings: Any) -> str:
    return refused(lambda: FaseConfig(**settings))


def test_a_refusal_is_a_value_error_and_ours() -> None:
    assert issubclass(InputError, FaseError)
    assert issubclass(InputError, ValueError)


def test_the_defaults_are_those_of_the_specification() -> None:
    assert FaseConfig() == FaseConfig(
        alpha=1.6,
        variant="scaled_mst_mode",
        semantics="paper",
        min_samples=2,
        grid=1000,
        min_distance=1e-6,
        multiscale_range=None,
        eps=None,
        peak="max_peak",
        misaligned_union=False,
        return_labels=True,
    )


@pytest.mark.parametrize("name", ["alpha", "min_distance", "eps"])
@pytest.mark.parametrize("value", NOT_POSITIVE)
def test_a_number_that_is_not_finite_and_above_0_is_refused(name: str, value: float) -> None:
    settings: dict[str, Any] = {name: value} | ({"variant": "fixed_eps"} if name == "eps" else {})
    assert refusal(**settings) == f"{name}: expected a finite number above 0, got {value!r}"


@pytest.mark.parametrize("value", NOT_POSITIVE)
def test_one_bad_value_of_a_sequence_is_named_by_its_position(value: float) -> None:
    expected = f"expected a finite number above 0, got {value!r}"
    assert refusal(alpha=[1.6, value]) == f"alpha[1]: {expected}"
    assert refusal(eps=(value, 0.1), variant="fixed_eps") == f"eps[0]: {expected}"
    assert refusal(multiscale_range=(1e-3, value)) == f"multiscale_range[1]: {expected}"


@pytest.mark.parametrize("name", ["alpha", "min_distance"])
@pytest.mark.parametrize("value", NOT_A_NUMBER, ids=lambda value: type(value).__name__)
def test_what_is_not_a_number_is_refused(name: str, value: object) -> None:
    assert refusal(**{name: value}) == f"{name}: expected a number above 0, got {value!r}"
    if name == "alpha":
        assert refusal(alpha=[1.6, value]) == f"alpha[1]: expected a number above 0, got {value!r}"


@pytest.mark.parametrize("value", [np.array([[1.6]]), torch.ones(1, 2), [[1.6]], [[]]], ids=repr)
def test_alphas_have_one_dimension(value: object) -> None:
    assert refusal(alpha=value).startswith("alpha[0]: expected a number above 0, got [")


@pytest.mark.parametrize("value", [[], (), np.array([]), torch.ones(0)], ids=repr)
def test_a_sequence_without_values_is_refused(value: object) -> None:
    assert refusal(alpha=value) == "alpha: expected at least one value, got none"
    assert refusal(eps=value, variant="fixed_eps") == "eps: expected at least one value, got none"


def test_a_number_too_large_for_a_float_is_refused() -> None:
    assert refusal(alpha=10**400).startswith("alpha: expected a finite number above 0, got 1000")


def test_a_minimum_that_float32_does_not_hold_is_refused() -> None:
    for value in (1e-31, 1e31):
        assert refusal(min_distance=value) == f"min_distance: expected 1e-30 to 1e30, which float32 holds, got {value}"
    assert FaseConfig(min_distance=1e-30).min_distance == 1e-30


@pytest.mark.parametrize(("name", "least"), [("min_samples", 1), ("grid", 2), ("min_cluster_size", 2)])
def test_counts_are_integers_and_large_enough(name: str, least: int) -> None:
    for value in [least - 1, 0, -3, *NOT_AN_INTEGER]:
        assert refusal(**{name: value}) == f"{name}: expected an integer of at least {least}, got {value!r}"
    assert getattr(FaseConfig(**{name: least}), name) == least  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("variant", "scaled_mst_mod", "did you mean 'scaled_mst_mode'?"),
        ("variant", "Union", "did you mean 'union'?"),
        ("variant", "fixed-eps", "did you mean 'fixed_eps'?"),
        ("variant", "xyzzy", f"known: {', '.join(VARIANTS)}"),
        ("variant", None, f"known: {', '.join(VARIANTS)}"),
        ("variant", "", f"known: {', '.join(VARIANTS)}"),
        ("variant", "a\nb", f"known: {', '.join(VARIANTS)}"),
        ("semantics", "release", "did you mean 'released'?"),
        ("peak", "maxpeak", "did you mean 'max_peak'?"),
        ("peak", "mode", "known: max_peak, min_peak"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name: str, value: object, hint: str) -> None:
    message = refusal(**{name: value})
    assert message.startswith(f"{name}: unknown {value!r}; ")
    assert message.endswith(hint)


@pytest.mark.parametrize(
    "value", [(0.5, 1e-3), (0.5, 0.5), (1e-3,), (1e-3, 0.1, 0.5), 0.5, [0.5, 1e-3], np.array([0.5, 1e-3])], ids=repr
)
def test_a_range_is_two_ascending_numbers(value: object) -> None:
    assert refusal(multiscale_range=value) == f"multiscale_range: expected (lo, hi) with 0 < lo < hi, got {value!r}"


@pytest.mark.parametrize(("value", "name"), [("ab", "multiscale_range"), ((0, 1), r"multiscale_range\[0\]")])
def test_a_range_of_other_things_is_refused(value: object, name: str) -> None:
    assert re.match(f"{name}: expected a (finite )?number above 0, got ", refusal(multiscale_range=value))


def test_a_radius_belongs_to_fixed_eps_and_to_nothing_else() -> None:
    assert refusal(variant="fixed_eps") == 'eps: variant "fixed_eps" needs a radius, got None'
    for variant in set(VARIANTS) - {"fixed_eps"}:
        message = f"eps: only variant \"fixed_eps\" takes a radius, got variant '{variant}'"
        assert refusal(variant=variant, eps=0.1) == message
    assert FaseConfig(variant="fixed_eps", eps=1).eps == 1.0


@pytest.mark.parametrize("semantics", SEMANTICS)
@pytest.mark.parametrize("variant", sorted({*VARIANTS} - {"fixed_eps"}))
def test_the_misaligned_union_is_of_the_released_union_alone(semantics: str, variant: str) -> None:
    settings: dict[str, Any] = {"semantics": semantics, "variant": variant, "misaligned_union": True}
    if (semantics, variant) == ("released", "union"):
        assert FaseConfig(**settings).misaligned_union
    else:
        message = 'misaligned_union: only with semantics="released" and variant="union"'
        assert refusal(**settings) == message


@pytest.mark.parametrize("name", ["misaligned_union", "return_labels"])
@pytest.mark.parametrize("value", ["no", "", None, 0, 1, 2.5, []], ids=repr)
def test_a_switch_is_a_bool(name: str, value: object) -> None:
    settings: dict[str, Any] = {"semantics": "released", "variant": "union", name: value}
    assert refusal(**settings) == f"{name}: expected True or False, got {value!r}"


def test_settings_have_names() -> None:
    with pytest.raises(TypeError, match="positional"):
        FaseConfig(1.6)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'aplha'"):
        FaseConfig(aplha=1.6)  # type: ignore[call-arg]


@pytest.mark.parametrize("value", SEQUENCES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", ["alpha", "eps"])
def test_any_sequence_becomes_a_tuple_of_floats(name: str, value: Any) -> None:
    settings: dict[str, Any] = {name: value} | ({"variant": "fixed_eps"} if name == "eps" else {})
    config = FaseConfig(**settings)
    assert getattr(config, name) == (0.5, 1.0, 2.5)
    assert {type(v) for v in getattr(config, name)} == {float}
    assert config.swept
    assert config.scale_list == (0.5, 1.0, 2.5)


@pytest.mark.parametrize("scalar", [2, 2.0, np.int64(2), np.float64(2), np.float32(2), np.array(2), torch.tensor(2)])
def test_numpy_and_torch_scalars_are_numbers(scalar: Any) -> None:
    config = FaseConfig(alpha=scalar, min_distance=scalar)
    assert [config.alpha, config.min_distance] == [2.0, 2.0]
    assert {type(config.alpha), type(config.min_distance)} == {float}
    assert not config.swept
    assert config.scale_list == (2.0,)
    if not isinstance(scalar, (float, np.floating)):
        config = FaseConfig(min_samples=scalar, grid=scalar, min_cluster_size=scalar)
        assert {type(config.min_samples), type(config.grid), type(config.min_cluster_size)} == {int}


def test_one_alpha_in_a_tuple_is_a_sweep() -> None:
    assert FaseConfig(alpha=(1.6,)).swept
    assert FaseConfig(alpha=(1.6,)) != FaseConfig(alpha=1.6)


def test_a_radius_is_what_fixed_eps_sweeps() -> None:
    config = FaseConfig(variant="fixed_eps", alpha=(1.0, 2.0), eps=0.1)
    assert not config.swept
    assert config.scale_list == (0.1,)


def test_the_variants_with_a_radius() -> None:
    with_radius = {v for v in VARIANTS if FaseConfig(variant=v, eps=0.1 if v == "fixed_eps" else None).has_radius}
    assert with_radius == {*RADIUS_VARIANTS, "union", "intersection"}
    assert {*VARIANTS} - with_radius == {"fixed_mcs", *CLASS_VARIANTS} - {"union", "intersection"}


@given(configs())
def test_a_config_goes_through_json_and_back(config: FaseConfig) -> None:
    settings = json.loads(json.dumps(config.to_dict(), allow_nan=False))
    assert set(settings) == {field.name for field in fields(FaseConfig)}
    again = FaseConfig(**settings)
    assert again == config
    assert hash(again) == hash(config)
    assert replace(config) == config


@given(configs(), configs())
def test_configs_are_equal_exactly_where_their_settings_are(a: FaseConfig, b: FaseConfig) -> None:
    assert (a == b) == (a.to_dict() == b.to_dict())
    assert len({a, b}) == 1 + (a != b)


@given(configs(), st.sampled_from([field.name for field in fields(FaseConfig)]))
def test_a_config_never_changes(config: FaseConfig, name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(config, name, getattr(config, name))


def test_a_replaced_setting_is_checked_again() -> None:
    with pytest.raises(InputError, match=r"^alpha: expected a finite number above 0, got -1$"):
        replace(FaseConfig(), alpha=-1)


def test_the_callers_list_is_not_kept() -> None:
    alphas = [1.0, 2.0]
    config = FaseConfig(alpha=alphas)  # type: ignore[arg-type]
    alphas[0] = -5.0
    assert config.alpha == (1.0, 2.0)


X = np.random.default_rng(0).standard_normal((2, 5, 6)).astype(np.float32)
D = np.abs(X[:, :, :1] - X[:, :, :1].transpose(0, 2, 1))


def score_all(**settings: Any) -> list[Callable[[], fg.FaseResult]]:
    """The three entry points, with these settings."""
    return [
        lambda: fg.score_embeddings(X, **settings),
        lambda: fg.score_distances(D, **settings),
        lambda: fg.score_samples([["x = 1", "x = 2"]], "ast", workers=0, **settings),
    ]


@pytest.mark.parametrize(
    ("backend", "message"),
    [
        ("troch", "backend: unknown 'troch'; did you mean 'torch'?"),
        ("Torch", "backend: unknown 'Torch'; did you mean 'torch'?"),
        ("numpy", "backend: unknown 'numpy'; known: auto, torch, reference, triton"),
        (None, "backend: unknown None; known: auto, torch, reference, triton"),
        (3, "backend: unknown 3; known: auto, torch, reference, triton"),
    ],
)
def test_an_unknown_backend_is_refused_with_the_nearest(backend: Any, message: str) -> None:
    for call in score_all(backend=backend):
        assert refused(call).startswith(message)


def test_a_forced_backend_that_cannot_run_raises_and_never_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("another backend ran in its place")

    for executor in ("executor", "reference"):
        monkeypatch.setattr(f"fase_gpu.{executor}.score", never)
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for call in score_all(backend="triton"):
        with pytest.raises(fg.BackendError, match=r'^backend "triton": .+; use backend="torch" or "auto"') as caught:
            call()
        assert isinstance(caught.value, FaseError)
        assert not isinstance(caught.value, InputError)


@pytest.mark.parametrize("config", [1.6, "union", {"alpha": 1.6}, FaseConfig, 0, "", {}, False], ids=repr)
def test_a_config_is_a_faseconfig(config: Any) -> None:
    kind = type(config).__name__
    for call in score_all(config=config):
        assert refused(call) == f"config: expected a FaseConfig, got {kind}"


UNION = FaseConfig(variant="union")


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (None, 'classes: variant "union" needs one for each sample'),
        ([[1] * 5], "classes: expected one sequence for each of 2 tasks, got 1"),
        ([[1] * 5, [1] * 4], "classes[1]: expected 5 values, one a sample, got 4"),
        ([[1] * 5, [1] * 6], "classes[1]: expected 5 values, one a sample, got 6"),
        (np.zeros((2, 4), int), "classes[0]: expected 5 values, one a sample, got 4"),
        ("ab", "classes"),
        (3, "classes: expected "),
        ([1, 2], "classes[0]: expected "),
        ([[1] * 5, None], "classes[1]: expected "),
        ([[1] * 5, {1, 2, 3, 4, 5}], "classes[1]: expected "),
        ([[1] * 5, iter(range(5))], "classes[1]: expected "),
        ((row for row in [[1] * 5] * 2), "classes: expected "),
        ([[1] * 5, [1, 2, [3], 4, 5]], "classes[1]"),
        (np.zeros((2, 5, 1), int), "classes[0]"),
    ],
)
def test_classes_are_one_hashable_value_a_sample(classes: Any, message: str) -> None:
    for score, x in ((fg.score_embeddings, X), (fg.score_distances, D)):
        assert refused(lambda f=score, x=x: f(x, config=UNION, classes=classes)).startswith(message)  # type: ignore[misc]


@pytest.mark.parametrize("variant", sorted({*VARIANTS} - {*CLASS_VARIANTS}))
def test_classes_that_a_variant_does_not_use_are_refused(variant: str) -> None:
    config = FaseConfig(variant=variant, eps=0.1 if variant == "fixed_eps" else None)
    message = f'classes: not used by variant "{variant}"; used by structural, textual, union, intersection'
    assert refused(lambda: fg.score_embeddings(X, config=config, classes=[[1] * 5] * 2)) == message


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_classes_may_be_any_hashable_values(backend: str) -> None:
    config = FaseConfig(variant="textual")
    expected = [[0, 1, 0, 2, 1], [0, 0, 0, 0, 1]]
    for classes in (
        [["a", "b", "a", "c", "b"], ["b", "b", "b", "b", "a"]],
        (((1, 2), None, (1, 2), "x", None), (0,) * 4 + (-1,)),
        np.array([[7, -3, 7, 2**62, -3], [5, 5, 5, 5, 7]]),
        torch.tensor([[7, 3, 7, 2, 3], [5, 5, 5, 5, 7]]),
    ):
        found = fg.score_embeddings(X, config=config, backend=backend, classes=classes)  # type: ignore[arg-type]
        assert found.labels is not None
        assert found.labels.tolist() == expected


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"encoder": "asst"}, "encoder: unknown 'asst'; did you mean 'ast'?"),
        ({"encoder": "all-MiniLM-L6-v3"}, "encoder: unknown 'all-MiniLM-L6-v3'; did you mean 'all-MiniLM-L6-v2'?"),
        ({"encoder": "ast+all-minilm-l6"}, "encoder: unknown 'all-minilm-l6'; did you mean 'all-MiniLM-L6-v2'?"),
        ({"encoder": None}, "encoder: expected a name, got NoneType"),
        ({"encoder": "ast+"}, "encoder: expected a name, or two joined as in "),
        ({"batch_tokens": 0}, "batch_tokens: expected None or an integer of at least 1, got 0"),
        ({"workers": -1}, "workers: expected None or an integer of at least 0, got -1"),
        ({"device": "cpx"}, "device: expected cpu, cuda or cuda:N that is there, got 'cpx'"),
        ({"device": 1.5}, "device: expected cpu, cuda or cuda:N that is there, got 1.5"),
        ({"normalize_code": "no"}, "normalize_code: expected None, True or False, got 'no'"),
    ],
)
def test_settings_of_an_encoder_are_checked(settings: dict[str, Any], message: str) -> None:
    assert refused(lambda: fg.score_samples([["x = 1", "x = 2"]], **{"encoder": "ast", **settings})).startswith(message)
