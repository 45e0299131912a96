#!/usr/bin/env python3
"""What tools/count_tests.py makes of a ctest run."""
import json
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
import count_tests  # noqa: E402


def program(*cases):
    return json.dumps({"testsuites": [{"testsuite": list(cases)}]})


PASSED = {"status": "RUN", "result": "COMPLETED"}
FAILED = {"status": "RUN", "result": "COMPLETED", "failures": [{"failure": "1 != 2"}]}
SKIPPED = {"status": "RUN", "result": "SKIPPED"}
DISABLED = {"status": "NOTRUN", "result": "SUPPRESSED"}


class CountTests(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def count(self, entries, output="", **programs):
        rows = "".join(f'<testcase name="{name}" status="{status}"><system-out>{output}</system-out></testcase>'
                       for name, status in entries.items())
        (self.folder / "ctest.xml").write_text(f"<testsuite>{rows}</testsuite>")
        for name, report in programs.items():
            (self.folder / f"{name}.json").write_text(report)
        return dict(count_tests.count(self.folder))

    def test_programs_count_by_their_cases(self):
        self.assertEqual(self.count({"core": "run", "io": "fail"}, core=program(PASSED, PASSED, SKIPPED, DISABLED),
                                    io=program(PASSED, FAILED)), {"passed": 3, "failed": 1, "skipped": 1})

    def test_other_entries_count_once(self):
        self.assertEqual(self.count({"layout": "run", "readme": "fail", "install": "disabled"}),
                         {"passed": 1, "failed": 1, "skipped": 1})

    def test_a_program_may_tell_its_totals(self):
        self.assertEqual(self.count({"parity": "fail"}, output="table\n7 passed, 2 failed\n"),
                         {"passed": 7, "failed": 2})
        self.assertEqual(self.count({"parity": "fail"}, output="7 passed, 0 failed\n"), {"passed": 7, "failed": 1})

    def test_a_program_that_died_has_failed(self):
        self.assertEqual(self.count({"core": "fail", "io": "fail"}, io=program(PASSED)), {"passed": 1, "failed": 2})


if __name__ == "__main__":
    unittest.main()
