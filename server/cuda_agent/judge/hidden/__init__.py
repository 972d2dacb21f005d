"""Hidden cases (G5): launches that the program did not show, derived from one that it did.

`scalars` finds the arguments that are sizes, `shapes` what each side's host code launches for other sizes, `extents`
cuts or tiles the recorded buffers to what the kernel then reaches, `families` redraws float data, `plan` lists the
cases, `trial` puts them in turn, and `trials` runs them: a case counts only if the original itself is clean on it.
"""
