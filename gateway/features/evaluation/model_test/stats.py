"""Statistics of proportions and pairs, with intervals; pure, and exact where that is cheap.

Pairs of one case under two models: `b` passed with the first alone, `c` with the second alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from functools import cache
from statistics import NormalDist, median

Z95 = NormalDist().inv_cdf(0.975)

Interval = tuple[float, float]


def wilson(k: int, n: int, z: float = Z95) -> Interval:
    """The Wilson score interval of k of n; (0, 1) where nothing was tried."""
    if n == 0:
        return 0.0, 1.0
    p, zz = k / n, z * z
    middle = (p + zz / (2 * n)) / (1 + zz / n)
    half = z / (1 + zz / n) * math.sqrt(p * (1 - p) / n + zz / (4 * n * n))
    low = 0.0 if k == 0 else middle - half
    high = 1.0 if k == n else middle + half
    return max(0.0, low), min(1.0, high)


def at_least(k: int, n: int) -> float:
    """P(X ≥ k) for n fair coins, exact."""
    if k <= 0:
        return 1.0
    if k > n:
        return 0.0
    term = total = math.comb(n, k)
    for i in range(k, n):
        term = term * (n - i) // (i + 1)
        total += term
    return total / (1 << n)


def mcnemar_worse(b: int, c: int) -> float:
    """Exact one-sided p: how often chance alone makes the second model lose at least `b` of the b + c flips."""
    return at_least(b, b + c)


def mcnemar(b: int, c: int) -> float:
    """Exact two-sided p."""
    return min(1.0, 2 * at_least(max(b, c), b + c))


def balanced_worse(first: tuple[int, int, int], second: tuple[int, int, int]) -> float:
    """Exact one-sided p for the mean of two groups' rates, each given as (b, c, n).

    Under the null each flip goes either way with equal chance, and weighs 1/n of its group.
    """
    (b1, c1, n1), (b2, c2, n2) = first, second
    flips1, flips2 = b1 + c1, b2 + c2
    if not n1 or not n2:
        return 1.0
    # In units of 1 / (n1 · n2), so that equality is exact.
    observed = (b1 - c1) * n2 + (b2 - c2) * n1
    favourable = sum(
        math.comb(flips1, i) * math.comb(flips2, j)
        for i in range(flips1 + 1)
        for j in range(flips2 + 1)
        if (2 * i - flips1) * n2 + (2 * j - flips2) * n1 >= observed
    )
    return favourable / (1 << flips1 + flips2)


def newcombe_paired(both: int, b: int, c: int, neither: int, z: float = Z95) -> Interval:
    """The interval of (first rate - second rate) of paired proportions: Newcombe 1998, method 10."""
    n = both + b + c + neither
    if n == 0:
        return -1.0, 1.0
    k1, k2 = both + b, both + c
    p1, p2 = k1 / n, k2 / n
    (l1, u1), (l2, u2) = wilson(k1, n, z), wilson(k2, n, z)
    margins = k1 * (n - k1) * k2 * (n - k2)
    phi = 0.0
    if margins:
        cross: float = both * neither - b * c
        phi = (max(cross - n / 2, 0.0) if cross > 0 else cross) / math.sqrt(margins)
    difference = p1 - p2

    def root(x: float, y: float) -> float:
        return math.sqrt(max(0.0, x * x - 2 * phi * x * y + y * y))

    return difference - root(p1 - l1, u2 - p2), difference + root(u1 - p1, p2 - l2)


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """Holm-adjusted p by name, in the order given."""
    adjusted: dict[str, float] = {}
    highest = 0.0
    for rank, name in enumerate(sorted(p, key=p.__getitem__)):
        highest = max(highest, min(1.0, (len(p) - rank) * p[name]))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p}


def smallest_loss(c: int, alpha: float = 0.05, *, two_sided: bool = False) -> int:
    """The fewest cases that must be lost, with `c` won, for p < alpha."""
    test = mcnemar if two_sided else mcnemar_worse
    b = c
    while test(b, c) >= alpha:
        b += 1
    return b


def power(n: int, drop: float, flips: float, alpha: float = 0.05, *, two_sided: bool = False) -> float:
    """How often a true drop (share of n) is flagged where `flips` of the cases change either way.

    Exact over the number of flips, for the McNemar test without a margin.
    """
    if not 0 < drop <= flips <= 1:
        raise ValueError("0 < drop <= flips <= 1")
    lost = (flips + drop) / (2 * flips)
    total = 0.0
    for m in range(n + 1):
        chance = _binomial(m, n, flips)
        if chance < 1e-9:
            continue
        # p falls with b, so the first b that is significant is all that is needed.
        total += chance * sum(_binomial(b, m, lost) for b in range(_significant(m, alpha, two_sided), m + 1))
    return total


@cache
def _significant(flips: int, alpha: float, two_sided: bool) -> int:
    """The fewest of so many flips that must be losses for p < alpha; flips + 1 if not even all suffice."""
    test = mcnemar if two_sided else mcnemar_worse
    low, high = (flips + 1) // 2, flips + 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if test(middle, flips - middle) < alpha else (middle + 1, high)
    return low


def _binomial(k: int, n: int, p: float) -> float:
    if p >= 1.0:
        return float(k == n)
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log + k * math.log(p) + (n - k) * math.log1p(-p))


def bootstrap_ratio(ratios: Sequence[float], *, rounds: int = 2000, seed: int = 0) -> tuple[float, Interval]:
    """The median of paired ratios and its 95 % percentile interval. Needs at least one."""
    logs = [math.log(ratio) for ratio in ratios]
    chance = random.Random(seed)
    medians = sorted(median(chance.choices(logs, k=len(logs))) for _ in range(rounds))
    low, high = medians[int(0.025 * rounds)], medians[int(0.975 * rounds) - 1]
    return math.exp(median(logs)), (math.exp(low), math.exp(high))


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank. Needs at least one value."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]
