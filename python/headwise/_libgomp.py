"""Finds the OpenMP library where the system has none.

PyTorch's threads and headwise's have to be one pool, or they stall each other. So the extension asks for libgomp.so.1
by its plain name, and what the process has loaded already, or the system has, is what it gets. Only without either,
PyTorch's own copy is loaded, if it is installed, or the one beside this file.
"""
import ctypes
import importlib.util
from pathlib import Path


def candidates():
    try:
        torch = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        torch = None
    if torch is not None and torch.origin is not None:
        yield Path(torch.origin).parent / "lib" / "libgomp.so.1"
    yield Path(__file__).parent / "lib" / "libgomp.so.1"


def load():
    """Loads the first copy there is; the dynamic linker then knows it by its name."""
    for path in candidates():
        if path.exists():
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            return
