#!/usr/bin/env python3
"""Modules and models of PyTorch, as they are and with headwise in them: seconds a call and how many times faster.

    bench/models [--only TEXT] [--threads N] [--rounds N] [--model FOLDER] [--json FILE]

convert  the same model after headwise.torch.convert
enable   the same model while headwise.torch.enable() stands

A row is timed after its outputs, and in training its gradients, were found to be torch's. FOLDER holds MiniLM's files;
without it these rows are left out. Run it while nothing else computes.
"""
import argparse
import json
from pathlib import Path

from cases import TorchModel
from entries import entry_json
from timing import show_seconds
from worker import Failed, Worker

WAYS = ("torch", "convert", "enable")
BLOCK_SECONDS = 0.1

ROWS = (  # kind, options, sizes
    ("module", ("", "weights", "training"),
     ((1, 4, 8, 2), (2, 16, 512, 8), (1, 1, 768, 12), (8, 128, 384, 12), (1, 1024, 768, 12))),
    ("function", ("",), ((1, 2, 8, 8), (2, 8, 16, 64), (4, 12, 128, 64), (1, 8, 1024, 64))),
    ("encoder layer", ("", "padded", "training"), ((2, 16, 64, 4), (8, 128, 384, 12), (1, 512, 512, 8))),
    ("MiniLM", ("",), ((1, 16), (8, 128), (1, 512))),
)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9, help="blocks of each way (9)")
    parser.add_argument("--model", metavar="FOLDER", default="", help="MiniLM's, as transformers loads it")
    parser.add_argument("--json", type=Path, help="write one JSON object a line to this file")
    return parser.parse_args()


def chosen_cases(only="", folder=""):
    cases = (TorchModel(kind, size, option, folder) for kind, options, sizes in ROWS if folder or kind != "MiniLM"
             for size in sizes for option in options)
    return [case for case in cases if only in case.name]


def show_row(name, entries):
    """Times, how many times as fast as torch's, and below why some are missing."""
    row = f"{name:<42}"
    for way, e in entries.items():
        row += f"{'-' if e.reason else show_seconds(e.times.best):>10}"
        if way != "torch":
            known = not (e.reason or entries["torch"].reason)
            row += f"{entries['torch'].times.best / e.times.best:7.2f}x" if known else f"{'':8}"
    return "\n".join([row.rstrip(), *(f"  {way}: {e.reason}" for way, e in entries.items() if e.reason)])


def measure(arguments):
    from race import Race  # here: rows and how they are shown need no NumPy
    workers = {way: Worker(f"models:{way}", arguments.threads) for way in WAYS}
    race = Race(workers, lambda case: workers["torch"].ask("answer", case), arguments.rounds, BLOCK_SECONDS)
    print(f"{'':<42}{'torch':>10}{'convert':>10}{'':8}{'enable':>10}")
    for case in chosen_cases(arguments.only, arguments.model):
        try:
            entries = race.measure(case)
        except Failed as e:  # without torch's answer
            print(f"{case.name}\n  torch: {e}", flush=True)
            yield {"row": case.name, "torch": {"reason": str(e)}}
        else:
            print(show_row(case.name, entries), flush=True)
            yield {"row": case.name} | {way: entry_json(e) for way, e in entries.items()}


def main():
    arguments = parse_arguments()
    lines = list(measure(arguments))
    if arguments.json:
        arguments.json.write_text("".join(json.dumps(line) + "\n" for line in lines))


if __name__ == "__main__":
    main()
