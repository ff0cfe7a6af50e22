"""The report on the faults: a table by folder, and the code of the survivors."""

from pathlib import Path

from .verdicts import Verdict


def read_equivalent(path: Path) -> dict[str, str]:
    """Faults that change nothing that anybody can see: a name on each line that is not indented, below it the reason."""
    reasons: dict[str, str] = {}
    name = ""
    for line in path.read_text().splitlines() if path.exists() else []:
        if line.startswith("    ") and name:
            reasons[name] = f"{reasons[name]} {line.strip()}".strip()
        elif line.strip() and not line.startswith("#"):
            name = line.strip()
            reasons[name] = ""
    unexplained = [name for name, reason in reasons.items() if not reason]
    if unexplained:
        raise ValueError(f"{path}: {unexplained[0]} has no reason: write one below it, indented")
    return reasons


def print_report(folders: list[str], verdicts: list[Verdict], equivalent: dict[str, str]) -> float:
    """Prints it all; returns the share that was caught of those that are not equivalent."""
    judged = [verdict for verdict in verdicts if verdict.fault.name not in equivalent]
    for verdict in verdicts:
        if verdict.fault.name in equivalent and verdict.why is not None:
            print(f"\nsaid to be equivalent, and caught: {verdict.fault.name}\n    {verdict.why}")
    print("\nSurvivors:")
    for verdict in judged:
        if verdict.why is None:
            fault = verdict.fault
            print(f"\n{fault.name}\n    {fault.path}:{fault.line}: {fault.statement}\n    {verdict.tests} tests pass")
    print(f"\n{'folder':<28}{'faults':>8}{'equivalent':>12}{'caught':>8}{'survived':>10}")
    for folder in folders:
        of_folder = [verdict for verdict in verdicts if verdict.fault.path.startswith(f"{folder}/")]
        alive = sum(verdict.why is None for verdict in of_folder)
        same = sum(verdict.fault.name in equivalent for verdict in of_folder)
        survived = sum(verdict.why is None for verdict in of_folder if verdict in judged)
        print(f"{folder:<28}{len(of_folder):>8}{same:>12}{len(of_folder) - alive:>8}{survived:>10}")
    caught = sum(verdict.why is not None for verdict in judged)
    share = caught / len(judged) if judged else 1.0
    print(f"\ncaught {caught} of {len(judged)} that are not equivalent: {share:.1%}")
    return share
