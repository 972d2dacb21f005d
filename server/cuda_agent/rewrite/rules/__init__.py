"""The catalogue, most promising first. One file a rule; each file's docstring is its page in docs/rules/."""

from __future__ import annotations

from cuda_agent.rewrite.rule import Rule
from cuda_agent.rewrite.rules.aggregate_atomics import AggregateAtomics
from cuda_agent.rewrite.rules.barrier import Barrier
from cuda_agent.rewrite.rules.batch_loads import BatchLoads
from cuda_agent.rewrite.rules.batch_walk import BatchWalk
from cuda_agent.rewrite.rules.block_shape import BlockShape
from cuda_agent.rewrite.rules.block_size import BlockSize
from cuda_agent.rewrite.rules.block_table import BlockTable
from cuda_agent.rewrite.rules.coalesce import Coalesce
from cuda_agent.rewrite.rules.coarsen import Coarsen
from cuda_agent.rewrite.rules.coarsen_block import CoarsenBlock
from cuda_agent.rewrite.rules.coarsen_rows import CoarsenRows
from cuda_agent.rewrite.rules.coarsen_window import CoarsenWindow
from cuda_agent.rewrite.rules.divide import Divide
from cuda_agent.rewrite.rules.fast_math import FastMath
from cuda_agent.rewrite.rules.float_literals import FloatLiterals
from cuda_agent.rewrite.rules.grid_size import GridSize
from cuda_agent.rewrite.rules.inline import Inline
from cuda_agent.rewrite.rules.integer_sums import IntegerSums
from cuda_agent.rewrite.rules.interchange import Interchange
from cuda_agent.rewrite.rules.launch_bounds import LaunchBounds
from cuda_agent.rewrite.rules.load_early import LoadEarly
from cuda_agent.rewrite.rules.pad import Pad
from cuda_agent.rewrite.rules.prefetch import Prefetch
from cuda_agent.rewrite.rules.private_table import PrivateTable
from cuda_agent.rewrite.rules.promote import Promote
from cuda_agent.rewrite.rules.restrict import Restrict
from cuda_agent.rewrite.rules.row_per_warp import RowPerWarp
from cuda_agent.rewrite.rules.scan_by_warps import ScanByWarps
from cuda_agent.rewrite.rules.share_array import ShareArray
from cuda_agent.rewrite.rules.specialise import Specialise
from cuda_agent.rewrite.rules.split_independent import SplitIndependent
from cuda_agent.rewrite.rules.split_reduction import SplitReduction
from cuda_agent.rewrite.rules.stage import Stage
from cuda_agent.rewrite.rules.stage_walk import StageWalk
from cuda_agent.rewrite.rules.stream_hints import StreamHints
from cuda_agent.rewrite.rules.sum_blocks import SumBlocks
from cuda_agent.rewrite.rules.tabulate import Tabulate
from cuda_agent.rewrite.rules.tile import Tile
from cuda_agent.rewrite.rules.tile_product import TileProduct
from cuda_agent.rewrite.rules.unroll import Unroll
from cuda_agent.rewrite.rules.vector_columns import VectorColumns
from cuda_agent.rewrite.rules.vector_inner import VectorInner
from cuda_agent.rewrite.rules.vector_loop import VectorLoop
from cuda_agent.rewrite.rules.vectorize import Vectorize
from cuda_agent.rewrite.rules.warp_per_block import WarpPerBlock
from cuda_agent.rewrite.rules.warp_reduce import WarpReduce

RULES: tuple[Rule, ...] = (
    RowPerWarp(),
    Coalesce(),
    SplitReduction(),
    SplitIndependent(),
    WarpPerBlock(),
    WarpReduce(),
    ScanByWarps(),
    Tile(),
    PrivateTable(),
    BlockTable(),
    ShareArray(),
    TileProduct(),
    Stage(),
    StageWalk(),
    Pad(),
    CoarsenBlock(),
    CoarsenWindow(),
    AggregateAtomics(),
    GridSize(),
    SumBlocks(),
    BlockSize(),
    Vectorize(),
    VectorLoop(),
    VectorInner(),
    VectorColumns(),
    BlockShape(),
    Restrict(),
    Unroll(),
    Tabulate(),
    Interchange(),
    Promote(),
    Specialise(),
    BatchWalk(),
    BatchLoads(),
    LoadEarly(),
    Divide(),
    FloatLiterals(),
    IntegerSums(),
    Coarsen(),
    CoarsenRows(),
    Prefetch(),
    StreamHints(),
    Barrier(),
    LaunchBounds(),
    Inline(),
    FastMath(),
)
