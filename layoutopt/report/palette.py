"""Colours that are told apart with every common colour blindness, on light and on dark ground.

Phases take Okabe and Ito's colours in turn; lanes run along cividis, from dark blue to yellow.
"""

# Okabe, Ito: Color Universal Design (2008), without black; https://jfly.uni-koeln.de/color/
PHASES = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#0072B2", "#D55E00", "#BBBBBB")
# Nine points of cividis: Nunez, Anderton, Renslow, PLOS ONE 13(7), 2018.
_CIVIDIS = (
    (0, 34, 78), (34, 54, 107), (65, 77, 107), (96, 100, 111), (124, 123, 120), (155, 148, 119),
    (188, 174, 108), (222, 203, 88), (254, 232, 56),
)  # fmt: skip


def lane_colour(lane: int, lanes: int) -> str:
    """`#rrggbb` of a lane out of `lanes`."""
    place = lane / max(1, lanes - 1) * (len(_CIVIDIS) - 1)
    low = min(int(place), len(_CIVIDIS) - 2)
    part = place - low
    mixed = (round(a + (b - a) * part) for a, b in zip(_CIVIDIS[low], _CIVIDIS[low + 1], strict=True))
    return "#" + "".join(f"{value:02X}" for value in mixed)


def ink_on(colour: str) -> str:
    """Black or white, whichever reads better on `colour` (WCAG relative luminance)."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    r, g, b = (p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return "#000000" if 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.18 else "#FFFFFF"


def ansi(colour: str) -> int:
    """The nearest colour of the 6x6x6 cube that terminals have."""
    levels = (0, 95, 135, 175, 215, 255)
    parts = [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    r, g, b = (min(range(6), key=lambda k: abs(levels[k] - part)) for part in parts)
    return 16 + 36 * r + 6 * g + b
