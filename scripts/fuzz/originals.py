"""Valid problems, devices, records and traces, for the fuzzer of files to change."""

PROBLEMS = [
    {
        "schema": "layoutopt.problem/1",
        "name": "tile",
        "target": "sm_90",
        "tile": {"shape": [8, 8], "element": "f32"},
        "threads": 64,
        "accesses": [
            {"name": "rows", "op": "store", "bytes": 4, "index": ["tid // 8", "tid % 8"]},
            {"name": "columns", "op": "load", "bytes": 4, "index": ["tid % 8", "tid // 8"], "weight": 2},
        ],
        "layout": {"families": ["none", "pad", "xor"], "max_bytes": 512, "alignment_bytes": 128},
        "published": {"offset": "x0*9 + x1", "bytes": 288, "kind": "pad", "source": "s"},
        "known_optimum": {"excess": 0, "bytes": 256},
    },
    {
        "name": "half",
        "tile": {"shape": [16, 16], "element": "f16"},
        "threads": 32,
        "accesses": [
            {
                "name": "a",
                "op": "ldmatrix.x2",
                "index": ["lane % 16", "8*i"],
                "for": {"i": 2},
                "where": "lane < 16",
            },
            {
                "name": "b",
                "op": "store",
                "bytes": [8, 4],
                "index": ["tid % 16", "4*(tid // 16) + 8*i"],
                "for": {"i": 2},
            },
        ],
    },
    {
        "name": "packed",
        "tile": {"shape": [8, 32], "element": "s4"},
        "threads": 32,
        "accesses": [{"name": "a", "op": "load", "bytes": 4, "index": ["tid // 4", "8*(tid % 4)"]}],
    },
    {
        "name": "bins",
        "tile": {"shape": [4, 16], "element": "i32"},
        "threads": 32,
        "accesses": [
            {
                "name": "a",
                "op": "reduce",
                "bytes": 4,
                "index": ["warp", "b"],
                "any": {"b": 16},
                "any_is": "worst",
            }
        ],
    },
    {
        "name": "struct",
        "tile": {"shape": [6, 7], "element": {"bytes": 12}},
        "threads": 42,
        "accesses": [{"name": "a", "op": "load", "bytes": 4, "index": ["tid // 7", "tid % 7"]}],
        "layout": {"order": [1, 0]},
    },
    {
        "name": "dictated",
        "tile": {"shape": [16, 64], "element": "bf16"},
        "threads": 32,
        "layout": {"must_be": ["tma.128B"]},
        "accesses": [
            {
                "name": "a",
                "op": "store",
                "bytes": 16,
                "index": ["tid // 8 + 4*i", "8*(tid % 8)"],
                "for": {"i": 4},
            }
        ],
    },
    {
        "name": "moved",
        "tile": {"shape": [32, 16], "element": "f16"},
        "threads": 32,
        "accesses": [
            {"name": "fill", "op": "cp.async", "copy": {"bytes": 16}},
            {
                "name": "A",
                "op": "ldmatrix.x4",
                "fragment": "mma.m16n8k16.A.f16",
                "warps": [1, 1],
                "repeat": {"m": 2, "k": 1},
            },
        ],
    },
    {
        "name": "filled",
        "tile": {"shape": [64, 64], "element": "f16"},
        "threads": 32,
        "accesses": [
            {"name": "fill", "op": "tma.load", "box": [64, 64], "mode": "128B"},
            {"name": "A", "op": "wgmma.A", "major": "K"},
            {"name": "rows", "op": "load", "bytes": 16, "index": ["tid", "8*i"], "for": {"i": 8}},
        ],
    },
    {
        "name": "chosen",
        "tile": {"shape": [16, 16], "element": "f32"},
        "threads": 32,
        "accesses": [
            {
                "name": "drain",
                "op": "load",
                "bytes": 4,
                "lanes": "free",
                "global": {"contiguous": 16, "order": "column"},
            },
            {
                "name": "fill",
                "op": "store",
                "bytes": 4,
                "index": ["tid // 16 + 2*i", "tid % 16"],
                "for": {"i": 8},
            },
        ],
        "block": {"other_shared_bytes": 1024, "registers": 64},
    },
    {
        "name": "hopper",
        "target": "sm_90a",
        "tile": {"shape": [64, 64], "element": "f16"},
        "threads": 256,
        "accesses": [
            {"name": "fill", "op": "tma.load", "multicast": 2},
            {"name": "A", "op": "wgmma.A", "mn": [0]},
            {
                "name": "results",
                "op": "stmatrix.x4",
                "fragment": "wgmma.m64n8k16.C.f32",
                "warps": [1, 1],
                "first_warp": 4,
                "repeat": {"n": 8},
            },
        ],
        "block": {"cluster": 2},
    },
    {
        "name": "two",
        "threads": 32,
        "tiles": [
            {"name": "A", "shape": [4, 8], "element": "f32", "stages": 2},
            {"name": "B", "shape": [8, 4], "element": "f32"},
        ],
        "accesses": [
            {"name": "a", "tile": "A", "op": "load", "bytes": 4, "index": ["tid // 8", "tid % 8"]},
            {"name": "b", "tile": "B", "op": "load", "bytes": 4, "index": ["tid % 8", "tid // 8"]},
        ],
        "overlay": [["A"], ["B"]],
        "layout": {"max_bytes": 4096},
    },
]
DEVICES = {
    "schema": "layoutopt.devices/1",
    "devices": [
        {
            "name": "sm_90",
            "title": "toy",
            "aliases": ["toy"],
            "lanes": 32,
            "banks": 8,
            "bank_bytes": 4,
            "instructions": [
                {
                    "ops": ["load", "store"],
                    "bytes": [1, 2, 4, 8, 16],
                    "phase": 32,
                    "confidence": "inferred",
                    "source": "s",
                }
            ],
        }
    ],
}
LANES = list(range(0, 128, 4))
RECORDS = [
    {"op": "ld.shared.b32", "active": "0xffffffff", "byte_address": LANES},
    {"op": "st.shared.v4.b32", "byte_address": [4 * a for a in LANES]},
]
TRACE = [
    {
        "access": "rows",
        "op": "st.shared.b32",
        "warp": w,
        "sequence": i,
        "active": "0xffffffff",
        "byte_address": [128 * w + 256 * i + a for a in LANES],
    }
    for w in range(2)
    for i in range(2)
]
TEMPLATE = {
    "name": "A {M}x{K}",
    "params": {"M": [8, 16], "K": [16, 32], "op": ["load", "store"]},
    "where": "M * K <= 256",
    "tile": {"shape": ["M", "K"], "element": "f32"},
    "threads": 32,
    "accesses": [
        {
            "name": "fill {op}",
            "op": "op",
            "bytes": 16,
            "index": ["(tid + 32*i) // (K // 4)", "4*(tid % (K // 4))"],
            "for": {"i": "M*K // 128"},
        },
        {"name": "columns", "op": "load", "bytes": 4, "index": ["tid % M", "i"], "for": {"i": "K"}},
    ],
}
SIZES = {
    "name": "any size",
    "sizes": [{"M": 8, "N": 16}, {"M": 16, "N": 32}],
    "tile": {"shape": ["M", "N"], "element": "f32"},
    "threads": 32,
    "accesses": [{"name": "columns", "op": "load", "bytes": 4, "index": ["tid % M", "i"], "for": {"i": "N"}}],
}
COORDINATES = {
    "name": "recorded",
    "tile": {"shape": [8, 8], "element": "f32"},
    "threads": 32,
    "accesses": [
        {
            "name": "rows",
            "op": "store",
            "bytes": 4,
            "coordinates": [[[4 * i + k // 8, k % 8] for k in range(32)] for i in range(2)],
        },
        {
            "name": "gather",
            "op": "load",
            "bytes": 4,
            "coordinates": [[[k * 3 % 8, k * 5 % 8] for k in range(32)]],
            "active": [[k != 7 for k in range(32)]],
            "weight": 3,
        },
    ],
}
