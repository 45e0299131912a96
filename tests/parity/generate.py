#!/usr/bin/env python3
"""Draws random option combinations of attention and of the module, and writes what torch says they give.

    python tests/parity/generate.py --out build/parity.safetensors --seed 1 --count 3000
    build/dev/tests/parity build/parity.safetensors
    python tests/parity/generate.py --small           (the checked-in fixtures anew)

A case is a line of options in the file's metadata and tensors named NUMBER/NAME. Expected results are float64 on the same,
already rounded, inputs (reference.py), compared here with torch's own function wherever torch has the option.
"""
import argparse
import collections
import pathlib
import random

import torch
from safetensors.torch import save_file

import generator_cases
import module_cases
import sdpa_cases
from drawing import DTYPES

FIXTURES = pathlib.Path(__file__).parent.parent / "fixtures"
SMALL_COUNT = 320  # keeps each file below 512 KB
DRAW_COUNT = 32


def draw_cases(seed, count, small):
    """Half the random cases are of attention and of the module. On top come every combination of the options of
    construction, and draws from the generator."""
    for number in range(count):
        rng = random.Random(f"{seed}/{number}")
        torch.manual_seed(rng.getrandbits(60))
        dtype_name = list(DTYPES)[number % 4]
        yield (sdpa_cases if (number // 4) % 2 else module_cases).make(rng, dtype_name, small)
    for number, combination in enumerate(module_cases.init_combinations()):
        yield module_cases.make_init(random.Random(f"{seed}/init/{number}"), combination, small)
    for number in range(DRAW_COUNT):
        yield generator_cases.make(random.Random(f"{seed}/draws/{number}"), small)


def save(path, cases):
    tensors, metadata, counts = {}, {}, collections.Counter()
    for number, case in enumerate(cases):
        metadata[f"{number:05}"] = case.text()
        tensors.update({f"{number:05}/{name}": x for name, x in case.tensors.items()})
        counts[case.options["kind"]] += 1
        counts["compared with torch's own function"] += case.torch_checked
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, path, metadata)
    path.chmod(0o644)
    print(f"{path}: " + ", ".join(f"{n} {what}" for what, n in counts.items()) + f"; {path.stat().st_size / 1e6:.1f} MB")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, help="the file to write")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=3000, help="how many, beside those of construction")
    parser.add_argument("--small", action="store_true", help="write the checked-in fixtures")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the tensors are tiny
    if arguments.small:
        cases = list(draw_cases(0, SMALL_COUNT, small=True))
        for kind in ("sdpa", "module", "init", "draws"):
            save(FIXTURES / f"parity_{kind}.safetensors", [c for c in cases if c.options["kind"] == kind])
    elif arguments.out:
        save(arguments.out, draw_cases(arguments.seed, arguments.count, small=False))
    else:
        parser.error("--out or --small is needed")


if __name__ == "__main__":
    main()
