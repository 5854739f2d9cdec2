"""Timed samples and the state the machine was in beside each, by the rule of bench/samples.h."""

from __future__ import annotations

from dataclasses import dataclass, field

GATE_SHARE = 0.98    # of the session's best product, for a sample to be good
GATE_FLOOR = 0.9     # of the FMA peak, for that best product to mean anything
SHARED_TIME = 0.005  # of a sample, that another program may take
ENOUGH = 5           # a best of fewer good samples is no figure


@dataclass
class Machine:
    """The best the core has shown so far, in flops per second."""

    peak: float = 0.0
    product: float = 0.0

    def see(self, products: list[float], peak: float) -> None:
        self.product = max(self.product, *products)
        self.peak = max(self.peak, peak)

    def is_good(self, gate: float) -> bool:
        return self.product >= GATE_FLOOR * self.peak and gate >= GATE_SHARE * self.product


def quantile(ordered: list[float], share: float) -> float:
    """Of a sorted list; `share` from 0 to 1, between two values their mix."""
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (at - low) * (ordered[high] - ordered[low])


@dataclass
class Samples:
    """Seconds of one call each, the slower of the products before and after, and whether another
    program had the core meanwhile."""

    taken: list[tuple[float, float, bool]] = field(default_factory=list)

    def add(self, seconds: float, products: list[float], disturbed: bool = False) -> None:
        self.taken.append((seconds, min(products), disturbed))

    def of(self, machine: Machine, good: bool) -> list[float]:
        """Microseconds of the undisturbed samples of one state, ordered."""
        return sorted(1e6 * seconds for seconds, gate, disturbed in self.taken
                      if not disturbed and machine.is_good(gate) == good)

    def enough(self, machine: Machine) -> bool:
        return len(self.of(machine, True)) >= ENOUGH

    def report(self, machine: Machine) -> dict:
        """The fields of docs/benchmarking.md."""
        good, slow = self.of(machine, True), self.of(machine, False)
        fields: dict = {"good_samples": len(good), "slow_samples": len(slow),
                        "disturbed_samples": len(self.taken) - len(good) - len(slow)}
        if len(good) >= ENOUGH:
            fields.update(best_us=good[0], median_us=quantile(good, 0.5),
                          deciles_us=[quantile(good, tenth / 10) for tenth in range(11)])
        if slow:
            fields.update(slow_best_us=slow[0], slow_median_us=quantile(slow, 0.5))
        return fields
