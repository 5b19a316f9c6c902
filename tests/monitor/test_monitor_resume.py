"""Stop anywhere, resume, and get the same table; a state that does not fit is refused and changes nothing."""

from __future__ import annotations

import copy
import io
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from sgoif import InfluenceMonitor
from sgoif.core.serialization import load_state, save_state
from sgoif.errors import StateError

STEPS, BATCH, TRAINING, CLASSES = 24, 8, 48, 4


def problem() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    labels = torch.arange(96) % CLASSES
    centres = torch.randn(CLASSES, 1, 6, 6, generator=generator)
    return centres[labels] + 0.7 * torch.randn(96, 1, 6, 6, generator=generator), labels


class Run:
    """A small training run with dropout and batch norm, momentum and shuffling: everything that has a state."""

    def __init__(self, **options) -> None:
        self.inputs, self.labels = problem()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.model = nn.Sequential(
                nn.Conv2d(1, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2),
                nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, CLASSES),
            )  # fmt: skip
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3)
        self.order = torch.Generator().manual_seed(11)
        self.waiting: list[torch.Tensor] = []
        anchors = (self.inputs[TRAINING:], self.labels[TRAINING:])
        options = {"max_anchors": 24, "replace_every": 2, "replace_share": 0.2, **options}
        self.monitor = InfluenceMonitor(self.model, self.optimizer, anchors=anchors, **options)

    def train(self, steps: int) -> Run:
        for _ in range(steps):
            if not self.waiting:
                self.waiting = list(torch.randperm(TRAINING, generator=self.order).split(BATCH))
            index = self.waiting.pop(0)
            with self.monitor.step(index):
                nn.functional.cross_entropy(self.model(self.inputs[index]), self.labels[index]).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        return self

    def save(self, folder: Path) -> None:
        """What a careful user saves: the monitor, and beside it model, optimizer, data order and random state."""
        self.monitor.save(folder / "monitor.npz")
        rest = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "order": self.order.get_state(),
            "waiting": self.waiting,
            "random": torch.get_rng_state(),
        }
        torch.save(rest, folder / "rest.pt")

    def load(self, folder: Path) -> Run:
        rest = torch.load(folder / "rest.pt", weights_only=True)
        self.model.load_state_dict(rest["model"])
        self.optimizer.load_state_dict(rest["optimizer"])
        self.order.set_state(rest["order"])
        self.waiting = list(rest["waiting"])
        torch.set_rng_state(rest["random"])
        self.monitor.load(folder / "monitor.npz")
        return self


def assert_same(one: InfluenceMonitor, other: InfluenceMonitor) -> None:
    """Both tables bit for bit, and the history but for the time it took."""
    for left, right in ((one.scores(), other.scores()), (one.anchor_scores(), other.anchor_scores())):
        assert left.columns == right.columns
        for name in left.columns:
            np.testing.assert_array_equal(left[name], right[name], err_msg=name)
    assert len(one.history) == len(other.history)
    for left, right in zip(one.history, other.history, strict=True):
        assert left.keys() == right.keys()
        for key in left.keys() - {"seconds"}:
            assert left[key] == right[key] or (left[key] != left[key] and right[key] != right[key]), key
    assert one.steps == other.steps


def stop_and_resume(folder: Path, stop: int, steps: int = STEPS, **options) -> None:
    torch.manual_seed(0)
    whole = Run(**options).train(steps)
    torch.manual_seed(0)
    Run(**options).train(stop).save(folder)
    torch.manual_seed(12345)  # a new process draws other numbers
    resumed = Run(**options)
    torch.randn(5)
    resumed.load(folder).train(steps - stop)
    assert_same(whole.monitor, resumed.monitor)
    for mine, theirs in zip(whole.model.state_dict().values(), resumed.model.state_dict().values(), strict=True):
        assert torch.equal(mine, theirs)


# --- resume exactly ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", [0, 1, 2, 5, 6, 11, 12, 13, 17, 23])
def test_stop_anywhere(stop: int, tmp_path: Path) -> None:
    """Epochs are 6 steps, refreshes fall on 0, 4, 8, …: before the first step, mid-epoch, around refreshes."""
    stop_and_resume(tmp_path, stop, refresh_every=4)


@pytest.mark.parametrize("stop", [3, 4, 5, 9])
def test_stop_around_a_refresh_of_the_default_schedule(stop: int, tmp_path: Path) -> None:
    stop_and_resume(tmp_path, stop)


@pytest.mark.parametrize("layers", ["head", "all"])
@pytest.mark.parametrize("stop", [0, 1, 6, 7])
def test_stop_where_the_size_is_known_and_nothing_waits(stop: int, layers: str, tmp_path: Path) -> None:
    """A refresh scores what waits where layers below the head are watched; the first step is one."""
    stop_and_resume(tmp_path, stop, size=TRAINING, layers=layers, refresh_every=6)


def test_the_run_that_is_stopped_does_refresh_replace_and_refine() -> None:
    """What the tests above go through; without it they could pass on a monitor that does nothing."""
    monitor = Run(refresh_every=4).train(STEPS).monitor
    assert [entry["step"] for entry in monitor.history] == [0, 4, 8, 12, 16, 20]
    assert monitor.anchors.replaced > 0
    table = monitor.scores()
    assert (table["n_observations"] == 4).all()
    assert len(np.unique(table["influence"])) == TRAINING


@pytest.mark.parametrize("layers", ["head", "all"])
@pytest.mark.parametrize("solver", ["richardson", "neumann", "subspace", "conjugate"])
@pytest.mark.parametrize("curvature", ["kfac", "diagonal", "fisher", "lowrank"])
def test_every_solver_and_curvature(curvature: str, solver: str, layers: str, tmp_path: Path) -> None:
    stop_and_resume(tmp_path, 9, steps=15, refresh_every=3, curvature=curvature, solver=solver, layers=layers)


@pytest.mark.parametrize(
    "options",
    [
        {"gate": "moving-average"},
        {"gate": "none"},
        {"kappa": 2.0},
        {"temperature": None},
        {"weigh_steps": False},
        {"gamma": (0.5, 2.0), "kappa_memory": 1.0},
        {"step_decay": 0.6, "residual_budget": 0.5},
        {"coverage_of": "anchors", "refine": True, "refine_outside": True},
        {"layers": "all", "projection": 4},
        {"layers": ["5", "7"]},
        {"curvature_every": 1},
    ],
    ids=str,
)
def test_every_kind_of_setting(options: dict, tmp_path: Path) -> None:
    stop_and_resume(tmp_path, 7, steps=13, refresh_every=3, **options)


def test_a_monitor_that_goes_on_is_not_disturbed_by_saving(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = Run().train(STEPS)
    torch.manual_seed(0)
    saved = Run()
    for _ in range(STEPS):
        saved.train(1).monitor.save(tmp_path / "state.npz")
    assert_same(whole.monitor, saved.monitor)


def test_stopping_twice(tmp_path: Path) -> None:
    torch.manual_seed(0)
    whole = Run().train(STEPS)
    torch.manual_seed(0)
    Run().train(7).save(tmp_path)
    Run().load(tmp_path).train(8).save(tmp_path)
    assert_same(whole.monitor, Run().load(tmp_path).train(STEPS - 15).monitor)


def test_state_dict_survives_torch_save_without_pickled_code() -> None:
    torch.manual_seed(0)
    run = Run().train(9)
    buffer = io.BytesIO()
    torch.save(run.monitor.state_dict(), buffer)
    buffer.seek(0)
    other = Run()
    other.model.load_state_dict(run.model.state_dict())
    other.monitor.load_state_dict(torch.load(buffer, weights_only=True))
    assert_same(run.monitor, other.monitor)


def test_a_state_dict_is_a_snapshot() -> None:
    run = Run().train(5)
    state = run.monitor.state_dict()
    kept = copy.deepcopy(state)
    run.train(6)
    assert same_state(state, kept)


# --- the file ---------------------------------------------------------------------------------------------------


@pytest.fixture
def state_file(tmp_path: Path) -> Path:
    path = tmp_path / "state.npz"
    Run(solver="subspace", curvature="lowrank").train(6).monitor.save(path)
    return path


def test_the_file_is_a_plain_archive_without_pickle(state_file: Path) -> None:
    with np.load(state_file, allow_pickle=False) as archive:
        for key in archive.files:
            assert archive[key].dtype != object, key
        meta = json.loads(archive["meta"].tobytes().decode())
        assert meta["values"]["version"] == 6
        assert {*meta["arrays"], "meta"} == set(archive.files)
    with zipfile.ZipFile(state_file) as archive:
        assert archive.testzip() is None
        for name in archive.namelist():
            data = archive.read(name)
            assert data[:6] == b"\x93NUMPY", name
            assert b"'descr': '|O'" not in data[:128], name


def test_objects_cannot_be_smuggled_into_a_file(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "owned"),))

    np.savez(tmp_path / "evil.npz", meta=np.array([Evil()], dtype=object))
    with pytest.raises(StateError):
        Run().monitor.load(tmp_path / "evil.npz")
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("failing", ["os.fsync", "os.replace", "numpy.lib.format.write_array"])
def test_a_crash_while_writing_leaves_the_old_file(
    state_file: Path, failing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = state_file.read_bytes()
    run = Run().train(2)
    real, calls = np.lib.format.write_array, iter(range(10**6))

    def crash(*args, **kwargs):
        if failing.startswith("numpy") and next(calls) < 5:
            return real(*args, **kwargs)  # in the middle of the file
        raise OSError("no space left on device")

    monkeypatch.setattr(failing, crash)
    with pytest.raises(OSError, match="no space"):
        run.monitor.save(state_file)
    monkeypatch.undo()
    assert state_file.read_bytes() == before
    assert [p.name for p in state_file.parent.iterdir()] == [state_file.name], "a temporary file was left behind"
    run.monitor.save(state_file)
    assert state_file.read_bytes() != before


def test_an_interrupt_while_writing_leaves_the_old_file(state_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = state_file.read_bytes()

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Run().monitor.save(state_file)
    assert state_file.read_bytes() == before
    assert len(list(state_file.parent.iterdir())) == 1


def same_state(one: dict, other: dict) -> bool:
    def same(a, b) -> bool:
        if isinstance(a, torch.Tensor):
            return torch.equal(a.nan_to_num(7), b.nan_to_num(7)) and a.dtype == b.dtype
        return json.dumps(a) == json.dumps(b)

    return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)


def test_an_archive_that_lost_entries_is_refused(state_file: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(state_file) as archive, zipfile.ZipFile(tmp_path / "less.npz", "w") as less:
        for name in archive.namelist():
            if name != "directions.npy":
                less.writestr(name, archive.read(name))
    with pytest.raises(StateError, match="directions"):
        load_state(tmp_path / "less.npz")


def test_damaged_files_are_refused(state_file: Path, tmp_path: Path) -> None:
    """Any flipped byte is noticed, unless it is one that nobody reads (a date in the archive)."""
    good, whole = state_file.read_bytes(), load_state(state_file)
    path = tmp_path / "damaged.npz"
    rng = np.random.default_rng(0)
    refused = 0
    for position in [*range(40), *rng.integers(0, len(good), 150), *range(len(good) - 60, len(good))]:
        data = bytearray(good)
        data[int(position)] ^= int(rng.integers(1, 256))
        path.write_bytes(bytes(data))
        try:
            assert same_state(load_state(path), whole), f"byte {position} changed the state unnoticed"
        except StateError:
            refused += 1
    assert refused > 150


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_truncated_files_are_refused(state_file: Path, share: float, tmp_path: Path) -> None:
    path = tmp_path / "short.npz"
    path.write_bytes(state_file.read_bytes()[: int(share * state_file.stat().st_size)])
    run = Run(solver="subspace", curvature="lowrank")
    with pytest.raises(StateError, match=r"short\.npz is not a saved monitor state or is damaged"):
        run.monitor.load(path)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(2)}, tmp_path / "torch.npz")
    np.savez(tmp_path / "numpy.npz", a=np.ones(3))
    np.savez_compressed(tmp_path / "list.npz", meta=np.frombuffer(b"[1, 2]", dtype=np.uint8))
    np.save(tmp_path / "array.npy", np.ones(3))
    (tmp_path / "text.npz").write_text("hello")
    (tmp_path / "json.npz").write_text("{}")
    (tmp_path / "folder.npz").mkdir()
    save_state(tmp_path / "other.npz", {"version": 99})
    save_state(tmp_path / "nothing.npz", {})
    run = Run().train(2)
    before = run.monitor.state_dict()
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(StateError):
            run.monitor.load(path)
    assert same_state(run.monitor.state_dict(), before)
    with pytest.raises(FileNotFoundError):
        run.monitor.load(tmp_path / "missing.npz")


# --- the wrong state --------------------------------------------------------------------------------------------


def other_anchors(labels_only: bool = False) -> InfluenceMonitor:
    run = Run()
    inputs, labels = problem()
    held = labels[TRAINING:].clone()
    held[0] = (held[0] + 1) % CLASSES
    anchors = (inputs[TRAINING:], held) if labels_only else (inputs[TRAINING + 8 :], labels[TRAINING + 8 :])
    return InfluenceMonitor(
        run.model, run.optimizer, anchors=anchors, max_anchors=24, replace_every=2, replace_share=0.2
    )


def other_model() -> InfluenceMonitor:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, CLASSES))
    inputs, labels = problem()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    anchors = (inputs[TRAINING:], labels[TRAINING:])
    return InfluenceMonitor(model, optimizer, anchors=anchors, max_anchors=24, replace_every=2, replace_share=0.2)


def other_groups() -> InfluenceMonitor:
    run = Run()
    inputs, labels = problem()
    anchors = (inputs[TRAINING:], labels[TRAINING:])
    options = {"max_anchors": 24, "replace_every": 2, "replace_share": 0.2}
    return InfluenceMonitor(run.model, run.optimizer, anchors, groups=lambda label: (label + 1) % CLASSES, **options)


MISFITS = {
    "another model": (other_model, "another model"),
    "other anchors": (other_anchors, "other anchors"),
    "other labels": (lambda: other_anchors(True), "other anchors"),
    "other groups": (other_groups, "groups"),
    "other layers": (lambda: Run(layers="all").monitor, "watched layers"),
    "fewer anchors": (lambda: Run(max_anchors=20).monitor, "max_anchors"),
    "solver": (lambda: Run(solver="neumann").monitor, "solver='richardson'"),
    "curvature": (lambda: Run(curvature="diagonal").monitor, "curvature='kfac'"),
    "kappa": (lambda: Run(kappa=3.0).monitor, "kappa=None"),
    "kappa_memory": (lambda: Run(kappa_memory=1.0).monitor, "kappa_memory=0.0"),
    "weigh_steps": (lambda: Run(weigh_steps=False).monitor, "weigh_steps=True"),
    "refresh_every": (lambda: Run(refresh_every=2).monitor, "refresh_every=None"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_a_state_of_something_else_is_refused_and_changes_nothing(misfit: str) -> None:
    make, message = MISFITS[misfit]
    state = Run().train(5).monitor.state_dict()
    monitor = make()
    inputs, labels = problem()

    def step(first: int) -> None:
        with monitor.step(range(first, first + 8)):
            rows = slice(first, first + 8)
            nn.functional.cross_entropy(monitor.model(inputs[rows]), labels[rows]).backward()

    step(0)
    last = monitor.last
    before = monitor.state_dict()
    with pytest.raises(StateError, match=message):
        monitor.load_state_dict(state)
    assert same_state(monitor.state_dict(), before)
    assert monitor.last is last
    step(8)
    assert np.isfinite(monitor.scores()["influence"]).sum() == 16


def test_every_missing_or_misshapen_entry_is_refused_and_rolled_back() -> None:
    state = Run(solver="subspace", curvature="lowrank").train(5).monitor.state_dict()
    run = Run(solver="subspace", curvature="lowrank").train(2)
    before = run.monitor.state_dict()
    for key in state.keys() - {"curvature.rank"}:  # a rank may be left out, it is that of the basis
        with pytest.raises(StateError):
            run.monitor.load_state_dict({k: v for k, v in state.items() if k != key})
        assert same_state(run.monitor.state_dict(), before), key
    for key in (k for k, v in state.items() if isinstance(v, torch.Tensor) and v.dim() and k != "solver.basis"):
        with pytest.raises(StateError):
            run.monitor.load_state_dict({**state, key: state[key][:1]})
        assert same_state(run.monitor.state_dict(), before), key
    run.train(1)


def test_settings_that_do_not_change_a_score_may_change_on_resume() -> None:
    state = Run().train(5).monitor.state_dict()
    other = Run(level=0.5, anchor_batch=7, skip_nonfinite=True, allow_duplicates=True)
    other.monitor.load_state_dict(state)
    assert other.monitor.steps == 5


def test_a_state_may_be_read_after_the_hooks_are_gone(tmp_path: Path) -> None:
    run = Run().train(5)
    run.monitor.close()
    run.monitor.save(tmp_path / "state.npz")
    other = Run()
    other.model.load_state_dict(run.model.state_dict())
    other.monitor.load(tmp_path / "state.npz")
    assert_same(run.monitor, other.monitor)
