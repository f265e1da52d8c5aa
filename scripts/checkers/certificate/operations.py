"""What the operations of a problem file are."""

import re

# A spelling, and its kind where no group says it. Groups: bytes b, bits n, vector v, words w, matrices m.
SPELLINGS = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"(?P<kind>load|store|atomic|reduce)", None),
        (r"(?P<kind>ldmatrix|stmatrix)(\.sync)?(\.aligned)?(\.m8n8)?\.x(?P<m>[124])(\.trans)?"
         r"(\.shared(::cta)?)?(\.b16)?", None),
        (r"ld(\.\w+)*\.shared(::cta)?(\.v(?P<v>[24]))?\.[busf](?P<n>\d+)", "load"),
        (r"st(\.\w+)*\.shared(::cta)?(\.v(?P<v>[24]))?\.[busf](?P<n>\d+)", "store"),
        (r"ds_(read|load)_[bui](?P<n>\d+)", "load"),
        (r"ds_(write|store)_[bui](?P<n>\d+)", "store"),
        (r"ds_read_b(?P<n>96|64)_tr_b(16|8|6|4)", "load.tr"),
        (r"(buffer|global)_load_dword(x(?P<w>[34]))?[. ]lds", "load.lds"),
        (r"global_load_lds_dword(x(?P<w>[34]))?", "load.lds"),
        (r"(?P<kind>cp\.async(\.c[ag])?)(\.shared(::cta)?)?(\.global)?(\.L2::\w+)?(\.(?P<b>4|8|16))?", None),
        (r"red(\.\w+)*?\.shared(::cta)?(\.\w+)*?\.add\.u(?P<n>32)", "reduce"),
        (r"(atom|red)(\.\w+)*?\.shared(::cta)?(\.\w+)*?\.[busf](?P<n>32|64)", "atomic"),
        (r"(?P<engine>tma)\.(load|store)|(?P<unit>wgmma|tcgen05)\.[AB]|(?P<copy>cp\.async\.bulk)", None),
    )
)  # fmt: skip


def operation(access):
    """Kind, bytes where the spelling says them, matrices; nothing of a spelling that is not known here."""
    for pattern, kind in SPELLINGS:
        if match := pattern.fullmatch(str(access.get("op"))):
            said = {name: int(text) for name, text in match.groupdict().items() if text and len(name) == 1}
            words = [text for name, text in match.groupdict().items() if text and len(name) > 1]
            kind, wide = kind or words[0], said.get("b")
            if "n" in said:
                wide = said["n"] // 8 * said.get("v", 1)
            elif "m" in said:
                wide = 16
            elif kind == "load.lds":
                wide = 4 * said.get("w", 1)
            return kind, wide, said.get("m", 0)
    return None
