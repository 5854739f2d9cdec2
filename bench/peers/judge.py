"""Whether two outputs are the same answer."""

from __future__ import annotations

import operator
from array import array

from .problem import Problem

# Of the largest output. Float32 answers of these layers differ by about 1e-6 of it; a wrong mask, a
# missing bias or half precision by 1e-3 and more.
ALLOWED = 1e-5


def largest(values: array) -> float:
    return max(map(abs, values), default=0.0)


def difference(p: Problem, got: array, want: array) -> float:
    """Largest difference over the rows that mean something; infinite for NaN or a wrong size."""
    if len(got) != len(want):
        return float("inf")
    width = p.y_shape[-1]
    worst = 0.0
    for first, last in p.rows_compared():
        part = slice(first * width, last * width)
        gaps = list(map(abs, map(operator.sub, got[part], want[part])))
        if gaps and sum(gaps) != sum(gaps):  # a NaN anywhere
            return float("inf")
        worst = max(worst, max(gaps, default=0.0))
    return worst


def bound(want: array) -> float:
    return ALLOWED * largest(want)
