"""What `convert` prints: the instructions of a conversion, round by round, and what is proved."""

from itertools import groupby

from layoutopt.ownership.conversion import Conversion
from layoutopt.report.text import columns


def conversion_report(name: str, found: Conversion) -> str:
    """The report of one conversion; rounds are alike, so that the first one stands for all."""
    lines = [f"{name}  {found.registers[0]} -> {found.registers[1]} registers  on {found.target}", ""]
    if found.status == "infeasible":
        return "\n".join([*lines, f"  infeasible: {found.reason}", ""])
    if not found.instructions:
        return "\n".join(
            [*lines, "  every thread holds what it wants: registers are renamed, nothing moves", ""]
        )
    rows: list[tuple[str, ...]] = [("instruction", "times", "registers of the first")]
    for op, group in groupby((i for i in found.instructions if i.round == 0), key=lambda i: i.op):
        same = list(group)
        rows.append((op, str(len(same)), ", ".join(map(str, same[0].registers))))
    lines += [f"  {line}" for line in columns(rows, {1})]
    rounds = f"{found.rounds} rounds like this" if found.rounds > 1 else "1 round"
    lines += ["", f"  {rounds}, {found.bytes:,} bytes of scratch, {2 * found.rounds - 1} barriers"]
    claim = f"{found.wavefronts:,} wavefronts"
    if found.status == "optimal":
        lines.append(f"  optimal: {claim}, the fewest in {found.proof.scope}; counted at every lane")
    else:
        lines.append(f"  feasible: {claim}, at least {found.proof.lower_bound:,} in {found.proof.scope}")
    if found.shuffles is not None:
        fewer = ", which is cheaper" if found.shuffles < found.wavefronts else ""
        lines.append(
            f"  nothing leaves its warp: shuffles do without scratch, {found.shuffles:,} at least{fewer}"
        )
    return "\n".join([*lines, ""])
