//@ head
#pragma once
#include <cute/layout.hpp>
#include <cute/swizzle.hpp>
#include <cute/swizzle_layout.hpp>

constexpr int @NAME@_bytes = @BYTES@;
constexpr int @NAME@_alignment = @ALIGNMENT@;

//@ use
// cute::make_tensor(cute::make_smem_ptr(smem), @NAME@_layout{}), smem aligned to @NAME@_alignment
//@ composed
using @NAME@_layout =
    cute::ComposedLayout<@OUTER@, cute::Int<0>, @LINEAR@>;

//@ functor
// No Swizzle<B, M, S> is this layout: CuTe's moves one run of bits, this one moves others too.
// The functor takes Swizzle's place; it maps the Layout's offset to the one in the tile.
struct @NAME@_swizzle {
    template <class Offset>
    CUTE_HOST_DEVICE constexpr int operator()(Offset const& offset) const {
        int v = offset;
@STEPS@    }
};
//@ formula
// The layout is given as a formula, so this is a functor of the coordinates, not a cute::Layout:
// it can be called as one, but not partitioned.
struct @NAME@_layout {
    CUTE_HOST_DEVICE constexpr int operator()(@PARAMETERS@) const {
@UNUSED@        return @TEXT@;
    }
};

//@ no_atom
// For CuTe's TMA and matrix instructions an atom (GMMA::Layout_K_SW128_Atom, ...) would have
// to tile it, and none does.
//@ atom

// The same for CuTe's TMA and matrix instructions, which know it by its atom; its coordinates are
// @COORDINATES@.
#include <cute/tensor.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>
using @NAME@ = decltype(cute::tile_to_shape(
    cute::GMMA::@ATOM@<@KIND@>{},
    cute::Shape<@EXTENTS@>{}, cute::Step<@STEP@>{}));
using @NAME@_offset = decltype(cute::as_position_independent_swizzle_layout(@NAME@{}));
