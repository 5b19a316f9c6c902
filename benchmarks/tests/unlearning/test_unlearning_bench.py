"""`sgoif-bench unlearning`: measures against peers and by hand, records against training again, a small run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sgoif.errors import SettingError
from sgoif.tasks.unlearning.head import HeadData
from sgoif.tasks.unlearning.newton import fit_head, minimise
from sgoif_bench.journal import Journal
from sgoif_bench.unlearning.deletions import KINDS, choose_groups, choose_singles
from sgoif_bench.unlearning.full import _ceiling, _related, compared
from sgoif_bench.unlearning.grid import KIND, METHOD, Deletions
from sgoif_bench.unlearning.heads import HeadStudy
from sgoif_bench.unlearning.measures import (
    certificates,
    column,
    columns,
    flips,
    intervals,
    pearson,
    ranks,
    shares,
    spearman,
    summarised,
)
from sgoif_bench.unlearning.run import main
from sgoif_bench.unlearning.settings import UnlearningSettings
from sgoif_bench.unlearning.table import figure, render

SMALL = (
    *("--sets", "digits", "--device", "cpu", "--epochs", "1", "--limit", "300", "--anchors", "60"),
    *(
        "--singles",
        "6",
        "--groups",
        "3",
        "--smallest",
        "3",
        "--largest",
        "8",
        "--full-groups",
        "2",
        "--full-seeds",
        "2",
    ),
)


def clouds(count: int, seed: int) -> HeadData:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    features = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    features[torch.arange(count), labels] += 1.5
    return HeadData(features, labels, 3)


@pytest.fixture(scope="module")
def study() -> HeadStudy:
    return HeadStudy(fit_head(clouds(90, 0), 1e-3), clouds(60, 1), clouds(60, 2))


class TestMeasures:
    def test_correlations_are_those_of_scipy(self) -> None:
        stats = pytest.importorskip("scipy.stats")
        generator = np.random.default_rng(0)
        x = generator.integers(0, 9, 50)  # with ties
        y = x + generator.normal(size=50)
        assert spearman(x, y) == pytest.approx(stats.spearmanr(x, y).statistic)
        assert pearson(x, y) == pytest.approx(stats.pearsonr(x, y).statistic)
        np.testing.assert_array_equal(ranks(x), stats.rankdata(x))
        table = generator.integers(0, 9, (50, 4))
        np.testing.assert_array_equal(ranks(table), stats.rankdata(table, axis=0))

    def test_what_does_not_vary_has_no_correlation(self) -> None:
        assert spearman([1, 1, 1], [1, 2, 3]) is None
        assert pearson([1, 2], [3, 3]) is None

    def test_figures_by_hand(self) -> None:
        records = [
            {
                "retrained": real,
                "retrained_test": real + 0.2,
                "test_error": 0.0,
                "predicted": {"newton": real + 0.1},
                "low": {"newton": real - 0.1},
                "high": {"newton": high},
                "population_low": {"newton": real},
                "population_high": {"newton": real + 0.25},
                "bound": {"newton": bound},
                "distance": {"newton": 1.0},
                "slack": 0.0,
                "loss_slack": 0.0,
                "flipped": 2,
                "announced": {"newton": 3},
                "announced_right": {"newton": 1},
                "certain_wrong": {"newton": 0},
            }
            for real, high, bound in ((0.5, 0.6, 3.0), (-0.5, -0.6, 0.5))
        ]
        assert shares(np.array([1.0, 0.7])) == pytest.approx(
            {"mean": 0.85, "median": 0.85, "least": 0.7, "most_of_the_way": 0.5}
        )
        found = certificates(records, "newton")
        assert (found["broken"], found["median_ratio"], found["least_ratio"]) == (1, 1.75, 0.5)
        interval = intervals(records, "newton")
        assert (interval["coverage"], interval["population_coverage"]) == (0.5, 1.0)
        assert interval["median_width"] == pytest.approx((0.2 + 0.0) / 2)
        turned = flips(records, "newton")
        assert (turned["announced"], turned["real"], turned["right"]) == (6, 4, 2)
        assert (turned["precision"], turned["recall"]) == pytest.approx((1 / 3, 1 / 2))
        assert columns([{"a": 1, "b": {"c": 2}}, {"a": 3, "b": {"c": 4}}]) == {"a": [1, 3], "b": {"c": [2, 4]}}
        assert column(records, "bound", "newton").tolist() == [3.0, 0.5]

    def test_nothing_announced(self) -> None:
        quiet = [{"flipped": 0, "announced": {"x": 0}, "announced_right": {"x": 0}, "certain_wrong": {"x": 0}}]
        assert flips(quiet, "x")["precision"] is None
        assert flips(quiet, "x")["recall"] is None


class TestDeletions:
    def test_singles(self) -> None:
        influence = torch.linspace(-1, 0.5, 40)
        chosen = choose_singles(Deletions(singles=10), influence, seed=3)
        assert [deletion.kind for deletion in chosen] == ["influential"] * 5 + ["random"] * 5
        assert [int(deletion.rows) for deletion in chosen[:5]] == [0, 1, 2, 3, 4]
        rows = [int(deletion.rows) for deletion in chosen]
        assert len(set(rows)) == 10
        assert rows == [int(d.rows) for d in choose_singles(Deletions(singles=10), influence, seed=3)]
        assert rows != [int(d.rows) for d in choose_singles(Deletions(singles=10), influence, seed=4)]
        with pytest.raises(SettingError, match="too many"):
            choose_singles(Deletions(singles=40), influence, seed=0)

    def test_groups(self) -> None:
        data = clouds(120, 0)
        chosen = choose_groups(Deletions(groups=9, smallest=5, largest=15), data.features, data.labels, seed=1)
        assert [deletion.kind for deletion in chosen] == list(KINDS) * 3
        for deletion in chosen:
            assert 5 <= len(deletion.rows) <= 15
            assert len(deletion.rows.unique()) == len(deletion.rows)
            if deletion.kind == "one class":
                assert len(data.labels[deletion.rows].unique()) == 1
            if deletion.kind == "cluster":
                x = data.features
                distance = (x - x[deletion.rows[0]]).norm(dim=1)
                outside = torch.ones(120, dtype=torch.bool)
                outside[deletion.rows] = False
                assert float(distance[deletion.rows].max()) <= float(distance[outside].min())
        with pytest.raises(SettingError, match="too large"):
            choose_groups(Deletions(largest=100), data.features, data.labels, seed=1)


class TestHeads:
    def test_a_record_is_what_training_again_says(self, study: HeadStudy) -> None:
        groups = choose_groups(Deletions(groups=3, smallest=4, largest=9), study.fitted.data.features,
                               study.fitted.data.labels, 0)  # fmt: skip
        for deletion in groups:
            record = study.record(deletion)
            left = torch.ones(90, dtype=torch.bool)
            left[deletion.rows] = False
            alone = study.fitted.data.take(left.nonzero().squeeze(1))
            star = minimise(type(study.fitted.objective)(alone, 1e-3)).w  # from zeros, on a copy
            assert record["moved"] == pytest.approx(float((study.fitted.w - star).norm()), rel=1e-6)
            held = study.held
            losses = [
                float(torch.nn.functional.cross_entropy(held.logits(w), held.labels)) for w in (star, study.fitted.w)
            ]
            assert record["retrained"] == pytest.approx(losses[0] - losses[1], rel=1e-5, abs=1e-10)
            assert record["predicted"]["removal"] == pytest.approx(record["retrained"], rel=1e-3, abs=1e-8)
            assert record["closed"]["removal"] > record["closed"]["newton"] > record["closed"]["influence"]
            assert record["closed"]["newton"] == pytest.approx(1 - record["distance"]["newton"] / record["moved"])
            assert record["bound"]["newton"] >= record["distance"]["newton"]
            assert record["size"] == len(deletion.rows)
            assert all(seconds > 0 for seconds in record["seconds"].values())
        found = summarised([study.record(deletion) for deletion in groups])
        assert found["certificate"]["newton"]["broken"] == 0
        assert found["interval"]["newton"]["coverage"] == 1.0
        assert found["spearman"]["removal"] == pytest.approx(1.0)
        assert found["flips"]["removal"]["certain_but_wrong"] == 0
        assert len(study.cold_seconds(groups[:2])) == 2


class TestFull:
    def test_the_ceiling(self) -> None:
        steady = np.arange(6)[:, None] + np.zeros((6, 4))
        assert _ceiling(steady) == pytest.approx(1.0)
        noise = np.random.default_rng(0).normal(size=(200, 4))
        found = _ceiling(noise)
        assert found is not None
        assert found < 0.4
        # Signal and noise of equal variance: a mean over four is known to 4 / (4 + 1), in shares of variance.
        generator = np.random.default_rng(1)
        mixed = generator.normal(size=(3000, 1)) + generator.normal(size=(3000, 4))
        assert _ceiling(mixed) == pytest.approx(np.sqrt(0.8), abs=0.02)
        assert _ceiling(np.zeros((3, 2))) is None

    def test_how_predictions_relate(self) -> None:
        changes = np.array([[1.0, 2.0], [0.0, 1.0], [3.0, 5.0]])
        found = _related(np.array([0.1, 0.0, 0.4]), changes)
        assert found["spearman"] == pytest.approx(1.0)
        assert found["network_size"] == pytest.approx((1.5 + 0.5 + 4) / 3)
        full = {
            "groups": [{"change": row, "own_change": row, "differing": [0.1, 0.3]} for row in changes.tolist()],
            "losses": [0.2, 0.4],
            "differing_by_chance": [0.2],
        }
        records = [{"predicted": {"removal": p}, "own_change": -p, "differing": 0.01} for p in (0.1, 0.0, 0.4)]
        both = compared(full, records)
        assert both["held_out"]["spearman"] == pytest.approx(1.0)
        assert both["deleted"]["spearman"] == pytest.approx(-1.0)
        assert both["differing"] == pytest.approx({"head": 0.01, "network": 0.2, "chance": 0.2})
        assert both["loss"]["mean"] == pytest.approx(0.3)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run."""
    pytest.importorskip("sklearn")
    out = tmp_path_factory.mktemp("bench") / "r.jsonl"
    assert main([*SMALL, "--out", str(out)], program="sgoif-bench unlearning") == 0
    return out


class TestRun:
    def test_a_run(self, result: Path) -> None:
        (line,) = KIND.read([result])
        assert (line["set"], line["seed"]) == ("digits", 0)
        assert line["examples"] + line["held_out"] == 300
        assert 58 <= line["held_out"] <= 62  # the same share of every class, rounded
        assert line["tested"] == 359
        assert line["command"].startswith("sgoif-bench unlearning --sets digits")
        assert line["versions"]["torch"] == torch.__version__
        assert len(line["singles"]["retrained"]) == 6
        assert line["singles"]["kind"] == ["influential"] * 3 + ["random"] * 3
        assert all(3 <= size <= 8 for size in line["groups"]["size"])
        for what in ("single", "group"):
            found = line["metrics"][what]
            assert found["certificate"]["newton"]["broken"] == 0
            assert found["interval"]["removal"]["coverage"] == 1.0
            assert found["closed"]["removal"]["least"] > 0.8
            assert found["spearman"]["removal"] > 0.9
        assert set(line["metrics"]["by_kind"]) == {
            "single, influential", "single, random", "group, random", "group, one class", "group, cluster",
        }  # fmt: skip
        full = line["full"]
        assert (full["groups"], full["seeds"]) == (2, 2)
        assert len(full["trained"]["groups"][0]["change"]) == 2
        assert "| digits | single | one Newton step |" in render([line])

    def test_what_is_done_is_not_done_again(self, result: Path, capfd: pytest.CaptureFixture[str]) -> None:
        before = result.read_bytes()
        assert main([*SMALL, "--out", str(result), "--json"], program="sgoif-bench unlearning") == 0
        streams = capfd.readouterr()
        assert "1 runs asked for, 1 already in" in streams.err
        assert len(json.loads(streams.out)["results"]) == 1
        assert result.read_bytes() == before

    def test_another_setting_is_another_run(self) -> None:
        keys = {
            job.key(METHOD)
            for changes in ({}, {"l2": 1e-3}, {"singles": 10}, {"epochs": 2}, {"full_groups": 1}, {"seeds": "1"})
            for job in UnlearningSettings(**changes).jobs()  # type: ignore[arg-type]
        }
        assert len(keys) == 6

    def test_whole_networks_are_trained_again_on_digits_alone_unless_asked_for(self) -> None:
        jobs = UnlearningSettings(sets="digits,cifar10").jobs()
        assert [job.deletions.full_groups for job in jobs] == [12, 0]
        assert UnlearningSettings(sets="mnist", full_groups=2, model="lenet").jobs()[0].deletions.full_groups == 2

    def test_a_foreign_file_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "r.jsonl").write_text('{"set": "digits", "seed": 0, "metrics": {}, "recipe": {}}\n')
        with (
            pytest.raises(SettingError, match="not a result of `sgoif-bench unlearning`"),
            Journal(tmp_path / "r.jsonl", KIND),
        ):
            pass

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["--sets", "nonsense"], "there is no data set"),
            (["--sets", "mnist"], "--data ROOT is needed"),
            (["--singles", "1"], "singles = 1 must be at least 4"),
            (["--largest", "5"], "largest = 5 must not be below smallest"),
            (["--l2", "0"], "l2 = 0.0 must be positive"),
            (["--full-groups", "99"], "full_groups = 99"),
            (["--limit", "400"], "too few for anchors"),
            (["--model", "abacus"], "there is no model"),
            (["--seeds", "x"], "--seeds takes whole numbers"),
        ],
    )
    def test_mistakes(self, tmp_path: Path, words: list[str], message: str, capfd: pytest.CaptureFixture[str]) -> None:
        assert main([*words, "--out", str(tmp_path / "r.jsonl")], program="sgoif-bench unlearning") == 2
        assert message in capfd.readouterr().err

    def test_figures_over_seeds(self) -> None:
        values: list[Any] = [0.5, 0.7, None]
        assert figure(values) == "0.600 ± 0.141"
        assert figure([0.5], 1, 100) == "50.0"
        assert figure([None]) == "–"
