"""Toy devices, and exhaustive search over every layout of the families, and over every placement.

Accesses are ((kind, width, rows), weight): `rows` has the first element of each lane, or None, for each
instruction of one warp. Elements and words are 4 bytes.
"""

import itertools
import math
from functools import cache

from layoutopt.hardware.devices import Device, PhaseRule
from oracle.banks import busiest
from oracle.problem_file import device_of


def device_file(lanes, banks, widths=(4, 8), stores=None):
    """A device as the data of a device file.

    Accesses of at most a word are served by all lanes at once, 8 bytes by halves, 16 by quarters. Stores may
    see another number of banks.
    """
    rows = [
        {"ops": [op], "bytes": [width], "phase": lanes // max(1, width // 4), "banks": seen}
        for width in widths
        for op, seen in (("load", banks), ("store", stores or banks))
    ]
    rows.append({"ops": ["atomic"], "bytes": [4], "phase": lanes, "count": "lanes"})
    device = {"name": f"toy_{lanes}_{banks}", "lanes": lanes, "banks": banks, "bank_bytes": 4}
    return {"devices": [{**device, "instructions": rows}]}


@cache
def rules(lanes, banks, widths=(4, 8), stores=None):
    """Its rules."""
    return device_of(device_file(lanes, banks, widths, stores), f"toy_{lanes}_{banks}").rules


def toy_device(lanes, banks, widths=(4, 8), stores=None):
    """The same device, as the package has it."""
    given = {key: PhaseRule(**vars(rule)) for key, rule in rules(lanes, banks, widths, stores).items()}
    return Device(f"toy_{lanes}_{banks}", "toy", lanes, banks, 4, given)


def excess(accesses, lanes, table, banks, stores=None):
    """Weighted wavefronts above the ideal; `table`: the word of every element."""
    total = 0
    for (kind, width, rows), weight in accesses:
        rule = rules(lanes, banks, stores=stores)[kind, width]
        for row, phase in itertools.product(rows, rule.phases):
            words = [table[row[n] + k] for n in phase if row[n] is not None for k in range(width // 4)]
            if words:
                cost, ideal = busiest(words, rule)
                total += weight * (cost - ideal)
    return total


def every_placement(elements, accesses, lanes, banks):
    """Least excess over all banks of all words, and the fewest words of storage at that excess.

    Words that no access touches fill what is left.
    """
    pairs = starts_of_pairs(accesses)
    touched = {e for (_, _, rows), _ in accesses for row in rows for e in row if e is not None}
    heads = sorted((touched | pairs) - {e + 1 for e in pairs})
    choices = [range(0, banks, 2) if e in pairs else range(banks) for e in heads]
    best = None
    for chosen in itertools.product(*choices):
        table, height = {}, [0] * banks
        for row, (e, bank) in enumerate(zip(heads, chosen, strict=True)):
            for k in range(2 if e in pairs else 1):
                table[e + k] = row * banks + bank + k
                height[bank + k] += 1
        need = max((n - 1) * banks + b + 1 for b, n in enumerate(height) if n)
        value = excess(accesses, lanes, table, banks), max(elements, need)
        best = value if best is None else min(best, value)
    return best


def starts_of_pairs(accesses):
    """First elements of 8-byte accesses."""
    return {e for (_, width, rows), _ in accesses if width == 8 for row in rows for e in row if e is not None}


def linearisations(shape, vector, banks, families, starts, multiple=1, within=None):
    """(element offsets by row-major index, span, whether a swizzle may be added).

    `multiple`: words of which every pitch but the innermost is a multiple; of pitches only. `within`: words
    within which pads of whole dimensions may be of any length, where they may be swizzled.
    """
    for found in tables(shape, vector, banks, families, starts, multiple, within):
        if all(whole(found[0], vector, start) for start in starts):
            yield found


def whole(table, vector, start):
    """Is the access that starts at this element whole and aligned?"""
    place = table[start]
    return place % vector == 0 and all(table[start + k] == place + k for k in range(vector))


def tables(shape, vector, banks, families, starts, multiple, within):
    """The same, whether or not accesses are whole and aligned."""
    far = within if {"pad", "xor"} <= set(families) else None
    if "matrix" in families:
        for table in matrices(shape, vector):
            yield table, len(table), True
    dims = range(len(shape))
    cuts = [(d, c) for d in dims for c in range(2, shape[d]) if shape[d] % c == 0]
    for count in range(3):
        if count and "split" not in families:
            continue
        for chosen in itertools.combinations(cuts, count):
            digits = []
            for d in dims:
                marks = [1, *sorted(c for dim, c in chosen if dim == d), shape[d]]
                if any(b % a for a, b in itertools.pairwise(marks)):
                    break
                digits += [(d, low, high // low) for low, high in itertools.pairwise(marks)]
            else:
                for order in itertools.permutations(digits):
                    if count == 0 and "rotate" in families and ("order" in families or list(order) == digits):
                        yield from turned(shape, order, vector, banks, families)
                    if count == 0 and "order" not in families and list(order) != digits:
                        continue
                    if count == 0 and "interval" in families:
                        for table in intervals(shape, order, vector, banks):
                            yield table, max(table) + 1, False
                    yield from pitched(shape, order, vector, banks, families, count, starts, multiple, far)


def summed(shape, digits, strides):
    """At every coordinate the sum of its digits (dimension, divisor, size), each times a stride."""
    terms = list(zip(digits, strides, strict=True))
    every = itertools.product(*map(range, shape))
    return [sum(x[d] // low % size * stride for (d, low, size), stride in terms) for x in every]


def dense(digits):
    """Strides without pads, the last digit innermost."""
    return [math.prod(size for _, _, size in digits[k + 1 :]) for k in range(len(digits))]


def matrices(shape, vector):
    """Every order of the coordinate bits, those inside a vector kept; any swizzle may follow."""
    if any(n & (n - 1) for n in shape) or vector > shape[-1]:
        return
    bits = [(d, 1 << b, 2) for d in reversed(range(len(shape))) for b in range(shape[d].bit_length() - 1)]
    low = vector.bit_length() - 1
    for rest in itertools.permutations(bits[low:]):
        yield summed(shape, [*bits[:low], *rest], [1 << place for place in range(len(bits))])


def intervals(shape, order, vector, banks):
    """A pad after every N elements of a dense order: a power of two, or what cuts one dimension evenly."""
    last, _, line = order[-1]
    if vector > 1 and (last != len(shape) - 1 or (line % vector and len(order) > 1)):
        return
    places = summed(shape, order, dense(order))
    lengths = {1 << bit for bit in range(1, len(places).bit_length())}
    for stride, (_, _, size) in zip(dense(order), order, strict=True):
        lengths |= {stride * cut for cut in range(1, size + 1) if size % cut == 0}
    for every in lengths:
        if 1 < every < len(places):
            for extra in range(1, banks):
                yield [v + v // every * extra for v in places]


def turned(shape, order, vector, banks, families):
    """Lines rotated, each by `turn` elements against the line before, at any pitch."""
    last, _, line = order[-1]
    if vector > 1 and last != len(shape) - 1:
        return
    if len(order) < 2:
        return
    pads = range(banks) if "pad" in families else (0,)
    rows = summed(shape, order[:-1], dense(order[:-1]))
    inside = summed(shape, order[-1:], [1])
    for pad, turn in itertools.product(pads, range(1, line)):
        table = [r * (line + pad) + (x + turn * r) % line for r, x in zip(rows, inside, strict=True)]
        if len(table) > line:
            yield table, max(table) + 1, "xor" in families and not pad


def unit_of(digit, shape, vector, starts):
    """What the stride of a digit must be a multiple of, for vectors to stay aligned."""
    d, low, size = digit
    inner = math.prod(shape[d + 1 :])
    digits = {e // inner % shape[d] // low % size for e in starts}
    return vector // math.gcd(vector, *digits) if digits else 1


def pitched(shape, order, vector, banks, families, count, starts, multiple, far):
    last = len(shape) - 1
    if vector > 1 and not (
        order[-1][:2] == (last, 1) and (order[-1][2] % vector == 0 or order[-1][2] == shape[last])
    ):
        return
    most = {0: 2, 1: 1, 2: 0}[count] if "pad" in families else 0
    # The stride of one value binds nothing, nor does the innermost of the others.
    inner = max((k for k, (_, _, size) in enumerate(order) if size > 1), default=0)
    asked = [multiple if k < inner and size > 1 else 1 for k, (_, _, size) in enumerate(order[:-1])]
    own = [unit_of(digit, shape, vector, starts) for digit in order[:-1]]
    for each in {tuple(map(math.lcm, asked, own)), tuple(asked)}:  # aligned one by one, or in sum
        yield from of_units(shape, order, banks, families, count, each, far, most)


def of_units(shape, order, banks, families, count, units, far, most):
    beyond = banks if far is None or count else max(banks, far)
    for pads in itertools.product(*(range(0, max(beyond, u + 1), u) for u in units)):
        if sum(p > 0 for p in pads) > most:
            continue
        strides, gaps = [1], False
        for (_, _, size), pad, unit in zip(reversed(order[1:]), reversed(pads), reversed(units), strict=True):
            tight = strides[0] * size
            stride = -(-tight // unit) * unit + pad
            gaps |= stride > tight
            strides.insert(0, stride)
        if gaps and "pad" not in families:
            continue
        table = summed(shape, order, strides)
        swizzled = "xor" in families and not (count and gaps)
        yield table, max(table) + 1, swizzled


def swizzles(span, banks, vector):
    """Every unit triangular swizzle: bank bits, flipped by bits above them.

    Bits inside the widest vector are flipped by bits above the banks only.
    """
    high = banks.bit_length() - 1
    top = max(high, (span - 1).bit_length())
    rows = [range(0, 1 << top, 1 << (bit + 1 if 1 << bit >= vector else high)) for bit in range(high)]
    for choice in itertools.product(*rows):
        yield dict(enumerate(choice))


def apply(swizzle, offset):
    return offset ^ sum((offset & mask).bit_count() % 2 << bit for bit, mask in swizzle.items())


@cache
def moved(span, banks, vector):
    """Of every swizzle, where each word goes."""
    return [[apply(one, word) for word in range(span)] for one in swizzles(span, banks, vector)]


def best(shape, accesses, lanes, banks, families, multiple=1, most=None):
    """The least weighted excess, and the fewest elements of storage at that excess."""
    found = None
    for offsets in layouts(shape, accesses, banks, families, multiple, most):
        size = max(offsets) + 1
        # What takes more and cannot be better is not counted.
        if (most is None or size <= most) and not (found is not None and found[0] == 0 and size > found[1]):
            value = excess(accesses, lanes, offsets, banks), size
            found = value if found is None else min(found, value)
    return found


def best_by_bytes(shape, accesses, lanes, banks, families, multiple=1):
    """The same by storage first: its fewest elements, and the least weighted excess in them."""
    every = [*layouts(shape, accesses, banks, families, multiple)]
    least = 1 + min(map(max, every))
    return min(excess(accesses, lanes, o, banks) for o in every if max(o) + 1 == least), least


def layouts(shape, accesses, banks, families, multiple=1, within=None):
    """Every layout of the families that keeps the vectors whole, once each."""
    vector = max(width // 4 for (_, width, _), _ in accesses)
    starts = starts_of_pairs(accesses)
    seen = set()
    for table, span, swizzled in linearisations(shape, vector, banks, families, starts, multiple, within):
        for places in moved(span, banks, vector) if swizzled else [range(span)]:
            offsets = tuple(places[word] for word in table)
            if offsets not in seen and all(whole(offsets, 2, start) for start in starts):
                seen.add(offsets)
                yield offsets
