"""Problems of one tile as a file writes them, in one line each, and files of them."""

import json

FIELDS = ("where", "weight", "any", "any_is", "tile", "notes")


def one_tile(name, shape, element, threads, accesses, **more):
    """The data of a problem; `more`: its further fields."""
    tile = {"shape": shape, "element": element}
    return {"name": name, "tile": tile, "threads": threads, "accesses": accesses, **more}


def reads(name, width, index, **more):
    """A load of so many bytes a lane; `more`: its fields by their names, all others are loops of so many trips."""
    return _access(name, "load", width, index, more)


def writes(name, width, index, **more):
    """A store, likewise."""
    return _access(name, "store", width, index, more)


def _access(name, op, width, index, more):
    fields = {field: more.pop(field) for field in FIELDS if field in more}
    loops = {"for": more} if more else {}
    return {"name": name, "op": op, "bytes": width, "index": index, **loops, **fields}


def saved(folder, name, data):
    """The path of a file that holds the data as JSON."""
    path = folder / name
    path.write_text(json.dumps(data))
    return path


def batched_rows_and_columns(size, count, element, width):
    """Matrices of which each lane has a row, then a column; a warp spans several."""
    row, other = f"tid//{size}", f"tid%{size}"
    accesses = [
        writes("rows", width, [row, "j", other], j=size),
        reads("columns", width, [row, other, "j"], j=size),
    ]
    return one_tile("batched", [count, size, size], element, count * size, accesses, target="sm_90")


def planes():
    """Three lines of a plane of four points: every two meet, on two banks."""
    accesses = [reads(f"line {d}", 4, [f"(tid * {d}) ^ c"], c=4) for d in (1, 2, 3)]
    return one_tile("plane", [4], "f32", 2, accesses)
