#!/usr/bin/env python3
"""Installs a build into an empty prefix, then builds and runs a program that knows only that prefix.

    install_test.py BUILD_DIR

By find_package and by pkg-config, from a copy of tests/install/consumer outside the project.
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

CONSUMER = Path(__file__).resolve().parent / "consumer"
EXPECTED = "0.1.0 (2, 4, 8)\n"
MAX_LIBRARY_BYTES = 5 * 2**20


def run(*command, **options):
    """Runs a command; its output belongs to the error when it fails."""
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}\n{done.stdout}")
    return done.stdout


class Install(unittest.TestCase):
    build_dir: Path

    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="install-", dir=cls.build_dir))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        # Moved after installing: nothing may depend on where it was put first.
        run("cmake", "--install", cls.build_dir, "--prefix", cls.folder / "first")
        cls.prefix = cls.folder / "prefix"
        (cls.folder / "first").rename(cls.prefix)
        cls.lib = next(cls.prefix.glob("lib*/**/libheadwise.*")).parent
        cls.shared = (cls.lib / "libheadwise.so").exists()
        cls.consumer = cls.folder / "consumer"
        shutil.copytree(CONSUMER, cls.consumer)

    def test_find_package(self):
        build = self.folder / "consumer-build"
        run("cmake", "-S", self.consumer, "-B", build, "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", build)
        self.assertEqual(run(build / "consumer"), EXPECTED)

    def test_pkg_config(self):
        env = os.environ | {"PKG_CONFIG_PATH": str(self.lib / "pkgconfig")}
        kind = [] if self.shared else ["--static"]
        flags = run("pkg-config", *kind, "--cflags", "--libs", "headwise", env=env).split()
        program = self.folder / "by-pkg-config"
        run(os.environ.get("CXX", "g++"), "-std=c++20", self.consumer / "consumer.cc", "-o", program, *flags)
        env["LD_LIBRARY_PATH"] = str(self.lib)
        self.assertEqual(run(program, env=env), EXPECTED)

    def test_tool(self):
        tool = self.prefix / "bin" / "headwise"
        if not tool.exists():
            self.skipTest("built without the command-line tool")
        self.assertIn("0.1.0", run(tool, "--version", cwd="/"))

    def test_library_is_small(self):
        if not self.shared:
            self.skipTest("only the shared library is one file")
        stripped = self.folder / "stripped.so"
        run("strip", "--strip-unneeded", "-o", stripped, self.lib / "libheadwise.so")
        self.assertLessEqual(stripped.stat().st_size, MAX_LIBRARY_BYTES)

    def test_only_public_names_are_exported(self):
        if not self.shared:
            self.skipTest("only the shared library hides names")
        symbols = run("nm", "-D", "-C", "--defined-only", self.lib / "libheadwise.so")
        for line in symbols.splitlines():
            name = line.split(maxsplit=2)[-1]
            for inner in ("headwise::kernels::", "headwise::core::", "headwise::io::", "nlohmann"):
                self.assertFalse(name.startswith(inner), line)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build_dir", type=Path)
    arguments, rest = parser.parse_known_args()
    Install.build_dir = arguments.build_dir.resolve()
    unittest.main(argv=[sys.argv[0], *rest])
