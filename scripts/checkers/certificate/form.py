"""The form of a certificate: its fields, and what kind of value each has."""

from certificate.problem import require

# Where a bound comes from.
GROUNDS = ("arithmetic", "the solver alone", "layoutopt's search")
# The layouts that a bound holds for, and what is said of each kind of them.
KINDS = {"every": set(), "families": {"families", "max_bytes"}, "hardware": {"by"}, "tiles": {"max_bytes"}}


def _whole(value, least):
    return type(value) is int and value >= least


def _said(value):
    return isinstance(value, str) and value != "" and value.isprintable()


# What a value is, by a word of a form.
IS = {
    "number": lambda value: type(value) in (int, float) and value >= 0,
    "whole": lambda value: _whole(value, 0),
    "positive": lambda value: _whole(value, 1),
    "power": lambda value: _whole(value, 1) and value & (value - 1) == 0,
    "text": lambda value: isinstance(value, str),
    "said": _said,
    "ground": lambda value: _said(value) and value.startswith(GROUNDS),
    "flag": lambda value: isinstance(value, bool),
    "object": lambda value: isinstance(value, dict),
    "list": lambda value: isinstance(value, list),
    "certificate": lambda value: value == "layoutopt.certificate/1",
}
# A form is such a word, or forms by field; (form, None) may be null too, [form] is one of every part.
RULE = {
    "bytes": "positive", "lanes_used": "whole", "phases": "list", "merges_pairs": "flag",
    "split_words": "flag", "serialises_equal": "flag", "row_words": "positive", "extra_wavefronts": "whole",
    "banks": "positive", "bank_bytes": "power",
}  # fmt: skip
BOUND = {"excess": "number", "scope": "said", "rests_on": "ground"}
BYTES = {"at_least": "whole", "scope": "said"}
REFUTED = {"refuted": "said", "max_bytes": ("whole", None), "rests_on": "ground"}
LAYOUT = {"byte_offsets": "list", "bytes": "positive", "wavefronts": "object", "excess": "number"}
# Fields whose values other checks look at, or that claim nothing.
OPTIONAL = {"schema", "status", "reason", "source", "digest", "covers"}
CERTIFICATE = {
    "schema": "certificate", "problem": "text", "target": "text", "constraints": "object",
    "bound": {**BOUND, "by": "said"}, "bytes": BYTES, "infeasible": (REFUTED, None), "layout": (LAYOUT, None),
    "hardware": "object", "clique": ("object", None), "packing": ("object", None), "parity": ("object", None),
    "questions": "list", "weight_unit": "positive", "lanes": "positive", "banks": "positive",
    "bank_bytes": "power", "served": [RULE],
}  # fmt: skip
PLACE = {
    "tile": "text", "base_bytes": "whole", "stages": "positive", "stage_bytes": "positive",
    "bytes": "positive",
}  # fmt: skip
PART = {
    "tiles": "list", "base_bytes": "whole", "bases_bytes": "list", "stages": "positive",
    "stage_bytes": "positive", "places": [PLACE], "certificate": "object",
}  # fmt: skip
BLOCK = {
    "problem": "text", "target": "text", "status": "text", "max_bytes": ("positive", None),
    "bytes": ("positive", None), "excess": ("number", None), "bound": BOUND, "bytes_bound": BYTES,
    "tiles": "list",
}  # fmt: skip


def check_form(given, form, path=""):
    """Name the first field that is missing, has another form, or is none of a certificate's."""
    malformed = f"the certificate is malformed: {path or 'it'}"
    if isinstance(form, tuple):
        if given is None:
            return
        form, _ = form
    if isinstance(form, str):
        require(IS[form](given), f"{malformed} is {str(given)[:80]}")
        return
    require(
        isinstance(given, dict | list if isinstance(form, list) else dict),
        f"{malformed} is {str(given)[:80]}",
    )
    start = path and f"{path}."
    if isinstance(form, list):
        for name, part in given.items() if isinstance(given, dict) else enumerate(given):
            check_form(part, form[0], f"{start}{name}")
        return
    unknown = sorted(given.keys() - form.keys() - OPTIONAL)
    require(not unknown, f"{malformed}: {unknown[:1]} is no field of it")
    for name in form:
        require(name in given, f"{malformed}: {name} is missing")
        check_form(given[name], form[name], f"{start}{name}")
    covers = given.get("covers", {"layouts": "every"})
    kind = covers.get("layouts") if isinstance(covers, dict) else None
    require(kind in KINDS and covers.keys() == {"layouts", *KINDS[kind]}, f"{malformed}: covers")
