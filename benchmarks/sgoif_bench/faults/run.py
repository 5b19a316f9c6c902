"""Kills, bad inputs and damaged files, as one command.

    sgoif-bench faults --kills 200 --fuzz-minutes 10 --out results/faults.json

Started again with the same file it goes on: kills that stand there count, inputs are tried again, minutes of fuzzing
are added. What goes wrong is in the file, with what reproduces it in the folder FILE-crashes; the exit code is then 1.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sgoif.core.provenance import machine, plain, versions, write_json
from sgoif.errors import SettingError
from sgoif_bench.command import Say, answered, check_writable, option_parser, say
from sgoif_bench.faults.settings import FaultSettings
from sgoif_bench.result_texts import command_line

PROGRAM = "python -m sgoif_bench.faults.run"
DEFAULT_OUT = "runs/faults.json"
Result = dict[str, Any]


def run_faults(settings: FaultSettings, out: Path, command: str, tell: Say = say) -> Result:
    """Kill audits at random moments, try bad inputs, and feed damaged files to every reader."""
    if not hasattr(os, "fork"):
        raise SettingError("`sgoif-bench faults` forks processes and kills them, which this system cannot do")
    from sgoif_bench.faults.cases import CASES, tried
    from sgoif_bench.faults.child import warm
    from sgoif_bench.faults.fuzz import fuzz
    from sgoif_bench.faults.kills import Kills

    check_writable(out)
    torch.set_num_threads(1)
    whole: Result = {**_found(out), "machine": machine(torch.device("cpu")), "versions": versions()}
    whole["commands"] = [*dict.fromkeys([*whole.get("commands", []), command])]

    def keep(name: str, value: Any) -> None:
        whole[name] = plain(value)
        write_json(out, whole)

    warm()
    with tempfile.TemporaryDirectory(prefix="sgoif-faults-") as place:
        work = Path(place)
        if settings.kills:
            runs: list[Result] = whole.get("runs", [])
            done = sum(len(run["kills"]) for run in runs)
            tell(f"{settings.kills} kills asked for, {done} already in {out}")
            if done < settings.kills:
                kills = Kills(work, settings.epochs, settings.seed, tell)
                for run in kills.runs(settings.kills - done, first=len(runs)):
                    keep("runs", [*whole.get("runs", []), run])
                    done += len(run["kills"])
                    verdict = "as undisturbed" if run_sound(run) else f"WRONG: {run}"
                    tell(f"[{done}/{settings.kills}] audit {run['run']}, killed {len(run['kills'])} times: {verdict}")
        if settings.inputs:
            results = []
            for number, case in enumerate(CASES):
                results.append(tried(case, work))
                mark = "as expected" if results[-1]["ok"] else f"WRONG: {results[-1]}"
                tell(f"[{number + 1}/{len(CASES)}] {case.name}: {mark}")
            keep("inputs", results)
        if settings.fuzz_minutes:
            crashes = out.with_name(f"{out.stem}-crashes")
            seconds = 60 * settings.fuzz_minutes
            keep("fuzz", fuzz(work, seconds, settings.seed, crashes, tell, whole.get("fuzz", {})))
    keep("summary", summary(whole))
    return whole


def _found(out: Path) -> Result:
    try:
        found = json.loads(out.read_text(encoding="utf-8"))
        if not isinstance(found, dict) or "commands" not in found:
            raise ValueError
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise SettingError(f"{out} is not a result of `sgoif-bench faults`; choose another file with --out") from error
    return found


def run_sound(run: Mapping[str, Any]) -> bool:
    """Whether an audit that was killed lost nothing."""
    clean = not run["problems"] and not run["left_over"] and all(not kill["problems"] for kill in run["kills"])
    return bool(clean and run["finished"] and run["same_table"])


def summary(whole: Mapping[str, Any]) -> Result:
    """Counts of what was tried and of what went wrong."""
    runs, inputs, fuzzed = whole.get("runs", []), whole.get("inputs", []), whole.get("fuzz", {}).get("readers", {})
    kills = [kill for run in runs for kill in run["kills"]]
    return {
        "kills": len(kills),
        "kills_by_phase": dict(Counter(kill["phase"] for kill in kills)),
        "kills_in_a_write": sum(kill["unfinished"] > 0 for kill in kills),
        "fresh_interpreters": sum(kill["interpreter"] == "fresh" for kill in kills),
        "partial_files": sum(len(kill["problems"]) for kill in kills),
        "audits": len(runs),
        "audits_finished": sum(run["finished"] for run in runs),
        "audits_with_the_same_table": sum(run["same_table"] for run in runs),
        "audits_sound": sum(map(run_sound, runs)),
        "inputs": len(inputs),
        "inputs_as_expected": sum(case["ok"] for case in inputs),
        "fuzz_minutes": round(whole.get("fuzz", {}).get("seconds", 0.0) / 60, 1),
        "fuzz_files": sum(reader["files"] for reader in fuzzed.values()),
        "fuzz_crashes": sum(len(reader["crashes"]) for reader in fuzzed.values()),
    }


def failed(found: Mapping[str, Any]) -> bool:
    """Whether anything went wrong, by its summary."""
    return bool(
        found["audits_sound"] < found["audits"]
        or found["inputs_as_expected"] < found["inputs"]
        or found["fuzz_crashes"]
    )


def show(whole: Mapping[str, Any]) -> str:
    """What a terminal shows."""
    found = whole["summary"]
    return (
        f"{found['kills']} kills: {found['audits_sound']} of {found['audits']} audits lost nothing;"
        f" {found['inputs_as_expected']} of {found['inputs']} bad inputs answered as they should;"
        f" {found['fuzz_files']:,} damaged files in {found['fuzz_minutes']} min: {found['fuzz_crashes']} crashes"
    )


def main(arguments: list[str] | None = None, program: str = PROGRAM) -> int:
    """Run from the command line; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    parsed = vars(option_parser(program, FaultSettings, run_faults.__doc__ or "", DEFAULT_OUT).parse_args(given))
    out, as_json = Path(parsed.pop("out")), parsed.pop("json")

    def act() -> int:
        whole = run_faults(FaultSettings(**parsed), out, command_line(program, given))
        print(json.dumps(whole, allow_nan=False) if as_json else show(whole))
        return int(failed(whole["summary"]))

    return answered(program, act)


if __name__ == "__main__":
    raise SystemExit(main())
