#!/usr/bin/env python3
"""Checks what the layout of the source promises; prints one line per fault and exits 1 if there is one.

    check_layout.py [ROOT]

  walls    which folder may include what, and calls between layers go down only
  mirror   src/a/b.cc is tested by tests/a/b_test.cc, and every test tests a file or, by its name, a whole folder
  length   at most 400 lines a file, unless a comment in its first lines has the word "lines" and says why
  folders  at most 20 files in a folder of sources; a source and its header count as one
  sizes    no raw product of numbers in src/io (core/checked.h has checked ones)
  tree     nothing generated, compiled or large is committed
"""
import re
import signal
import subprocess
import sys
from pathlib import Path

MAX_LINES = 400
MAX_FILES = 20
MAX_BYTES = 512 * 1024
SOURCE_SUFFIXES = {".cc", ".h", ".py", ".cmake", ".sh"}

# Who may include what. A path is allowed a rule's headers when it starts with one of its prefixes.
WALLS = [
    ("Highway or intrinsics", re.compile(r"^(hwy/|\w*intrin\.h$|arm_neon\.h$|arm_sve\.h$)"),
     ("src/kernels/", "tests/kernels/")),
    ("MPI", re.compile(r"^mpi\.h$"), ("src/dist/",)),
    ("JSON", re.compile(r"^nlohmann/"), ("src/io/", "apps/", "tests/io/", "tests/apps/", "fuzz/")),
    ("zlib", re.compile(r"^zlib\.h$"), ("src/io/", "apps/", "tests/io/", "tests/apps/", "tests/support/", "fuzz/")),
    ("nanobind", re.compile(r"^nanobind/"), ("python/src/",)),
    ("threads", re.compile(r"^(omp\.h|thread|future|pthread\.h)$"),
     ("src/runtime/", "tests/", "bench/", "examples/", "fuzz/")),
    ("CLI11", re.compile(r"^CLI/"), ("apps/cli/",)),
    ("utf8proc", re.compile(r"^utf8proc\.h$"), ("apps/",)),
]

# Which layers a layer may include, itself aside. Public headers are open to all.
LAYERS = {
    "core": set(),
    "runtime": {"core"},
    "kernels": {"core", "runtime"},
    "attention": {"core", "runtime", "kernels"},
    "io": {"core"},
    "optim": {"core", "runtime"},
    "cache": {"core", "runtime", "kernels"},
    "dist": {"core", "runtime", "kernels", "attention"},
    "module": {"core", "runtime", "kernels", "attention", "io", "cache"},
}

# Tests of what a folder does as a whole: the reported cases, same bits, the mission, wrong calls.
WHOLE_FOLDER = re.compile(r"(cases|bits|mission|wrong_calls)(_\w+)?")

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.MULTILINE)
OPENMP = re.compile(r"^\s*#\s*pragma\s+omp\b", re.MULTILINE)
RAW_PRODUCT = re.compile(r"[\w)\]]\s+\*=?\s+[\w(]")  # a pointer is written T* p
NOT_COMMITTED = re.compile(
    r"(^|/)(build|\.venv|__pycache__|node_modules)/|\.(o|a|so|dylib|dll|exe|pyc|whl|gcda|gcno|orig|rej)$")


def tracked_files(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            stdout=subprocess.PIPE, check=True).stdout.decode()
    return sorted(p for p in listed.split("\0") if p and (root / p).is_file())


def check_walls(path, text):
    for quote, header in INCLUDE.findall(text):
        for what, pattern, allowed in WALLS:
            if pattern.search(header) and not path.startswith(allowed):
                yield f"{path}: includes <{header}>; {what} belongs to {', '.join(allowed)}"
        if path.startswith("include/") and quote == '"' and not header.startswith("headwise/"):
            yield f"{path}: a public header includes \"{header}\", which is not installed"
    if OPENMP.search(text) and not path.startswith(("src/runtime/", "tests/runtime/")):
        yield f"{path}: has an OpenMP pragma; threads belong to src/runtime/"


def check_layers(path, text):
    parts = path.split("/")
    if parts[0] != "src" or len(parts) < 3:
        return
    layer = parts[1]
    if layer not in LAYERS:
        yield f"{path}: src/{layer} is no layer that tools/check_layout.py knows"
        return
    for _, header in INCLUDE.findall(text):
        other = header.split("/")[0]
        if other in LAYERS and other != layer and other not in LAYERS[layer]:
            yield f"{path}: src/{layer} includes {header}; calls go down only"


def check_length(path, text):
    lines = text.splitlines()
    reason = any("lines" in line for line in lines[:15] if line.lstrip().startswith(("//", "#", '"""')))
    if len(lines) > MAX_LINES and not reason:
        yield f"{path}: {len(lines)} lines, at most {MAX_LINES} unless a comment at the top says why"


def check_sizes(path, text):
    """Products in src/io, but for lines whose comment says why theirs cannot overflow."""
    if not path.startswith("src/io/"):
        return
    for number, line in enumerate(text.splitlines(), 1):
        code, _, comment = line.partition("//")
        if RAW_PRODUCT.search(code) and not comment:
            yield f"{path}:{number}: a raw product; use core/checked.h or say in a comment why it fits"


def check_mirror(paths):
    known = set(paths)
    for path in paths:
        if re.fullmatch(r"src/.+/[^/]+\.cc", path):
            test = "tests/" + path[len("src/"):-len(".cc")] + "_test.cc"
            if test not in known:
                yield f"{path}: no test {test}"
        elif re.fullmatch(rf"tests/({'|'.join(LAYERS)})/.+_test\.cc", path):
            stem = path[len("tests/"):-len("_test.cc")]
            whole = WHOLE_FOLDER.fullmatch(stem.split("/")[-1])
            if not whole and not any(f"src/{stem}{suffix}" in known for suffix in (".cc", ".h", "-inl.h")):
                yield f"{path}: tests no file src/{stem}.cc"


def check_folders(paths):
    folders = {}
    for path in paths:
        if Path(path).suffix in SOURCE_SUFFIXES:
            folders.setdefault(str(Path(path).parent), set()).add(Path(path).stem)
    for folder, files in sorted(folders.items()):
        if len(files) > MAX_FILES:
            yield f"{folder}: {len(files)} source files, at most {MAX_FILES}"


def check_tree(root, path):
    size = (root / path).stat().st_size
    if NOT_COMMITTED.search(path):
        yield f"{path}: generated or compiled files are not committed"
    if size > MAX_BYTES:
        yield f"{path}: {size} bytes, at most {MAX_BYTES}"


def faults(root):
    paths = tracked_files(root)
    for path in paths:
        yield from check_tree(root, path)
        if Path(path).suffix not in SOURCE_SUFFIXES:
            continue
        text = (root / path).read_text(encoding="utf-8")
        yield from check_length(path, text)
        if Path(path).suffix in {".cc", ".h"}:
            yield from check_walls(path, text)
            yield from check_layers(path, text)
            yield from check_sizes(path, text)
    yield from check_mirror(paths)
    yield from check_folders(paths)


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    found = list(faults(root))
    print("\n".join(found) or "layout: no fault")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
