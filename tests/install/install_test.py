#!/usr/bin/env python3
"""A program outside the project builds and runs against an installed headwise.

    install_test.py BUILD_DIR
"""
import os
import re
import shutil
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from installed import InstalledTest, run  # noqa: E402

EXPECTED = "0.1.0 (2, 4, 8) (2, 4, 4)\n"
MAX_LIBRARY_BYTES = 5 * 2**20


class Install(InstalledTest):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.consumer = cls.folder / "consumer"
        shutil.copytree(HERE / "consumer", cls.consumer)

    def test_find_package(self):
        self.assertEqual(run(self.build_with_cmake(self.consumer) / "consumer"), EXPECTED)

    def test_pkg_config(self):
        self.assertEqual(self.run_with_pkg_config(self.consumer / "consumer.cc"), EXPECTED)

    def test_examples(self):
        build = self.build_with_cmake(HERE.parents[1] / "examples")
        self.assertIn("head 1  token 4 looks most at", run(build / "look_at_weights", cwd=self.folder))
        model = os.environ.get("HEADWISE_MODEL")
        if model:
            shown = run(build / "look_at_weights", f"{model}/model.safetensors", 12, "encoder.layer.0.attention.")
            self.assertIn("head 11  token 4 looks most at", shown)
        # Exits 1 unless it learned.
        shown = run(build / "train_induction", "3", cwd=self.folder)
        shares = [int(n) for n in re.findall(r"^head \d +(\d+) % on what followed", shown, re.MULTILINE)]
        self.assertGreater(max(shares), 70, shown)

    def test_tool(self):
        self.assertIn("0.1.0", run(self.tool, "--version", cwd="/"))

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
    Install.build_dir = Path(sys.argv.pop(1)).resolve()
    unittest.main()
