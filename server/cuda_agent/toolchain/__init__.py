"""Compiler room: how a file is built, what the compiler made of its kernels, and the sandbox around it all."""
