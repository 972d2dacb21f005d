# ruff: noqa: SIM905 (lists of words read best as text)
"""What device code of a candidate may call, and what it may not mention unless the original does (gate G0).

Names from the CUDA C++ Programming Guide (language extensions, mathematical functions) and the CUDA Math API.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import lru_cache

from cuda_agent.judge import half_names

# Word → why it may not be new. Whole words in device code, macros that become used included.
FORBIDDEN: dict[str, str] = {
    **dict.fromkeys(("asm", "__asm", "__asm__"), "inline assembly cannot be checked"),
    **dict.fromkeys(("printf", "fprintf", "puts", "putchar", "vprintf", "cout", "cerr"), "a kernel does not print"),
    **dict.fromkeys(("malloc", "free", "calloc", "realloc", "alloca", "new", "delete"), "device heap"),
    **dict.fromkeys(("__trap", "__brkpt", "abort", "exit", "assert"), "may stop the program"),
    **dict.fromkeys(
        ("clock", "clock64", "globaltimer", "__globaltimer", "__nanosleep", "__clock_hi"), "reads or spends time"
    ),
    **dict.fromkeys(("__prof_trigger", "__managed__"), "state outside the kernel's arguments"),
    "volatile": "it hides races from the checkers; barriers and atomics are for threads that work together",
    **dict.fromkeys(("goto", "setjmp", "longjmp", "try", "throw"), "control flow that cannot be checked"),
    **dict.fromkeys(
        ("system", "popen", "fopen", "exec", "execv", "execve", "fork", "dlopen", "getenv", "syscall"), "host call"
    ),
}
_COMPLEX = r"C(?:real|imag|onj|add|sub|mul|div|abs|fma)f?\b|(?:Float|Double)?Complex\b"  # cuComplex.h is device code
_HOST_CALL = re.compile(rf"cuda[A-Z]\w*|cu(?!{_COMPLEX})[A-Z]\w*|nvrtc\w*|nccl\w*|cublas\w*")

# What may stand in a new `__attribute__((…))` or `[[…]]`; others change the arithmetic, or run code at load time.
ATTRIBUTES = frozenset(
    ("aligned", "always_inline", "noinline", "packed", "unused", "maybe_unused", "nodiscard", "likely", "unlikely")
)

# What `__float2half`, `__floats2bfloat162_rn` begin with.
_INTO = r"__(?:floats?2?|double|u?int|u?short|u?ll)"

# Precision downgrades: opt-in name → pattern of whole words.
PRECISION: dict[str, re.Pattern[str]] = {
    "half": re.compile(rf"_*half2?(_raw)?|{_INTO}2half2?\w*|__u?short_as_half|make_half2|_Float16|half1"),
    "bf16": re.compile(
        rf"_*(nv_)?bfloat16\w*|{_INTO}2bfloat16\w*|__u?short_as_bfloat16|make_bfloat162|bf16|__nv_fp[468]\w*|__nv_cvt\w*"
    ),
    "tf32": re.compile(r"tf32|__float_to_tf32|wmma|mma_sync|nvcuda"),
    "fast-math": re.compile(
        r"__(exp|exp10|log|log2|log10|pow|sin|cos|tan|sincos|tanh)f|__fdividef|__use_fast_math__|__frsqrt_approx"
        r"|__f(add|sub|mul|div|rcp|sqrt|maf)_r[uzd]|__fma(f)?_r[uzd]|__[hd](add|mul|div)_r[uzd]|h2?tanh_approx|ftz|__nv_fast_\w+"
    ),
}

# Functions that are a downgrade where the original computes in no half precision; `__hadd` is one of integers, too.
HALVES = ("half", "bf16")
_HALF_ARITHMETIC = half_names.ARITHMETIC - {"__hadd"}

# Types whose names people also give to variables (`int half = n / 2`): they count as types only.
ALSO_NAMES = frozenset(("half", "half1", "half2", "tf32", "bf16", "ftz"))

_MATH = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh cospi cyl_bessel_i0 cyl_bessel_i1 erf erfc "
    "erfcinv erfcx erfinv exp exp10 exp2 expm1 fabs fdim fdivide floor fma fmax fmin fmod frexp hypot ilogb isfinite "
    "isinf isnan j0 j1 jn ldexp lgamma llrint llround log log10 log1p log2 logb lrint lround modf nan nearbyint "
    "nextafter norm norm3d norm4d normcdf normcdfinv pow powi rcbrt remainder remquo rhypot rint rnorm rnorm3d rnorm4d "
    "round rsqrt scalbln scalbn signbit sin sincos sincospi sinh sinpi sqrt tan tanh tgamma trunc y0 y1 yn abs"
).split()
_INTEGER = (
    "abs labs llabs min max umin umax llmin llmax ullmin ullmax __mul24 __umul24 __mulhi __umulhi __mul64hi __umul64hi "
    "__popc __popcll __clz __clzll __ffs __ffsll __brev __brevll __byte_perm __funnelshift_l __funnelshift_lc "
    "__funnelshift_r __funnelshift_rc __sad __usad __hadd __rhadd __uhadd __urhadd __dp4a __dp2a_hi __dp2a_lo "
    "__fns __saturatef clamp div_up ceil_div swap sizeof alignof decltype move forward declval"
).split()
_ROUNDED = (
    "__fadd_rn __fsub_rn __fmul_rn __fdiv_rn __frcp_rn __fsqrt_rn __frsqrt_rn __fmaf_rn __fmaf_ieee_rn __dadd_rn "
    "__dsub_rn __dmul_rn __ddiv_rn __drcp_rn __dsqrt_rn __fma_rn __int_as_float __float_as_int __uint_as_float "
    "__float_as_uint __longlong_as_double __double_as_longlong __hiloint2double __double2hiint __double2loint"
).split()
_MEMORY = (
    "__ldg __ldca __ldcg __ldcs __ldlu __ldcv __stwb __stcg __stcs __stwt __threadfence __threadfence_block "
    "__isGlobal __isShared __cvta_generic_to_shared __cvta_generic_to_global __builtin_assume __builtin_assume_aligned "
    "__assume __pipeline_memcpy_async __pipeline_commit __pipeline_wait_prior memcpy_async __builtin_expect memcpy "
    "memset atomicAdd atomicSub atomicExch atomicMin atomicMax atomicInc atomicDec atomicCAS atomicAnd atomicOr "
    "atomicXor atomicAdd_block atomicMax_block atomicMin_block __prefetch_local __prefetch_global_l1 "
    "__prefetch_global_l2"
).split()
_WARP = (
    "__syncthreads __syncthreads_count __syncthreads_and __syncthreads_or __syncwarp __activemask __all_sync "
    "__any_sync "
    "__ballot_sync __uni_sync __match_any_sync __match_all_sync __shfl_sync __shfl_up_sync __shfl_down_sync "
    "__shfl_xor_sync __reduce_add_sync __reduce_min_sync __reduce_max_sync __reduce_and_sync __reduce_or_sync "
    "__reduce_xor_sync this_thread_block tiled_partition coalesced_threads this_thread invoke_one"
).split()
_VECTORS = [
    f"{prefix}{kind}{width}"
    for prefix in ("", "make_")
    for kind in "char uchar short ushort int uint long ulong longlong ulonglong float double".split()
    for width in range(1, 5)
]
_TYPES = (
    "bool char short int long unsigned float double size_t int8_t int16_t int32_t int64_t uint8_t uint16_t uint32_t "
    "uint64_t uchar ushort uint ulong auto dim3 uintptr_t intptr_t ptrdiff_t static_cast reinterpret_cast const_cast "
    "bit_cast numeric_limits infinity epsilon lowest is_same plus less greater bit_and bit_or bit_xor "
    "__launch_bounds__ __maxnreg__ "
    "aligned_size_t __align__ alignas __attribute__ static_assert"
).split()

CALLS = frozenset(
    [
        *half_names.ARITHMETIC,
        *half_names.CONVERSIONS,
        *_MATH,
        *(f"{name}f" for name in _MATH),
        *_INTEGER,
        *_ROUNDED,
        *_MEMORY,
        *_WARP,
        *_VECTORS,
        *_TYPES,
        "reduce",
    ]
)
METHODS = frozenset(
    (
        "sync thread_rank thread_index block_rank group_index size num_threads num_blocks meta_group_rank "
        "meta_group_size "
        "shfl shfl_down shfl_up shfl_xor any all ballot match_any match_all dim_threads"
    ).split()
)
LAUNCH_CALLS = frozenset(
    ("dim3", "min", "max", "sizeof", "static_cast", "int", "unsigned", "size_t", "ceil_div", "uint")
)
INCLUDES = frozenset(
    ("cooperative_groups.h", "cooperative_groups/reduce.h", "cuda_pipeline.h", "cuda_pipeline_primitives.h")
)


def forbidden(word: str) -> str | None:
    """Why a word may not be new in device code; None when it may."""
    if word in FORBIDDEN:
        return FORBIDDEN[word]
    return "host call" if _HOST_CALL.fullmatch(word) else None


def downgrade(word: str, allow: frozenset[str]) -> str | None:
    """Name of the precision downgrade a word stands for, unless the person allowed it."""
    if word in _HALF_ARITHMETIC:
        return None if allow & set(HALVES) else "half arithmetic"
    return next((name for name, words in PRECISION.items() if name not in allow and words.fullmatch(word)), None)


def held(words: Collection[str]) -> frozenset[str]:
    """What device code of these words has already, so that more of it is no downgrade: the half types that it stores;
    half arithmetic where it calls some, or has half types and no wider ones that the arithmetic could be in."""
    types = frozenset(kind for kind in HALVES if any(PRECISION[kind].fullmatch(word) for word in words))
    wider = any(re.fullmatch(r"(float|double)\d?|__(half|bfloat16|low|high)2?2float2?", word) for word in words)
    computes = not _HALF_ARITHMETIC.isdisjoint(words) or (types and not wider)
    return types | {"half arithmetic"} if computes else types


@lru_cache(maxsize=256)
def newly(kind: str, original: str, candidate: str) -> frozenset[str]:
    """The words of one precision downgrade that a candidate has and its original lacks."""
    return _words(kind, candidate) - _words(kind, original)


def _words(kind: str, text: str) -> frozenset[str]:
    return frozenset(word for word in set(re.findall(r"\w+", text)) if PRECISION[kind].fullmatch(word))
