"""bench/models.py: its rows, how they are shown, and what its contender computes where PyTorch is installed."""
import importlib
import importlib.util
import os
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))

MODULES = ("cases", "entries", "models", "timing", "worker")
cases, entries, models, timing, worker = map(importlib.import_module, MODULES)


def entry(seconds):
    return entries.Entry(times=timing.Times((seconds,)))


class Rows(unittest.TestCase):
    def test_have_names_of_their_own(self):
        names = [case.name for case in models.chosen_cases(folder="a folder")]
        self.assertEqual(len(set(names)), len(names))
        self.assertLess({"module (1, 4, 8, 2)", "module (1, 4, 8, 2) weights", "module (1, 4, 8, 2) training",
                         "encoder layer (1, 512, 512, 8) padded", "MiniLM (1, 16)"}, set(names))

    def test_are_chosen_by_name(self):
        self.assertEqual([case.name for case in models.chosen_cases("function (1, 2")], ["function (1, 2, 8, 8)"])
        self.assertEqual(models.chosen_cases("MiniLM"), [])  # without its folder

    def test_show_times_and_ratios(self):
        found = {"torch": entry(3e-3), "convert": entry(2e-3), "enable": entry(4e-3)}
        self.assertRegex(models.show_row("a row", found), r"^a row +3 ms +2 ms +1\.50x +4 ms +0\.75x$")

    def test_show_why_a_way_has_no_time(self):
        failed = entries.Entry(reason="wrong answer")
        self.assertRegex(models.show_row("a row", {"torch": entry(3e-3), "convert": failed, "enable": entry(2e-3)}),
                         r"^a row +3 ms +- +2 ms +1\.50x\n  convert: wrong answer$")
        self.assertRegex(models.show_row("a row", {"torch": failed, "convert": entry(3e-3), "enable": entry(2e-3)}),
                         r"^a row +- +3 ms +2 ms\n  torch: wrong answer$")


@unittest.skipUnless(all(map(importlib.util.find_spec, ("torch", "ml_dtypes"))), "without PyTorch")
class Contender(unittest.TestCase):
    def setUp(self):
        environment = dict(os.environ)
        self.addCleanup(lambda: (os.environ.clear(), os.environ.update(environment)))
        self.worker = worker.Worker("models:torch", 1)
        self.addCleanup(self.worker.stop)

    def test_computes_the_same_in_every_call(self):
        results = {"": {"output"}, "weights": {"output", "weights"},
                   "training": {"output", "d_x", "in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias"}}
        for option, names in results.items():
            case = cases.TorchModel("module", (1, 4, 8, 2), option)
            answer = self.worker.ask("answer", case)
            self.assertEqual(set(answer), names)
            self.assertEqual(self.worker.ask("prepare", case, answer)["error"], 0)


if __name__ == "__main__":
    unittest.main()
