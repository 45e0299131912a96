"""What a race of contenders gives for one case, and how the JSON lines show it. Plain Python, no NumPy."""
from dataclasses import dataclass, field, replace

from contenders import NAMES, OURS
from timing import Times


@dataclass
class Entry:
    """How one contender did: times, or the reason why there are none."""
    variant: str = ""    # which of several ways to compute the case was fastest
    error: float = 0.0   # of the checked rows, relative to their largest number
    times: Times = None
    reason: str = ""
    calls: int = field(default=0, repr=False)  # in a block


def merged(first, second):
    """Both measurements of one case as one: nobody is worse off for a moment when something else was running."""
    found = {}
    for key, a in first.items():
        b = second[key]
        if a.reason or b.reason:
            found[key] = b if a.reason else a
            continue
        faster = a if a.times.best <= b.times.best else b
        found[key] = replace(faster, times=Times(a.times.samples + b.times.samples))
    return found


def ratios(entries):
    """Each peer's best time over ours; peers without a time are left out."""
    ours = entries[OURS].times.best
    return {key: e.times.best / ours for key, e in entries.items() if key != OURS and not e.reason}


def entry_json(entry):
    """One that has no time has a reason."""
    if entry.reason:
        return {"reason": entry.reason}
    found = {**entry.times.microseconds(), "error": entry.error}
    if entry.variant:
        found["variant"] = entry.variant
    return found


def entries_json(entries):
    """By contender, peers with their ratio."""
    found = {key: entry_json(e) for key, e in entries.items()}
    for key, ratio in ratios(entries).items():
        found[key]["ratio"] = ratio
    return found


def print_reasons(lines):
    """Why a peer has no time for some of these JSON lines."""
    found = {}
    for line in lines:
        for key, e in line["contenders"].items():
            if "reason" in e:
                found.setdefault((NAMES[key], e["reason"]), []).append(f"{line['name']} {line['dtype']}")
    for (name, reason), rows in sorted(found.items()):
        print(f"No time for {name} on {len(rows)} rows ({rows[0]}{', ...' * (len(rows) > 1)}): {reason}")
