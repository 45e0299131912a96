#!/usr/bin/env python3
"""Draws option combinations anew, lets torch say what they give, and runs them through headwise.

    HEADWISE_BUILD=build/dev python tests/peers/parity.py [SEED [COUNT]]

The default count is one where more than 3000 are compared with torch's own function too. See tests/parity/generate.py.
"""
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent.parent


def main():
    seed, count = (sys.argv[1:] + ["1", "3800"][len(sys.argv) - 1:])[:2]
    build = pathlib.Path(os.environ.get("HEADWISE_BUILD", ROOT / "build" / "dev"))
    cases = build / "parity-cases.safetensors"
    try:
        subprocess.run([sys.executable, ROOT / "tests" / "parity" / "generate.py", "--out", cases, "--seed", seed,
                        "--count", count], check=True)
        return subprocess.run([build / "tests" / "parity", "--isa", "all", cases], check=False).returncode
    finally:
        cases.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
