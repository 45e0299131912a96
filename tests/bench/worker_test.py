"""bench/worker.py: whatever goes wrong in a contender's process is a reason, not the end."""
import os
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))

import contenders  # noqa: E402
from worker import Failed, Worker  # noqa: E402

CONTENDER = """
import os
import time

import contenders


way = "usual"


def version():
    return "1.2"


def answer(case):
    return f"{case}, the {way} way"


def set_threads(n):
    pass


def limits(what):
    if what == "die":
        os._exit(7)
    if what == "hang":
        time.sleep(60)
    raise contenders.Unsupported("first line\\nsecond line")
"""


class Reasons(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        package = pathlib.Path(folder.name) / "contenders"  # one more folder of the package, in the child too
        package.mkdir()
        (package / "__init__.py").write_text(pathlib.Path(contenders.__file__).read_text())
        (package / "made_up_contender.py").write_text(CONTENDER)
        (package / "broken_contender.py").write_text("import a_module_that_nobody_has\n")
        sys.path.insert(0, folder.name)  # a spawned process takes over the path
        self.addCleanup(sys.path.remove, folder.name)
        environment = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(environment)))

    def worker(self, key):
        worker = Worker(key, 1)
        self.addCleanup(worker.stop)
        return worker

    def test_a_missing_package(self):
        with self.assertRaisesRegex(Failed, r"not installed \(a_module_that_nobody_has\)"):
            self.worker("broken").ask("version")

    def test_a_key_may_name_a_way(self):
        self.assertEqual(self.worker("made_up").ask("answer", "a case"), "a case, the usual way")
        self.assertEqual(self.worker("made_up:quick").ask("answer", "a case"), "a case, the quick way")

    def test_an_exception_is_its_first_line(self):
        with self.assertRaisesRegex(Failed, "^first line$"):
            self.worker("made_up").ask("limits", "refuse")

    def test_a_process_that_dies_is_started_again(self):
        worker = self.worker("made_up")
        with self.assertRaisesRegex(Failed, "its process ended with 7"):
            worker.ask("limits", "die")
        self.assertEqual(worker.ask("version"), "1.2")

    def test_a_process_that_hangs_is_stopped(self):
        worker = self.worker("made_up")
        self.assertEqual(worker.ask("version"), "1.2")
        with self.assertRaisesRegex(Failed, "no answer within 0 s"):
            worker.ask("limits", "hang", timeout=0.2)
        self.assertEqual(worker.ask("version"), "1.2")


if __name__ == "__main__":
    unittest.main()
