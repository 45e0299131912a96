#!/usr/bin/env python3
"""Files go back and forth between headwise, numpy and the safetensors package.

    HEADWISE_BUILD=build/dev python tests/peers/files.py [SEED]

Every array comes back bit for bit, whoever wrote it; and damaged safetensors files are taken or refused by both.
"""
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import zipfile

import ml_dtypes
import numpy as np
import safetensors
import safetensors.numpy

ROOT = pathlib.Path(__file__).parent.parent.parent
BUILD = pathlib.Path(os.environ.get("HEADWISE_BUILD", ROOT / "build" / "dev"))
TOOL = BUILD / "tests" / "copy_tensors"
DTYPES = ["f4", "f8", "f2", "?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "bfloat16"]


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name)


def random_array(rng, dtype):
    shape = [rng.choice([0, 1, 1, 2, 3, 5, 17]) for _ in range(rng.choice([0, 1, 1, 2, 2, 3, 5]))]
    bits = np.frombuffer(rng.randbytes(int(np.prod(shape, dtype=int)) * dtype.itemsize), dtype=np.uint8)
    if dtype == bool:
        bits = bits & 1
    return bits.view(dtype).reshape(shape)


def same(found, expected):
    if found.dtype == np.dtype("V2") and expected.dtype == ml_dtypes.bfloat16:  # numpy has no bfloat16
        found = found.view(ml_dtypes.bfloat16)
    return (found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=") and found.shape == expected.shape and
            found.astype(found.dtype.newbyteorder("=")).tobytes() ==
            expected.astype(expected.dtype.newbyteorder("=")).tobytes())


def write(path, arrays, rng):
    if path.suffix == ".npy":
        np.save(path, next(iter(arrays.values())))
    elif path.suffix == ".npz":
        rng.choice([np.savez, np.savez_compressed])(path, **arrays)
    else:
        little = {k: np.ascontiguousarray(v.astype(v.dtype.newbyteorder("<"))).reshape(v.shape)
                  for k, v in arrays.items()}
        safetensors.numpy.save_file(little, path, metadata={"k": "\u00e4\n"})


def read(path):
    if path.suffix == ".npy":
        return {"": np.load(path)}
    if path.suffix == ".npz":
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None
        with np.load(path) as arrays:
            return dict(arrays)
    return safetensors.numpy.load_file(path)


def check_copies(folder, rng, rounds):
    """What the peers write and headwise copies, the peers read: for each pair of formats."""
    faults = []
    for n in range(rounds):
        source, target = (folder / f"{n}-{side}{rng.choice(['.npy', '.npz', '.safetensors'])}" for side in "ab")
        count = 1 if ".npy" in (source.suffix, target.suffix) else rng.choice([0, 1, 3, 12])
        arrays = {}
        for i in range(count):
            array = random_array(rng, dtype_of(rng.choice(DTYPES)))
            if source.suffix != ".safetensors" and rng.random() < 0.3 and array.dtype != ml_dtypes.bfloat16:
                array = array.astype(array.dtype.newbyteorder(">"))
            if source.suffix != ".safetensors" and rng.random() < 0.3:
                array = np.asfortranarray(array).reshape(array.shape, order="F")
            arrays[f"layer.{i}/\u00e4 b"] = array
        write(source, arrays, rng)
        done = subprocess.run([TOOL, source, target], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            faults.append(f"{source.name} -> {target.name}: {done.stderr.strip() or done.returncode}")
            continue
        found = read(target)
        if ".npy" in (source.suffix, target.suffix):
            found = {name: array for name, array in zip(arrays, found.values())}
        if found.keys() != arrays.keys() or not all(same(found[k], arrays[k]) for k in arrays):
            faults.append(f"{source.name} -> {target.name}: {found} is not {arrays}")
        source.unlink()
        target.unlink()
    return faults


def safetensors_bytes(rng):
    entries, end = {}, 0
    for i in range(rng.randrange(4)):
        shape = [rng.randrange(4) for _ in range(rng.randrange(3))]
        size = 4 * int(np.prod(shape, dtype=int))
        entries[f"t{i}"] = {"dtype": "F32", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    if rng.random() < 0.3:
        entries["__metadata__"] = {"format": "pt"}
    return json.dumps(entries), bytes(end)


def damage(rng, header):
    kind = rng.randrange(6)
    at = rng.randrange(len(header))
    if kind == 0:
        return header[:at] + rng.choice('{}[]":,0123456789-.eE \t\\\x00\x7f\u00e4null') + header[at + 1:]
    if kind == 1:
        return header[:at] + header[at + 1:]
    if kind == 2:
        return header[:at] + rng.choice(["0", "1", " ", "\n", '"', "{}", "[]", "null", ",", "1e0", "-"]) + header[at:]
    if kind == 3:
        return rng.choice([" ", "\n", "\t", ""]) + header + rng.choice([" ", "\n", "x", "\x00", "{}"])
    if kind == 4:
        return header.replace("F32", rng.choice(["F64", "BF16", "f32", "F8_E4M3", "F4", "C64", "", "F32 "]), 1)
    return header.replace("shape", rng.choice(["shape", "Shape", "data_offsets", "dtype", "sh\\u0061pe", "x"]), 1)


def repeats_a_key(text):
    """Whether an object has a key twice: refused by headwise (but in the metadata), while others keep the last."""
    found = []

    def look(pairs):
        found.append(len({k for k, _ in pairs}) < len(pairs))
        return dict(pairs)
    try:
        json.loads(text, object_pairs_hook=look)
    except ValueError:
        return False
    return any(found)


def taken_by_package(bytes_):
    try:
        safetensors.deserialize(bytes_)
        return True
    except Exception:  # its SafetensorError derives from Exception itself; a panic is no Exception
        return False


def check_damaged(folder, rng, rounds):
    """Damaged headers: headwise and the package take the same files."""
    faults, files = [], []
    for n in range(rounds):
        header, data = safetensors_bytes(rng)
        for _ in range(rng.randrange(3)):
            header = damage(rng, header)
        encoded = header.encode()
        length = max(0, len(encoded) + (rng.choice([-1, 1, 1000]) if rng.random() < 0.05 else 0))
        data += b"x" * (rng.random() < 0.05)
        path = folder / f"{n}.safetensors"
        path.write_bytes(struct.pack("<Q", length) + encoded + data)
        files.append((path, header))
    lines = []
    for start in range(0, rounds, 500):
        paths = [path for path, _ in files[start:start + 500]]
        result = subprocess.run([TOOL, "--check", *paths], capture_output=True, text=True, check=True)
        lines += result.stdout.splitlines()
    counts = {True: 0, False: 0}
    for (path, header), line in zip(files, lines, strict=True):
        package = taken_by_package(path.read_bytes())
        counts[package] += 1
        if (line == "taken") != package and not (package and repeats_a_key(header)):
            faults.append(f"{path.read_bytes()!r}: the package says {package}, headwise says {line}")
    print(f"damaged headers: {counts[True]} taken, {counts[False]} refused by the package")
    return faults


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    rng = random.Random(seed)
    failed = passed = 0
    with tempfile.TemporaryDirectory() as name:
        for check, rounds in [(check_copies, 600), (check_damaged, 6000)]:
            faults = check(pathlib.Path(name), rng, rounds)
            for fault in faults[:10]:
                print(f"{check.__name__}: {fault}", file=sys.stderr)
            failed += len(faults)
            passed += rounds - len(faults)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
