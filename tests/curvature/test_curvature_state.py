"""Saving, loading, and what must never get into a state; for every backend."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from curvature_cases import make_factors, make_layout, random_vectors

from sgoif.curvature import CURVATURES, Curvature, Factors, make_curvature
from sgoif.errors import LayerError, SettingError, StateError

OPTIONS: dict[str, dict[str, int]] = {"fisher": {"window": 20}, "lowrank": {"rank": 3, "refresh": 3, "buffer": 6}}
CASE = "mixed"

every_backend = pytest.mark.parametrize("name", sorted(CURVATURES))


def make(name: str, **changes: Any) -> Curvature:
    settings = {"damping": 0.1, "decay": 0.7, **OPTIONS.get(name, {}), **changes}
    return CURVATURES[name](make_layout(CASE), **settings)


def updated(name: str, batches: int = 5) -> Curvature:
    curvature = make(name)
    for seed in range(batches):
        curvature.update(make_factors(CASE, 8, seed))
    return curvature


def assert_same(one: Curvature, other: Curvature) -> None:
    """Equal to the last bit."""
    vectors = random_vectors(4, one.layout.size)
    assert one.updates == other.updates
    assert torch.equal(one.matvec(vectors), other.matvec(vectors))
    assert torch.equal(one.solve(vectors), other.solve(vectors))
    assert torch.equal(one.diagonal(), other.diagonal())
    assert one.spectrum() == other.spectrum()
    mine, theirs = one.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        assert torch.equal(value, theirs[key]) if isinstance(value, torch.Tensor) else value == theirs[key], key


@every_backend
@pytest.mark.parametrize("batches", [0, 1, 5])
def test_round_trip_is_exact_and_goes_on_exactly(name: str, batches: int) -> None:
    original = updated(name, batches)
    file = io.BytesIO()
    torch.save(original.state_dict(), file)
    file.seek(0)
    restored = make(name)
    restored.load_state_dict(torch.load(file, weights_only=True))
    assert_same(original, restored)
    for seed in range(10, 15):
        original.update(make_factors(CASE, 8, seed))
        restored.update(make_factors(CASE, 8, seed))
        assert_same(original, restored)


@every_backend
def test_state_is_a_snapshot(name: str) -> None:
    curvature = updated(name)
    state = curvature.state_dict()
    before = {key: value.clone() for key, value in state.items() if isinstance(value, torch.Tensor)}
    restored = make(name)
    restored.load_state_dict(state)
    for running in (curvature, restored):
        running.update(make_factors(CASE, 8, 77))
    assert all(torch.equal(state[key], value) for key, value in before.items())
    assert state["name"] == name
    assert state["updates"] == 5
    assert all(value is not None for value in state.values())


@every_backend
def test_loading_replaces_what_was_there(name: str) -> None:
    original, other = updated(name, 4), updated(name, 2)
    vectors = random_vectors(2, original.layout.size)
    other.solve(vectors)
    other.load_state_dict(original.state_dict())
    assert_same(original, other)


def test_lowrank_state_carries_its_rank() -> None:
    original, restored = updated("lowrank"), make("lowrank")
    original.set_rank(5)  # type: ignore[attr-defined]
    restored.load_state_dict(original.state_dict())
    assert_same(original, restored)
    assert restored.rank == 5  # type: ignore[attr-defined]


@every_backend
def test_a_state_of_another_model_or_backend_is_refused(name: str) -> None:
    state = updated(name).state_dict()
    with pytest.raises(StateError, match="another model"):
        CURVATURES[name](make_layout("linear"), **OPTIONS.get(name, {})).load_state_dict(state)
    with pytest.raises(StateError, match="resume with the same setting"):
        make(name).load_state_dict({**state, "name": "other"})
    tensors = [key for key, value in state.items() if isinstance(value, torch.Tensor)]
    with pytest.raises(StateError):
        make(name).load_state_dict({key: value for key, value in state.items() if key != tensors[-1]})


def poisoned(factor: Factors, value: float, which: str) -> Factors:
    parts = {"inputs": factor.inputs.clone(), "delta": factor.delta.clone()}
    parts[which].view(-1)[-1] = value
    return Factors(parts["inputs"], parts["delta"], factor.elementwise)


@every_backend
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 1e30])
@pytest.mark.parametrize("which", ["inputs", "delta"])
@pytest.mark.parametrize("block", range(4))
def test_a_batch_that_is_not_finite_leaves_no_trace(name: str, value: float, which: str, block: int) -> None:
    clean, dirty = updated(name, 2), updated(name, 2)
    factors = make_factors(CASE, 4, 50)
    factors[block] = poisoned(factors[block], value, which)
    dirty.update(factors)
    assert dirty.updates == 3
    clean.updates = 3  # the call counts, its content does not
    assert_same(clean, dirty)
    # And both go on learning alike: the bias correction has not moved either.
    for curvature in (clean, dirty):
        curvature.update(make_factors(CASE, 8, 60))
    assert_same(clean, dirty)


def test_a_lowrank_refresh_with_nothing_valid_keeps_the_basis() -> None:
    curvature = make("lowrank", refresh=1)
    curvature.update(make_factors(CASE, 8, 0))
    basis, eigenvalues = curvature.basis.clone(), curvature.eigenvalues.clone()  # type: ignore[attr-defined]
    factors = make_factors(CASE, 8, 1)
    curvature.update([poisoned(factors[0], float("nan"), "delta"), *factors[1:]])
    torch.testing.assert_close(curvature.eigenvalues, eigenvalues)  # type: ignore[attr-defined]
    overlap = curvature.basis.T @ basis  # type: ignore[attr-defined]
    torch.testing.assert_close(overlap.abs(), torch.eye(3), rtol=0, atol=1e-5)


@every_backend
@pytest.mark.parametrize("first", [None, "nan", "empty"])
def test_before_any_data_it_is_damping_times_identity(name: str, first: str | None) -> None:
    curvature = make(name)
    if first == "nan":
        curvature.update([Factors(f.inputs, f.delta * float("nan"), f.elementwise) for f in make_factors(CASE, 4, 0)])
    elif first == "empty":
        curvature.update([Factors(f.inputs[:0], f.delta[:0], f.elementwise) for f in make_factors(CASE, 4, 0)])
    vectors = random_vectors(3, curvature.layout.size)
    torch.testing.assert_close(curvature.matvec(vectors), 0.1 * vectors, rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(curvature.solve(vectors), vectors / 0.1, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(curvature.diagonal(), torch.full((curvature.layout.size,), 0.1))
    assert curvature.spectrum().smallest == pytest.approx(0.1)
    assert curvature.spectrum().largest == pytest.approx(0.1)


@every_backend
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_state_and_results_are_float32_whatever_comes_in(name: str, dtype: torch.dtype) -> None:
    cast, plain = make(name), make(name)
    for seed in range(3):
        factors = make_factors(CASE, 8, seed, dtype=dtype)
        cast.update(factors)
        plain.update([Factors(f.inputs.float(), f.delta.float(), f.elementwise) for f in factors])
    assert_same(cast, plain)
    for key, value in cast.state_dict().items():
        assert not isinstance(value, torch.Tensor) or value.dtype in (torch.float32, torch.int64), key
    vectors = random_vectors(2, cast.layout.size).to(dtype)
    for result in (cast.matvec(vectors), cast.solve(vectors), cast.diagonal()):
        assert result.dtype == torch.float32
    assert torch.equal(cast.matvec(vectors), cast.matvec(vectors.float()))


@every_backend
def test_autocast_and_autograd_around_it_change_nothing(name: str) -> None:
    plain, inside = updated(name, 2), make(name)
    vectors = random_vectors(3, plain.layout.size)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for seed in range(2):
            factors = make_factors(CASE, 8, seed)
            inside.update(
                [Factors(f.inputs.requires_grad_(), f.delta.requires_grad_(), f.elementwise) for f in factors]
            )
        results: list[Callable[[Curvature], torch.Tensor]] = [lambda c: c.matvec(vectors), lambda c: c.solve(vectors)]
        found = [result(inside) for result in results]
    assert all(not result.requires_grad for result in found)
    assert all(torch.equal(a, result(plain)) for a, result in zip(found, results, strict=True))
    assert_same(plain, inside)


@pytest.mark.gpu
@every_backend
def test_update_does_not_wait_for_the_gpu(name: str) -> None:
    options = {**OPTIONS, "lowrank": {"rank": 3, "refresh": 1000, "buffer": 2000}}.get(name, {})
    curvature = CURVATURES[name](make_layout(CASE), device="cuda", **options)
    reference = CURVATURES[name](make_layout(CASE), **options)
    batches = [make_factors(CASE, 8, seed) for seed in range(6)]
    on_gpu = [[Factors(f.inputs.cuda(), f.delta.cuda(), f.elementwise) for f in batch] for batch in batches]
    curvature.update(on_gpu[0])
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in on_gpu[1:]:
            curvature.update(batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for batch in batches:
        reference.update(batch)
    vectors = random_vectors(3, curvature.layout.size)
    torch.testing.assert_close(curvature.matvec(vectors).cpu(), reference.matvec(vectors), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(curvature.solve(vectors).cpu(), reference.solve(vectors), rtol=1e-2, atol=1e-2)
    restored = CURVATURES[name](make_layout(CASE), device="cuda", **options)
    restored.load_state_dict(
        {k: v.cpu() if isinstance(v, torch.Tensor) else v for k, v in curvature.state_dict().items()}
    )
    assert torch.equal(curvature.matvec(vectors), restored.matvec(vectors))


@every_backend
def test_factors_that_do_not_fit_are_named(name: str) -> None:
    factors = make_factors(CASE, 4, 0)
    with pytest.raises(LayerError, match="expected 4"):
        make(name).update(factors[:3])
    with pytest.raises(LayerError, match="layer1"):
        make(name).update([factors[0], Factors(factors[1].inputs[..., 1:], factors[1].delta), *factors[2:]])


def test_names_and_settings_are_checked() -> None:
    with pytest.raises(SettingError, match="diagonal, fisher, kfac, lowrank"):
        make_curvature("hessian", make_layout(CASE))
    with pytest.raises(SettingError, match="damping"):
        make_curvature("kfac", make_layout(CASE), damping=0.0)
    with pytest.raises(SettingError, match="decay"):
        make_curvature("kfac", make_layout(CASE), decay=1.0)
    for name, backend in CURVATURES.items():
        assert backend.name == name
        assert type(make_curvature(name, make_layout(CASE))) is backend
