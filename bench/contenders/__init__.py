"""One module for each contender, named like its key in NAMES; each has

    version()                     text for the header
    set_threads(n)                before anything else
    variants(case)                (name, build) pairs: ways to compute the case; build() gives a Call
"""
import importlib
import itertools
import time

NAMES = {"headwise": "headwise", "torch": "PyTorch", "onnx": "ONNX Runtime", "openvino": "OpenVINO"}
OURS, *PEERS = NAMES


class Unsupported(Exception):
    """The contender has no way to compute this; the text says why."""


def load(key):
    return importlib.import_module(f"contenders.{key}_contender")


class Call:
    """A call that is ready to be repeated; `run` is timed and nothing else."""

    def __init__(self, run, result):
        self.run = run        # computes once
        self.result = result  # {"output": array, maybe "weights": array} of the last run, as the module or SDPA shapes it

    def seconds(self, n):
        run = self.run
        start = time.perf_counter()
        for _ in itertools.repeat(None, n):
            run()
        return time.perf_counter() - start
