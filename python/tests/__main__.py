"""All tests of the package, with a last line of totals:  PYTHONPATH=build/dev/python python python/tests"""
import sys
import unittest
from pathlib import Path


def main():
    suite = unittest.defaultTestLoader.discover(Path(__file__).parent, pattern="test_*.py")
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    failed, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    print(f"{result.testsRun - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
