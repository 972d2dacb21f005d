"""Loops that walk memory with a constant step: what they read and write, who shares them, and how it is widened."""
