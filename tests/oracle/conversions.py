"""Conversions executed byte by byte, and by plain loops the fewest wavefronts over every linear layout."""

import itertools

WORD = 4


def element(bases, register, lane, warp):
    """Coordinates of the element that a register of a thread holds."""
    at = None
    for part, number in (("register", register), ("lane", lane), ("warp", warp)):
        for bit, vector in enumerate(bases.get(part, ())):
            at = [0] * len(vector) if at is None else at
            if number >> bit & 1:
                at = [a ^ b for a, b in zip(at, vector, strict=True)]
    return tuple(at or ())


def moved(instruction, element_bytes):
    """(warp, lane, register, byte address) of every element that an instruction moves."""
    matrix = "matrix" in instruction["op"]
    for warp, addresses in enumerate(instruction["byte_address"]):
        if not matrix:
            for lane, start in enumerate(addresses):
                if start >= 0:
                    assert start % instruction["bytes"] == 0
                    for k, register in enumerate(instruction["registers"]):
                        yield warp, lane, register, start + k * element_bytes
        elif addresses[0] >= 0:
            yield from matrices(instruction, warp, addresses, element_bytes)


def matrices(instruction, warp, addresses, element_bytes):
    """The same of 8x8 matrices of 16 bits: lane l holds row l // 4, units 2 (l % 4) and the next; transposed,
    column l // 4 of those rows (PTX ISA, ldmatrix and stmatrix)."""
    count = int(instruction["op"].split(".x")[1][0])
    held = WORD // element_bytes  # elements of one register of 32 bits
    unit = max(1, 2 // element_bytes)
    assert all(a % 16 == 0 for a in addresses[: 8 * count])
    assert set(addresses[8 * count :]) <= {-1}
    for matrix, lane, k in itertools.product(range(count), range(len(addresses)), range(held)):
        row, byte = lane // 4, (lane % 4) * WORD + k * element_bytes
        if instruction["op"].endswith(".trans"):
            row, byte = 2 * (lane % 4) + k // unit, (lane // 4) * 2 + (k % unit) * element_bytes
        yield warp, lane, instruction["registers"][matrix * held + k], addresses[8 * matrix + row] + byte


def execute(found, source, destination, element_bytes):
    """What every register of the destination holds in the end, as coordinates: (warp, lane, register) to element.

    `found`: a conversion as JSON. Memory of one round is not there in the next.
    """
    out = {}
    for number in range(found["rounds"]):
        memory = {}
        for instruction in (i for i in found["instructions"] if i["round"] == number):
            for warp, lane, register, address in moved(instruction, element_bytes):
                assert 0 <= address <= found["bytes"] - element_bytes
                if instruction["kind"] == "store":
                    memory[address] = element(source, register, lane, warp)
                else:
                    out[warp, lane, register] = memory[address]
    warps, lanes = (1 << len(destination[part]) for part in ("warp", "lane"))
    for warp, lane, (to, origin) in itertools.product(range(warps), range(lanes), found["register_copies"]):
        held = out[warp, lane, origin] if found["instructions"] else element(source, origin, lane, warp)
        out[warp, lane, to] = held
    return out


def expected(destination):
    """The same as it should be."""
    counts = [range(1 << len(destination[part])) for part in ("warp", "lane", "register")]
    return {(w, n, r): element(destination, r, n, w) for w, n, r in itertools.product(*counts)}
