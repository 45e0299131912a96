#!/usr/bin/env python3
"""Each rule of tools/check_layout.py with a tree that breaks it and one that keeps it."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_layout  # noqa: E402


class CheckLayout(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        subprocess.run(["git", "init", "-q", self.root], check=True)

    def write(self, path, text=""):
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def expect(self, *starts):
        found = list(check_layout.faults(self.root))
        self.assertEqual(len(found), len(starts), found)
        for fault, start in zip(found, starts):
            self.assertTrue(fault.startswith(start), fault)

    def test_a_tree_in_order(self):
        self.write("src/kernels/a.cc", '#include "hwy/highway.h"\n#include "core/b.h"\n')
        self.write("tests/kernels/a_test.cc")
        self.write("src/runtime/pool.cc", "#include <omp.h>\n#pragma omp parallel\n")
        self.write("tests/runtime/pool_test.cc", "#include <thread>\n")
        self.write("include/headwise/a.h", '#include <vector>\n#include "headwise/b.h"\n')
        self.expect()

    def test_highway_stays_in_kernels(self):
        self.write("src/attention/a.h", '#include "hwy/highway.h"\n')
        self.write("src/module/a.h", "#  include <immintrin.h>\n")
        self.expect("src/attention/a.h: includes <hwy/highway.h>", "src/module/a.h: includes <immintrin.h>")

    def test_json_stays_in_io_and_apps(self):
        self.write("apps/cli/a.cc", "#include <nlohmann/json.hpp>\n")
        self.write("src/core/a.h", "#include <nlohmann/json.hpp>\n")
        self.expect("src/core/a.h: includes <nlohmann/json.hpp>")

    def test_threads_stay_in_runtime(self):
        self.write("src/attention/a.h", "#include <thread>\n")
        self.write("src/module/a.h", "  #pragma omp parallel for\n")
        self.expect("src/attention/a.h: includes <thread>", "src/module/a.h: has an OpenMP pragma")

    def test_public_headers_show_no_dependency(self):
        self.write("include/headwise/a.h", '#include "core/check.h"\n#include <nlohmann/json.hpp>\n')
        self.expect('include/headwise/a.h: a public header includes "core/check.h"',
                    "include/headwise/a.h: includes <nlohmann/json.hpp>")

    def test_calls_go_down_only(self):
        self.write("src/kernels/a.h", '#include "attention/plan.h"\n')
        self.write("src/attention/b.h", '#include "kernels/a.h"\n#include "io/c.h"\n')
        self.write("src/helpers/d.h")
        self.expect("src/attention/b.h: src/attention includes io/c.h",
                    "src/helpers/d.h: src/helpers is no layer",
                    "src/kernels/a.h: src/kernels includes attention/plan.h")

    def test_sources_and_tests_mirror_each_other(self):
        self.write("src/core/tested.cc")
        self.write("tests/core/tested_test.cc")
        self.write("src/core/inline.h")
        self.write("tests/core/inline_test.cc")
        self.write("src/core/lonely.cc")
        self.write("tests/core/gone_test.cc")
        self.write("tests/core/cases_test.cc")
        self.write("tests/core/cases_shapes_test.cc")
        self.write("tests/support/reference.cc")
        self.expect("src/core/lonely.cc: no test", "tests/core/gone_test.cc: tests no file")

    def test_long_files_say_why(self):
        self.write("src/core/a.h", "\n" * 400)
        self.write("src/core/b.h", "\n" * 401)
        self.write("src/core/c.h", "// Past 400 lines: one table.\n" + "\n" * 400)
        self.expect("src/core/b.h: 401 lines")

    def test_folders_stay_small(self):
        for i in range(20):
            self.write(f"src/core/a{i}.h")
            self.write(f"src/io/a{i}.h")
            self.write(f"include/headwise/a{i}.h")
            self.write(f"include/headwise/a{i}.py")
        self.write("src/io/one_more.h")
        self.expect("src/io: 21 source files")

    def test_raw_products_in_io(self):
        self.write("src/io/a.h", "auto n = rows * width;\nchar* p = q;\nn *= 2;\n")
        self.write("src/io/b.h", "auto n = rows * 8;  // rows < 2^32\n")
        self.write("src/core/c.h", "auto n = rows * width;\n")
        self.expect("src/io/a.h:1: a raw product", "src/io/a.h:3: a raw product")

    def test_nothing_generated_is_committed(self):
        self.write("tools/__pycache__/a.txt")
        self.write("lib/a.so")
        self.write("data.bin", "x" * (1024 * 1024 + 1))
        self.expect("data.bin: 1048577 bytes", "lib/a.so: generated", "tools/__pycache__/a.txt: generated")


if __name__ == "__main__":
    unittest.main()
