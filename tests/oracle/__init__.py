"""What tests and fuzzers hold the package against: plain loops, written from the documentation alone.

`banks` is the rule of the banks, one instruction at a time; `problem_file` executes a problem file by it, and
`answers` holds an answer against that. `toy` lists every layout of the families, and every placement, of tiles
of a few words; `members` draws random layouts of the families, `placements` random placements of larger tiles,
`random_tiles` random tiny problems. Nothing here imports the engine or the model: hardware is its data alone.
"""
