"""Coefficients of the exp2 polynomials: p(r) = 1 + c1 r + ... + cn r^n, minimax in relative error.

The constant term is fixed at 1 so that whole exponents are exact. Coefficients are rounded to
float one after the other, lowest degree first, and the rest is fitted again each time.
usage: python3 tools/fit_exp2.py (needs numpy and scipy)
"""
import numpy as np
from scipy.optimize import linprog


def fit(lo: float, hi: float, degree: int) -> tuple[list[float], float]:
    r = lo + (hi - lo) * (0.5 - 0.5 * np.cos(np.pi * np.arange(4001) / 4000))
    want = np.exp2(r)
    fixed: list[float] = []
    for done in range(degree + 1):
        free = degree - done
        base = 1 + sum(c * r ** (i + 1) for i, c in enumerate(fixed))
        basis = np.stack([r ** (done + 1 + i) for i in range(free)] + [want], axis=1)
        if free == 0:
            return fixed, float(np.max(np.abs(base - want) / want))
        neg = basis.copy()
        neg[:, :-1] *= -1
        basis[:, -1] *= -1
        neg[:, -1] *= -1
        scale = 1e6  # keeps the solver's tolerances below the error sought
        solved = linprog(
            [0] * free + [1],
            A_ub=np.vstack([basis, neg]) * scale,
            b_ub=np.concatenate([want - base, base - want]) * scale,
            bounds=[(None, None)] * free + [(0, None)],
            method="highs",
        )
        fixed.append(float(np.float32(solved.x[0])))
    raise AssertionError


for name, lo, hi in (("floor", 0.0, 1.0), ("nearest", -0.5, 0.5)):
    for degree in (4, 5):
        coefficients, error = fit(lo, hi, degree)
        print(name, degree, f"{error:.2e}", [c.hex() for c in coefficients])
