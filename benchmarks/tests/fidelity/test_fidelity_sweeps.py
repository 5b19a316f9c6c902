"""The best step of a sweep, and tables of methods that answered equally many queries by one interval."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sgoif_bench.fidelity.grid import KIND, Key
from sgoif_bench.fidelity.lds import bootstrap
from sgoif_bench.fidelity.registry import METHODS, steps_of
from sgoif_bench.fidelity.settings import FidelitySettings
from sgoif_bench.fidelity.sweeps import best_step
from sgoif_bench.fidelity.table import FidelityTableSettings
from sgoif_bench.tables.layout import render

RESULTS = Path(__file__).parents[2] / "results"


def line(method: str, lds: float, seed: int = 0, queries: int = 4, **further: Any) -> dict[str, Any]:
    key = Key("digits", 0.1, method, seed, "a", METHODS[method].form)._asdict()
    origin = {"shared": False, "kind": "peer", "recipe": {"queries": 4}, "queries": 4, "error": None, "seconds": 2.0}
    return {**key, **origin, "metrics": {"lds": lds, "lds_by_query": [lds] * queries}, **further}


def by_seed(*values: float) -> dict[int, dict[str, Any]]:
    return {seed: {"metrics": {"lds": value}} for seed, value in enumerate(values)}


def test_the_best_step_is_that_with_the_highest_mean_over_common_seeds():
    found = {"lissa": by_seed(0.3, 0.3), "lissa-0.1": by_seed(0.1, 0.6), "lissa-1": by_seed(0.32, 0.2)}
    assert best_step(found, "lissa") == "lissa-0.1"
    found["lissa-0.001"] = by_seed(0.0)  # now the first seed alone counts
    assert best_step(found, "lissa") == "lissa-1"
    assert best_step({"lissa": by_seed(0.3), "sgoif": by_seed(0.9)}, "lissa") is None
    assert best_step({"lissa": {0: by_seed(0.3)[0]}, "lissa-1": {1: by_seed(0.1)[0]}}, "lissa") is None


def test_every_sweep_has_its_first_step_and_others():
    sweeps = {entry.sweep for entry in METHODS.values() if entry.sweep}
    assert sweeps == {"trak-1", "if-cg", "lissa", "datainf", "ggn-cg"}
    assert all(sweep in steps_of(sweep) and len(steps_of(sweep)) >= 4 for sweep in sweeps)
    ridges = [METHODS[name].run.keywords.get("ridge", 0.0) for name in steps_of("trak-1")]
    assert ridges == [METHODS[name].step for name in steps_of("trak-1")] == [0.0, 0.001, 0.01, 0.1, 1.0, 10.0]


def test_the_best_step_has_a_row_of_its_own_that_is_not_compared():
    lines = [line("trak-1", 0.2), line("trak-1-ridge", 0.5), line("trak-1-ridge-10", 0.4), line("ekfac", 0.3)]
    rows = render(lines, FidelityTableSettings(metric="lds")).splitlines()
    title = METHODS["trak-1-ridge"].title
    assert f"| {title}: best of its sweep, chosen on these figures | 0.500 | 1 |" in rows
    assert f"| {title} | **0.500** | 1 |" in rows
    assert sum("chosen on these figures" in row for row in rows) == 1
    assert "chosen" not in render([line("trak-1", 0.2), line("ekfac", 0.3)], FidelityTableSettings(metric="lds"))


def test_methods_that_answered_fewer_queries_stand_in_a_table_of_their_own():
    shown = render([line("ekfac", 0.3), line("sgoif", 0.4), line("lissa", 0.9, queries=2)], FidelityTableSettings())
    tables = shown.split("**digits, ")[1:]
    assert [table.split("**")[0] for table in tables] == [
        "10% wrong labels, 2 queries",
        "10% wrong labels, 4 queries",
    ]
    assert "LiSSA" in tables[0]
    assert "LiSSA" not in tables[1]


def test_a_former_form_is_no_step_and_is_named(tmp_path: Path):
    old = {name: value for name, value in line("ggn-cg", 0.9).items() if name != "form"}
    lines = [old, line("ggn-cg-0.1", 0.5), line("ggn-cg-1", 0.4)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    shown = render(KIND.read([tmp_path / "a.jsonl"]), FidelityTableSettings(metric="lds"))
    assert "Gauss–Newton, CG, 0.01 (curvlinops), former" in shown
    assert "Gauss–Newton, CG, 0.1 (curvlinops): best" in shown


def test_a_mended_method_is_computed_anew_and_the_others_are_not():
    job = FidelitySettings(methods="ggn-cg,ekfac").jobs()[0]
    assert job.key("ggn-cg").form == 2
    old = {name: value for name, value in job.key("ekfac")._asdict().items() if name != "form"}
    assert KIND.key_of(old) == job.key("ekfac") == Key(**old)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("fidelity-*.jsonl")), ids=lambda path: path.stem)
def test_intervals_of_all_methods_are_those_of_one_procedure(path: Path):
    looked = 0
    for text in path.read_text().splitlines()[::9]:
        metrics = json.loads(text)["metrics"]
        values = np.array(metrics["lds_by_query"])
        assert (metrics["lds_low"], metrics["lds_high"]) == pytest.approx(bootstrap(values), abs=1e-3)
        looked += 1
    assert looked
