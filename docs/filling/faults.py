"""Tables of the page about what happens when things go wrong."""

from __future__ import annotations

from collections.abc import Callable

from filling.cells import read_result, table

PAGE = "faults.md"
FILE = "faults.json"
PHASES = ("starting", "reading images", "before the first checkpoint", "training", "writing results", "finished")


def kills() -> str:
    """How many kills, when, and what came of the audits."""
    found = read_result(FILE)["summary"]
    rows = [[f"killed: {phase}", str(found["kills_by_phase"].get(phase, 0))] for phase in PHASES]
    rows += [
        ["killed in all", str(found["kills"])],
        ["of these, while a file was being written", str(found["kills_in_a_write"])],
        ["of these, in a fresh interpreter", str(found["fresh_interpreters"])],
        ["files that had their name and were not whole, or progress that went back", str(found["partial_files"])],
        ["audits that were killed, once or many times", str(found["audits"])],
        ["of these, resumed to their end", str(found["audits_finished"])],
        ["of these, with the table of an undisturbed audit, byte for byte", str(found["audits_with_the_same_table"])],
    ]
    return table(["", "count"], rows)


def inputs() -> str:
    """Every bad input with its exit code and the sentence it got."""
    rows = []
    for case in read_result(FILE)["inputs"]:
        said = case["said"].replace("|", "\\|").replace("`", "'").removeprefix("sgoif: ")
        said = f"{said[:150]}…" if len(said) > 150 else said
        rows.append([f"`{said}`", case["case"], str(case["exit_code"]), "yes" if case["ok"] else "**no**"])
    lines = [[name, code, ok, said] for said, name, code, ok in rows]
    return table(["what", "exit code", "as expected", "what is said"], lines)


def fuzz() -> str:
    """Damaged files by reader."""
    whole = read_result("faults-fuzz-third.json")["fuzz"]
    rows = [
        [
            name,
            f"{counts['files']:,}",
            f"{counts['read']:,}",
            f"{sum(counts['errors'].values()):,}",
            str(len(counts["crashes"])),
        ]
        for name, counts in whole["readers"].items()
    ]
    total = [sum(counts[key] for counts in whole["readers"].values()) for key in ("files", "read")]
    errors = sum(sum(counts["errors"].values()) for counts in whole["readers"].values())
    crashes = sum(len(counts["crashes"]) for counts in whole["readers"].values())
    rows.append(
        [f"**all, {whole['seconds'] / 60:.0f} minutes**", f"{total[0]:,}", f"{total[1]:,}", f"{errors:,}", str(crashes)]
    )
    return table(["reader", "damaged files", "still readable", "documented error", "crash"], rows)


TABLES: dict[str, Callable[[], str]] = {"faults-kills": kills, "faults-inputs": inputs, "faults-fuzz": fuzz}
