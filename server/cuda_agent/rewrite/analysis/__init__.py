"""What the rules know about a kernel, read off its syntax tree: each module one question (docs/architecture.md has the
table), none edits.

Arithmetic is over the integers: overflow and the wrapping of unsigned values are not modelled, as no index that a
program uses overflows.
"""
