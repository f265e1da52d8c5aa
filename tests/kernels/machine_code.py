"""Machine code written by hand, as kernels."""

import dataclasses

from layoutopt.kernels.read import sass


def program(*lines, parameters=None, **fields):
    """The kernel of these instructions, EXIT behind them; a line that ends with a colon is a label."""
    text, address = [], 0
    for line in (*lines, "EXIT"):
        if line.endswith(":"):
            text.append(f".L_{line}")
        else:
            text.append(f" /*{address:04x}*/ {line} ;")
            address += 16
    (found,) = sass.from_text("code for sm_90\n Function : k\n" + "\n".join(text) + "\n")
    if parameters is not None:
        fields["parameters"] = parameters
    return dataclasses.replace(found, **fields)
