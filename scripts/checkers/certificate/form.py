"""The form of a certificate: its fields, and what kind of value each has."""

from certificate.problem import require


def number(value):
    return type(value) in (int, float) and value >= 0


def whole(value):
    return type(value) is int and value >= 0


def positive(value):
    return type(value) is int and value > 0


def power(value):
    return positive(value) and value & (value - 1) == 0


def text(value):
    return isinstance(value, str)


def said(value):
    return isinstance(value, str) and value != ""


def flag(value):
    return isinstance(value, bool)


def table(value):
    return isinstance(value, dict)


def listed(value):
    return isinstance(value, list)


def maybe(form):
    """The form, or null."""
    return lambda value: value is None or (holds(value, form) if isinstance(form, dict) else form(value))


def holds(value, form):
    """Whether a value has its form: a test, or the forms of an object's fields."""
    if not isinstance(form, dict):
        return form(value)
    return isinstance(value, dict) and all(name in value and holds(value[name], form[name]) for name in form)


RULE = {
    "bytes": positive, "lanes_used": whole, "phases": listed, "merges_pairs": flag, "split_words": flag,
    "serialises_equal": flag, "row_words": positive, "extra_wavefronts": whole, "banks": positive,
    "bank_bytes": power,
}  # fmt: skip
BOUND = {"excess": number, "scope": said, "rests_on": said}
# Fields whose values other checks look at, or that claim nothing.
OPTIONAL = {"schema", "status", "reason", "source"}
CERTIFICATE = {
    "schema": lambda value: value == "layoutopt.certificate/1",
    "problem": text,
    "target": text,
    "constraints": table,
    "bound": {**BOUND, "by": said},
    "bytes": {"at_least": whole, "scope": said},
    "infeasible": maybe({"refuted": said, "max_bytes": maybe(whole), "rests_on": said}),
    "layout": maybe({"byte_offsets": listed, "bytes": positive, "wavefronts": table, "excess": number}),
    "hardware": table,
    "clique": maybe(table),
    "packing": maybe(table),
    "parity": maybe(table),
    "questions": listed,
    "weight_unit": positive,
    "lanes": positive,
    "banks": positive,
    "bank_bytes": power,
    "served": lambda value: table(value) and all(holds(rule, RULE) for rule in value.values()),
}
PLACE = {"tile": text, "base_bytes": whole, "stages": positive, "stage_bytes": positive, "bytes": positive}
PART = {
    "tiles": listed, "base_bytes": whole, "bases_bytes": listed, "stages": positive, "stage_bytes": positive,
    "places": lambda value: listed(value) and all(holds(place, PLACE) for place in value),
    "certificate": table,
}  # fmt: skip
BLOCK = {
    "problem": text,
    "target": text,
    "status": text,
    "max_bytes": maybe(positive),
    "bytes": maybe(positive),
    "excess": maybe(number),
    "bound": BOUND,
    "bytes_bound": {"at_least": whole, "scope": said},
    "tiles": listed,
}


def check_form(given, form, path=""):
    """Name the first field that is missing, has another form, or is none of a certificate's."""
    unknown = sorted(given.keys() - form.keys() - OPTIONAL)
    require(not unknown, f"the certificate is malformed: {path}{unknown[:1]} is no field of it")
    for name, inner in form.items():
        require(name in given, f"the certificate is malformed: {path}{name} is missing")
        if isinstance(inner, dict) and isinstance(given[name], dict):
            check_form(given[name], inner, f"{path}{name}.")
        fits = holds(given[name], inner)
        require(fits, f"the certificate is malformed: {path}{name} is {str(given[name])[:80]}")
