"""How many blocks fit on a multiprocessor, as far as shared memory, threads and block slots decide.

The arithmetic of NVIDIA's `cuda_occupancy.h`: a block takes its bytes and what the driver reserves,
rounded up to the allocation unit. Registers are not known here, so the numbers are upper bounds.
"""

from __future__ import annotations

from msgspec import Struct

from layoutopt.hardware.devices import Device, Limits


class Occupancy(Struct, frozen=True):
    """What fits.

    Attributes:
        blocks: resident blocks of one multiprocessor; 0 where not even one fits.
        by_shared_memory: resident blocks if shared memory were the only limit.
        limited_by: shared memory, threads or block slots; what decides `blocks`.
        stages: copies of the tile, each at the base alignment, that fit in one block.
    """

    blocks: int
    by_shared_memory: int
    limited_by: str
    stages: int


def occupancy(
    tile_bytes: int, alignment_bytes: int, threads: int, gpu: Device, target: str
) -> Occupancy | None:
    """Blocks and stages of a kernel whose only shared memory is the tile.

    Args:
        tile_bytes: what the layout takes.
        alignment_bytes: of the base; the copies of a pipeline are this far apart, or a multiple.
        threads: of the block.
        gpu: the device.
        target: the name by which it was asked for, which picks the chip.

    Returns:
        None where the chip's limits are not in the device data.
    """
    limits = gpu.limits_of(target)
    if limits is None:
        return None
    warps = -(-threads // gpu.lanes)
    slots = limits.blocks
    if warps == 1 and limits.single_warp_blocks is not None:
        slots = limits.single_warp_blocks
    by_memory = _by_shared_memory(tile_bytes, limits)
    # The first of equals is named: what the reader can change comes first.
    options = (
        ("shared memory", by_memory),
        ("threads", limits.threads // gpu.lanes // warps),
        ("block slots", slots),
    )
    limited_by, blocks = min(options, key=lambda option: option[1])
    step = -(-tile_bytes // alignment_bytes) * alignment_bytes
    rest = limits.shared_bytes_per_block - tile_bytes
    stages = 1 + rest // step if rest >= 0 else 0
    return Occupancy(blocks, by_memory, limited_by, stages)


def _by_shared_memory(tile_bytes: int, limits: Limits) -> int:
    if tile_bytes > limits.shared_bytes_per_block:
        return 0
    unit = limits.allocation_bytes
    taken = -(-(tile_bytes + limits.reserved_bytes_per_block) // unit) * unit
    return limits.shared_bytes // taken
