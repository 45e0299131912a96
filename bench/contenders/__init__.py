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
    """A call that is ready to be repeated; `run` is timed and nothing else.

    run     computes once
    result  gives {"output": array} of the last run, and "weights" where the module returns them
    keep    whatever owns memory that the call uses
    """

    def __init__(self, run, result, keep=None):
        self.run, self.result, self.keep = run, result, keep

    def seconds(self, n):
        run = self.run
        start = time.perf_counter()
        for _ in itertools.repeat(None, n):
            run()
        return time.perf_counter() - start
