"""How many blocks fit on a multiprocessor: shared memory, threads, block slots and, where known, registers.

The arithmetic of NVIDIA's `cuda_occupancy.h`: a block takes its bytes and what the driver reserves,
rounded up to the allocation unit. AMD's compute units are filled by the same rules with their own units
(LLVM's AMDGPUBaseInfo.cpp). Where the registers of a thread are not known, these are upper bounds.
"""

from msgspec import Struct

from layoutopt.hardware.devices import Device, Limits

_SUB_PARTITIONS = 4  # of a multiprocessor (AMD: SIMDs); each has its share of the registers


class Occupancy(Struct, frozen=True):
    """What fits."""

    blocks: int  # resident blocks of one multiprocessor; 0 where not even one fits
    by_shared_memory: int  # resident blocks if shared memory were the only limit
    limited_by: str  # shared memory, threads, block slots or registers; what decides `blocks`
    stages: int  # copies of the tile, each at the base alignment, that fit in one block


def occupancy(
    tile_bytes: int,
    alignment_bytes: int,
    threads: int,
    gpu: Device,
    target: str,
    *,
    other_bytes: int = 0,
    registers: int | None = None,
) -> Occupancy | None:
    """Blocks and stages of a kernel.

    Args:
        tile_bytes: what the layout takes.
        alignment_bytes: of the base; the copies of a pipeline are this far apart, or a multiple.
        threads: of the block.
        gpu: the device.
        target: the name by which it was asked for, which picks the chip.
        other_bytes: shared memory of the block beside the tile.
        registers: of a thread; None where not known.

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
    by_memory = _by_shared_memory(tile_bytes + other_bytes, limits)
    # The first of equals is named: what the reader can change comes first.
    options = [
        ("shared memory", by_memory),
        ("threads", limits.threads // gpu.lanes // warps),
        ("block slots", slots),
    ]
    if registers is not None and limits.registers is not None:
        of_a_warp = -(-registers * gpu.lanes // limits.register_unit) * limits.register_unit
        warps_that_fit = limits.registers // _SUB_PARTITIONS // of_a_warp * _SUB_PARTITIONS
        options.append(("registers", warps_that_fit // warps))
    limited_by, blocks = min(options, key=lambda option: option[1])
    step = -(-tile_bytes // alignment_bytes) * alignment_bytes
    rest = limits.shared_bytes_per_block - tile_bytes - other_bytes
    stages = 1 + rest // step if rest >= 0 else 0
    return Occupancy(blocks, by_memory, limited_by, stages)


def _by_shared_memory(tile_bytes: int, limits: Limits) -> int:
    if tile_bytes > limits.shared_bytes_per_block:
        return 0
    unit = limits.allocation_bytes
    taken = -(-(tile_bytes + limits.reserved_bytes_per_block) // unit) * unit
    return limits.shared_bytes // taken
