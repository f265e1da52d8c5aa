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
    return isinstance(value, str) and value != "" and value.isprintable()


def ground(value):
    return said(value) and value.startswith(("arithmetic", "the solver alone", "layoutopt's search"))


def flag(value):
    return isinstance(value, bool)


def table(value):
    return isinstance(value, dict)


def listed(value):
    return isinstance(value, list)


# The layouts that a bound holds for, and what is said of each kind of them.
KINDS = {"every": set(), "families": {"families", "max_bytes"}, "hardware": {"by"}, "tiles": {"max_bytes"}}


def layouts(value):
    kind = value.get("layouts") if isinstance(value, dict) else None
    return kind in KINDS and value.keys() == {"layouts", *KINDS[kind]}


def maybe(form):
    """The form, or null."""
    return "maybe", form


def each(form):
    """The form, of every value of an object or a list."""
    return "each", form


RULE = {
    "bytes": positive, "lanes_used": whole, "phases": listed, "merges_pairs": flag, "split_words": flag,
    "serialises_equal": flag, "row_words": positive, "extra_wavefronts": whole, "banks": positive,
    "bank_bytes": power,
}  # fmt: skip
SCOPE = {"scope": said}
BOUND = {"excess": number, **SCOPE, "rests_on": ground}
# Fields whose values other checks look at, or that claim nothing.
OPTIONAL = {"schema", "status", "reason", "source", "digest", "covers"}
CERTIFICATE = {
    "schema": lambda value: value == "layoutopt.certificate/1",
    "problem": text,
    "target": text,
    "constraints": table,
    "bound": {**BOUND, "by": said},
    "bytes": {"at_least": whole, **SCOPE},
    "infeasible": maybe({"refuted": said, "max_bytes": maybe(whole), "rests_on": ground}),
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
    "served": each(RULE),
}
PLACE = {"tile": text, "base_bytes": whole, "stages": positive, "stage_bytes": positive, "bytes": positive}
PART = {
    "tiles": listed, "base_bytes": whole, "bases_bytes": listed, "stages": positive, "stage_bytes": positive,
    "places": each(PLACE),
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
    "bytes_bound": {"at_least": whole, **SCOPE},
    "tiles": listed,
}


def check_form(given, form, path=""):
    """Name the first field that is missing, has another form, or is none of a certificate's."""
    malformed = f"the certificate is malformed: {path or 'it'}"
    kind, inner = form if isinstance(form, tuple) else ("", form)
    if kind == "maybe" and given is None:
        return
    if kind == "each":
        require(isinstance(given, dict | list), f"{malformed} is {str(given)[:80]}")
        for name, part in given.items() if isinstance(given, dict) else enumerate(given):
            check_form(part, inner, f"{path}{'.' * bool(path)}{name}")
    elif callable(inner):
        require(inner(given), f"{malformed} is {str(given)[:80]}")
    else:
        require(isinstance(given, dict), f"{malformed} is {str(given)[:80]}")
        unknown = sorted(given.keys() - inner.keys() - OPTIONAL)
        require(not unknown, f"{malformed}: {unknown[:1]} is no field of it")
        for name in inner:
            require(name in given, f"{malformed}: {name} is missing")
            check_form(given[name], inner[name], f"{path}{'.' * bool(path)}{name}")
        require(layouts(given.get("covers", {"layouts": "every"})), f"{malformed}: covers")
