"""Statistics of one contender's blocks, and how they are shown."""
import math
import statistics
from dataclasses import dataclass


@dataclass(frozen=True)
class Times:
    """Seconds a call; each sample is the mean of a block of calls."""
    samples: tuple

    @property
    def best(self):
        return min(self.samples)

    @property
    def median(self):
        return statistics.median(self.samples)

    @property
    def spread(self):
        """How far the middle half of the samples is apart, relative to the median."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return (high - low) / self.median

    def microseconds(self):
        return {"best_us": self.best * 1e6, "median_us": self.median * 1e6, "spread": self.spread}


def calls_per_block(seconds_per_call, block_seconds):
    """How many calls last about a block; at least one."""
    return max(1, round(block_seconds / max(seconds_per_call, 1e-9)))


def quantile(values, q):
    """Linear between the sorted values; q from 0 to 1."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low = math.floor(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def show_seconds(seconds):
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}" if seconds < 1000 * size else f"{seconds / size:.0f} {unit}"
    return f"{seconds / 1e-9:.0f} ns"
