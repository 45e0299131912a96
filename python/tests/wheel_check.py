"""Checks the wheel that this interpreter's environment holds:  python python/tests/wheel_check.py

Run with nothing but the wheel and what it asks for installed.
"""
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(importlib.util.find_spec("headwise").origin).parent
# Of the system; all others are inside the wheel, under names of its own.
SYSTEM = re.compile(r"(libc|libm|libz|libgomp|libstdc\+\+|libgcc_s|libpthread|libdl|ld-linux.*)\.so\.\d+|linux-vdso\.so\.1")


def run(*command, **options):
    done = subprocess.run([str(c) for c in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    if done.returncode != 0:
        raise AssertionError(f"exit {done.returncode}: {command}\n{done.stdout}")
    return done.stdout


class Wheel(unittest.TestCase):
    def test_stands_alone(self):
        self.assertFalse(PACKAGE.is_relative_to(ROOT / "python"))
        for name in ("torch", "ml_dtypes", "nanobind"):
            self.assertIsNone(importlib.util.find_spec(name), name)
        import headwise
        version = (ROOT / "include/headwise/version.h").read_text().split('HEADWISE_VERSION "')[1].split('"')[0]
        self.assertEqual(headwise.__version__, version)

    def test_libraries(self):
        for file in [*PACKAGE.glob("_core*.so"), PACKAGE / "bin" / "headwise"]:
            for line in run("ldd", file).splitlines():
                name, _, path = line.strip().partition(" => ")
                name = Path(name.split()[0]).name
                self.assertNotIn("not found", path)
                if not SYSTEM.fullmatch(name):
                    self.assertIn("headwise.libs", path)

    def test_readme(self):
        blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
        self.assertTrue(blocks)
        with tempfile.TemporaryDirectory() as folder:
            for code in blocks:
                run(sys.executable, "-c", code, cwd=folder)

    def test_tool(self):
        self.assertIn("instruction set ", run(sys.executable, "-m", "headwise", "info"))
        self.assertIn("byhand", run(Path(sys.executable).parent / "headwise", "lesson", "--help"))

    def test_own_libgomp_is_a_fallback(self):
        """Where the system has none: hidden in a namespace of mounts, if this user may have one."""
        code = ("import headwise; x = headwise.randn(2, 4, 600, 8); headwise.scaled_dot_product_attention(x, x, x);"
                "print({line.split()[-1] for line in open('/proc/self/maps') if 'libgomp' in line})")
        system = run(sys.executable, "-c", code)
        self.assertNotIn("headwise", system.split("'")[1])
        if shutil.which("unshare") is None or os.system("unshare -rm true 2>/dev/null") != 0:
            self.skipTest("needs unshare")
        hidden = 'mount --bind /dev/null "$1" && exec "$2" -c "$3"'
        path = Path(system.split("'")[1]).resolve()
        own = run("unshare", "-rm", "sh", "-c", hidden, "sh", path, sys.executable, code)
        self.assertEqual(Path(own.split("'")[1]), PACKAGE / "lib" / "libgomp.so.1")


if __name__ == "__main__":
    unittest.main()
