// The part of CUB that the emulator has: reductions of a block and of a warp.
#pragma once

#include "block/block_reduce.cuh"
#include "warp/warp_reduce.cuh"
