"""Machine code written by hand, as kernels."""

import msgspec

from layoutopt.hardware.devices import device
from layoutopt.kernels.machine.evaluate import evaluate
from layoutopt.kernels.machine.launch import Launch
from layoutopt.kernels.read import sass


def listing(*lines, name="k"):
    """The text of these instructions, which `; ` parts; one that ends with a colon is a label."""
    text, address = ["code for sm_90", f" Function : {name}"], 0
    for line in "; ".join(lines).split("; "):
        if line.endswith(":"):
            text.append(f".L_{line}")
        else:
            text.append(f" /*{address:04x}*/ {line} ;")
            address += 16
    return "\n".join((*text, ""))


def program(*lines, **fields):
    """The kernel of these instructions, EXIT behind them."""
    (found,) = sass.from_text(listing(*lines, "EXIT"))
    return msgspec.structs.replace(found, **fields)


def counted(*lines, threads=32, **options):
    """Instructions evaluated, behind those that put the thread into R1 and the place of its word into R2."""
    launch = Launch(block=(threads, 1, 1), **options)
    return evaluate(program("S2R R1, SR_TID.X", "SHF.L.U32 R2, R1, 0x2, RZ", *lines), launch, device("sm_90"))
