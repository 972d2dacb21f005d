"""nvcc's command line as data: which options take a value, and what each means for a device binary.

Source: `nvcc --help` of CUDA 13.0 and the "NVCC Command Options" chapter of its manual. Names are without dashes;
nvcc takes each with one dash or two.
"""

from __future__ import annotations

# Long names and short forms → the one spelling kept in `Build.flags`.
ALIASES = {
    "gpu-architecture": "arch",
    "gpu-code": "code",
    "generate-code": "gencode",
    "compiler-options": "Xcompiler",
    "linker-options": "Xlinker",
    "ptxas-options": "Xptxas",
    "nvlink-options": "Xnvlink",
    "archive-options": "Xarchive",
    "define-macro": "D",
    "undefine-macro": "U",
    "include-path": "I",
    "system-include": "isystem",
    "pre-include": "include",
    "library": "l",
    "library-path": "L",
    "output-file": "o",
    "output": "o",
    "output-directory": "odir",
    "compiler-bindir": "ccbin",
    "optimize": "O",
    "options-file": "optf",
    "relocatable-device-code": "rdc",
    "debug": "g",
    "device-debug": "G",
    "generate-line-info": "lineinfo",
    "compile": "c",
    "device-c": "dc",
    "device-w": "dw",
    "device-link": "dlink",
    "preprocess": "E",
    "machine": "m",
    "expt-extended-lambda": "extended-lambda",
    "disable-warnings": "w",
    "resource-usage": "res-usage",
    "threads": "t",
    "generate-dependencies": "M",
    "generate-nonsystem-dependencies": "MM",
    "generate-dependencies-with-compile": "MD",
    "generate-nonsystem-dependencies-with-compile": "MMD",
    "dependency-output": "MF",
    "generate-dependency-targets": "MP",
    "dependency-target-name": "MT",
    "profile": "pg",
    "libdevice-directory": "ldir",
    "target-directory": "target-dir",
    "Ofast-compile": "Ofc",
    "entries": "e",
    "verbose": "v",
    "save-temps": "keep",
}

# Options that take a value, as the next word or after `=`.
_VALUED = """
    include l D U I isystem L o odir ccbin arbin cudart cudadevrt ldir target-dir opt-info O Ofc dopt
    ftemplate-backtrace-limit ftemplate-depth x std m Xcompiler Xlinker Xarchive Xptxas Xnvlink Xcicc Xcudafe
    static-global-template-stub device-entity-has-hidden-visibility t split-compile split-compile-extended
    fdevice-time-trace keep-dir time run-args idp ddp dp MT MF MQ arch code gencode rdc e maxrregcount ftz prec-div
    prec-sqrt fmad default-stream Werror diag-error diag-suppress diag-warn hls brief-diag brief-diagnostics jtd
    jump-table-density device-stack-protector compress-mode frandom-seed sanitize optf qpp-config
    iquote idirafter"""
VALUED = frozenset(_VALUED.split())

# Options whose value may be glued to the name: -Idir, -DX, -O3, -lm, -xcu, -t4.
GLUED = ("isystem", "iquote", "idirafter", "D", "U", "I", "L", "l", "O", "x", "o", "m", "t")

# Options without a value that begin like a glued one (`-lto` is not `-l to`).
PLAIN = frozenset(
    {"lto", "dlto", "lineinfo", "objtemp", "optix-ir", "list-gpu-code", "list-gpu-arch", "ltoir", "lib", "link"}
)

# What does not change the device code of one file: output, linking, dependencies, threads, verbosity.
_DROPPED = """
    o odir c dw dlink link lib cuda cubin fatbin ptx optix-ir ltoir E M MM MD MMD MF MP MT MQ l L run run-args
    arbin cudart cudadevrt Xlinker Xarchive Xnvlink t split-compile split-compile-extended fdevice-time-trace keep
    keep-dir objtemp time dryrun v clean idp ddp dp nodlink no-device-link res-usage no-compress compress-mode
    list-gpu-code code-ls list-gpu-arch arch-ls err-no no-err-no display-error-number no-display-error-number
    shared hls aug-hls augment-host-linker-script host-linker-script jobserver r relocatable-link code
    fdevice-syntax-only noprof dont-use-profile help h version V brief-diag brief-diagnostics save-temps
    forward-unknown-to-host-linker"""
DROPPED = frozenset(_DROPPED.split())

# Phases by option; the rest link.
PHASES = frozenset(
    {"c", "dc", "dw", "dlink", "link", "lib", "cubin", "fatbin", "ptx", "optix-ir", "ltoir", "E", "M", "MM"}
)

# Values that are paths, made absolute against the directory of the command.
PATHS = frozenset({"I", "isystem", "iquote", "idirafter", "ccbin", "ldir", "target-dir", "optf"})

# Comma-separated lists: `-I a,b` is two directories.
LISTS = frozenset({"I", "isystem", "D", "U", "include", "Xptxas"})

SOURCES = frozenset({".cu", ".c", ".cc", ".cpp", ".cxx", ".cp", ".c++", ".C"})
HEADERS = frozenset({".cuh", ".h", ".hh", ".hpp", ".inl"})
