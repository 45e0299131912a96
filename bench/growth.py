#!/usr/bin/env python3
"""How time grows with the length of a sequence, how memory does, and what a second thread gives.

    bench/growth [--only time memory threads] [--threads N] [--rounds N] [--json FILE]

time     attention with 8 heads of 64 over T: constant GFLOP/s is time in T squared; `off` is how far a row is from the
         median of its column
memory   the peak beyond inputs and outputs, of one call in a process of its own
threads  the same call on one thread and on N. Run it while nothing else computes.
"""
import argparse
import json
import multiprocessing
import re
import statistics
from dataclasses import replace
from pathlib import Path

from cases import Attention, Module
from timing import Times, calls_per_block, show_seconds

KINDS = ("time", "memory", "threads")
TIME_T = tuple(2 ** i for i in range(9, 15))
MEMORY_T = tuple(2 ** i for i in range(9, 16))
BASE = Attention(1, 8, 0, 0, 64)
BLOCK_SECONDS = 0.1

THREADS = (
    *(Attention(1, heads, T, T, 64, mode)
      for heads in (8, 1) for mode in ("full", "causal") for T in (512, 1024, 4096)),
    Attention(1, 32, 1, 8192, 128),
    Module(1, 512, 768, 12), Module(1, 1024, 768, 12), Module(8, 128, 384, 12), Module(1, 1024, 64, 1),
)


def of_length(T, mode):
    return replace(BASE, T_q=T, T_k=T, mode=mode)


def peak_beyond_data(case, n_threads):
    """Bytes that a first call takes beside its inputs and outputs, threads' stacks and all. Linux only."""
    from contenders import headwise_contender as headwise
    headwise.set_threads(n_threads)
    call = headwise.variants(case)[0][1]()
    call.result()["output"].fill(0)  # so that its pages are there before
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is in use
    before = _status_bytes("VmHWM")
    call.run()
    return _status_bytes("VmHWM") - before


def _status_bytes(name):
    return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) * 1024


def measure_memory(n_threads):
    context = multiprocessing.get_context("spawn")
    print(f"\nmemory beyond inputs and outputs, 1,8,T,T,64\n{'T':>7}{'full':>12}{'causal':>12}")
    for T in MEMORY_T:
        found = {}
        for mode in ("full", "causal"):
            with context.Pool(1) as pool:  # a new process for each
                found[mode] = pool.apply(peak_beyond_data, (of_length(T, mode), n_threads))
            yield {"measure": "memory", "T": T, "mode": mode, "bytes": found[mode]}
        print(f"{T:7}" + "".join(f"{found[mode] / 2**20:8.1f} MiB" for mode in found), flush=True)


class Timed:
    """A case, ready to be timed in turns with others."""

    def __init__(self, case):
        from contenders import headwise_contender as headwise
        self.case, self.samples = case, []
        self.call = headwise.variants(case)[0][1]()
        self.call.seconds(1)
        self.n = calls_per_block(self.call.seconds(1), BLOCK_SECONDS)

    def round(self):
        self.samples.append(self.call.seconds(self.n) / self.n)

    @property
    def times(self):
        return Times(tuple(self.samples))


def measure_time(n_threads, rounds):
    from contenders import headwise_contender as headwise
    headwise.set_threads(n_threads)
    for mode in ("full", "causal"):
        timed = [Timed(of_length(T, mode)) for T in TIME_T]
        for _ in range(rounds):
            for one in timed:
                one.round()
        speeds = [one.case.flops / one.times.best for one in timed]
        middle = statistics.median(speeds)
        print(f"\ntime, 1,8,T,T,64 {mode}, {n_threads} threads\n"
              f"{'T':>7}{'best':>10}{'spread':>9}{'GFLOP/s':>9}{'off':>9}")
        for one, speed in zip(timed, speeds):
            off = middle / speed - 1
            print(f"{one.case.T_q:7}{show_seconds(one.times.best):>10}{one.times.spread:9.1%}"
                  f"{speed / 1e9:9.1f}{off:+9.1%}", flush=True)
            yield {"measure": "time", "T": one.case.T_q, "mode": mode, "threads": n_threads, "gflops": speed / 1e9,
                   "off": off, **one.times.microseconds()}


def measure_threads(n_threads, rounds):
    from contenders import headwise_contender as headwise
    print(f"\nthreads{'':31}{'1':>9}{n_threads:>9}   ratio")
    for case in THREADS:
        contenders = {}
        for n in (1, n_threads):
            headwise.set_threads(n)
            contenders[n] = Timed(case)
        for _ in range(rounds):
            for n, one in contenders.items():
                headwise.set_threads(n)
                one.call.seconds(1)
                one.round()
        one, many = (contenders[n].times for n in (1, n_threads))
        print(f"{case.name:38}{show_seconds(one.best):>9}{show_seconds(many.best):>9}{one.best / many.best:8.2f}",
              flush=True)
        yield {"measure": "threads", "name": case.name, "threads": n_threads, "one": one.microseconds(),
               "many": many.microseconds(), "ratio": one.best / many.best}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write one JSON object a line to this file")
    arguments = parser.parse_args()
    lines = []
    if "time" in arguments.only:
        lines += measure_time(arguments.threads, arguments.rounds)
    if "memory" in arguments.only:
        lines += measure_memory(arguments.threads)
    if "threads" in arguments.only:
        lines += measure_threads(arguments.threads, arguments.rounds)
    if arguments.json:
        arguments.json.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
