"""What the peers' scripts share: where the build is, and unittest's totals in the last line."""
import os
import pathlib
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).parent.parent.parent.parent
BUILD = pathlib.Path(os.environ.get("HEADWISE_BUILD", ROOT / "build" / "dev"))
sys.path.insert(0, str(BUILD / "python"))
# Compiled graphs are kept for one run only.
_graphs = tempfile.TemporaryDirectory()
os.environ["TORCHINDUCTOR_CACHE_DIR"] = _graphs.name


def run_tests():
    """Runs the calling script's tests."""
    suite = unittest.defaultTestLoader.loadTestsFromModule(sys.modules["__main__"])
    names = set(sys.argv[1:])
    if names:
        suite = unittest.TestSuite(test for case in suite for test in case if test.id().split(".")[-1] in names)
    result = unittest.TextTestRunner(verbosity=1).run(suite)
    failed, skipped = len(result.failures) + len(result.errors), len(result.skipped)
    print(f"{result.testsRun - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0
