"""What the rules know about a kernel's data flow, read off its syntax tree: each module one question, none edits.

names.py: which write a read sees. polynomial.py: integer polynomials. affine.py: index expressions as polynomials and
pointers as places in an array. access.py: every access to memory with its stride. uniform.py: which values the threads
of a warp, block or grid share. trips.py: how often a loop runs. reduction.py: variables that fold a loop.
aliasing.py: which parameters are read, written and overlap.

Arithmetic is over the integers: overflow and the wrapping of unsigned values are not modelled, as no index that a
program uses overflows.
"""
