#!/usr/bin/env python3
"""Looks for shapes where a peer is faster, on a grid that nobody tuned for.

    bench/grid [--n N] [--seed S] [--seconds S] [--dtype NAME] [--mode NAME] [--json FILE]   a random sample
    bench/grid --full                                                                        every shape (hours)
    bench/grid --read FILE...                                                                totals of earlier runs

Prints the rows that lose, and the totals. Run it while nothing else computes; a ratio below 1.05 is measured longer,
and a row that loses is measured once more at the end.
"""
import argparse
import json
import signal
import time
from pathlib import Path

import sampling
from cases import MODES, fields
from contenders import NAMES, OURS, PEERS
from entries import entries_json, merged, print_reasons, ratios
from timing import quantile, show_seconds

SUSPICIOUS = 1.05   # a lower ratio is measured again
MORE_ROUNDS = 4
MAX_MORE = 3        # times


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=100, help="rows of the sample (100)")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (0)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no new row after this long")
    parser.add_argument("--full", action="store_true", help="every shape of the grid, however large")
    parser.add_argument("--max-gflop", type=float, default=20.0, help="fewer heads for shapes with more work (20)")
    parser.add_argument("--dtype", default="f32", choices=("f32", "bf16", "f16"))
    parser.add_argument("--mode", choices=MODES, help="rows of this mode only")
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--all", action="store_true", help="print every row, not only those that lose")
    parser.add_argument("--json", type=Path, help="append one JSON object a row to this file")
    parser.add_argument("--read", type=Path, nargs="+", help="print the totals of such files and measure nothing")
    return parser.parse_args()


def chosen_cases(arguments):
    if arguments.full:
        cases = sampling.full(arguments.dtype)
    else:
        cases = sampling.sample(arguments.n, arguments.seed, arguments.dtype, arguments.max_gflop * 1e9)
    return [case for case in cases if arguments.mode in (None, case.mode)]


def line_of(case, entries):
    return {**fields(case), "contenders": entries_json(entries)}


def more_rounds():
    """Asks for rounds while a peer looks about as fast as we are."""
    left = [MAX_MORE]

    def again(entries):
        if left[0] == 0 or all(ratio >= SUSPICIOUS for ratio in ratios(entries).values()):
            return 0
        left[0] -= 1
        return MORE_ROUNDS
    return again


def line_ratios(line):
    return {key: e["ratio"] for key, e in line["contenders"].items() if "ratio" in e}


def show_row(line):
    ours = line["contenders"][OURS]
    ratios = line_ratios(line)
    peers = "  ".join(f"{NAMES[key]} {ratios[key]:5.2f}" if key in ratios else f"{NAMES[key]}     -"
                      for key in line["contenders"] if key != OURS)
    bias = " of each head" if line["bias_heads"] > 1 else ""
    return (f"{line['name'] + bias:44} {line['dtype']:4} {show_seconds(ours['best_us'] / 1e6):>8} "
            f"{line['flops'] / ours['best_us'] / 1e3:6.0f} GFLOP/s   {peers}")


def loses(line):
    return any(ratio < 1 for ratio in line_ratios(line).values())


def _quantiles(ratios):
    return "   ".join(f"{name} {quantile(ratios, q):5.2f}"
                      for name, q in (("worst", 0), ("1 %", 0.01), ("10 %", 0.1), ("median", 0.5)))


def lowest_ratio(line):
    """Against the fastest peer; None where none has a time."""
    return min(line_ratios(line).values(), default=None)


def print_by(axis, lines):
    print(f"Lowest of a row's ratios, by {axis}:")
    for value in sorted({line[axis] for line in lines}):
        lowest = [lowest_ratio(line) for line in lines if line[axis] == value]
        slower = sum(ratio < 1 for ratio in lowest)
        print(f"  {value!s:13} slower on {slower:4} of {len(lowest):4}   {_quantiles(lowest)}")


def print_lengths(lines):
    print("The lowest ratio of all, by T_q (down) and T_k (across):")
    print(" " * 7 + "".join(f"{T_k:7}" for T_k in sampling.T))
    for T_q in sampling.T:
        cells = []
        for T_k in sampling.T:
            found = [lowest_ratio(line) for line in lines if (line["T_q"], line["T_k"]) == (T_q, T_k)]
            cells.append(f"{min(found):7.2f}" if found else f"{'':7}")
        print(f"{T_q:7}" + "".join(cells).rstrip())


def print_totals(lines):
    print(f"\n{len(lines)} rows; slower than a peer on {sum(map(loses, lines))}. Ratios, the peer's time over ours:")
    for key in PEERS:
        ratios_of_peer = [line_ratios(line)[key] for line in lines if key in line_ratios(line)]
        if ratios_of_peer:
            slower = sum(ratio < 1 for ratio in ratios_of_peer)
            print(f"  {NAMES[key]:13} slower on {slower:4} of {len(ratios_of_peer):4}   {_quantiles(ratios_of_peer)}")
    compared = [line for line in lines if line_ratios(line)]
    for axis in ("mode", "d_head", "n_heads"):
        print_by(axis, compared)
    print_lengths(compared)
    print_reasons(lines)


def measure(arguments):
    from race import PeerRace  # here: showing what is in files needs no NumPy
    race = PeerRace(arguments.threads, arguments.peers, rounds=3, block_seconds=0.02)
    lines, lost, end = [], [], time.monotonic() + arguments.seconds

    def done(case, entries):
        lines.append(line_of(case, entries))
        if arguments.all or loses(lines[-1]):
            print(show_row(lines[-1]), flush=True)
        if arguments.json:
            with arguments.json.open("a") as file:
                file.write(json.dumps(lines[-1]) + "\n")

    for case in chosen_cases(arguments):
        if time.monotonic() > end:
            break
        entries = race.measure(case, more_rounds())
        if loses(line_of(case, entries)):
            lost.append((case, entries))
        else:
            done(case, entries)
    for case, entries in lost:  # not at once: what disturbed a row may last a while
        done(case, merged(entries, race.measure(case, more_rounds())))
    return lines


def main():
    arguments = parse_arguments()
    if arguments.read:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a reader that leaves, as `head` does
    if arguments.read:
        lines = [json.loads(text) for path in arguments.read for text in path.read_text().splitlines()]
        for line in sorted(filter(loses, lines), key=lowest_ratio):
            print(show_row(line))
    else:
        lines = measure(arguments)
    print_totals(lines)


if __name__ == "__main__":
    main()
