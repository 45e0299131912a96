"""One module for each contender, named like its key in NAMES; each has

    version()                     text for the header
    set_threads(n)                before anything else
    variants(case)                (name, build) pairs: ways to compute the case; build() gives a Call

models_contender is no peer: it has PyTorch's models for models.py.
"""
import importlib
import itertools
import time

NAMES = {"headwise": "headwise", "torch": "PyTorch", "onnx": "ONNX Runtime", "openvino": "OpenVINO"}
OURS, *PEERS = NAMES


class Unsupported(Exception):
    """The contender has no way to compute this; the text says why."""


def load(key):
    """The module of a contender; a key such as "models:convert" sets its `way`, too."""
    name, _, way = key.partition(":")
    module = importlib.import_module(f"contenders.{name}_contender")
    if way:
        module.way = way
    return module


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
