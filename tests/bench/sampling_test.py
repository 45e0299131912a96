"""bench/sampling.py: the grid that nobody tuned for."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2] / "bench"))

import sampling  # noqa: E402
from cases import MODES  # noqa: E402


class Sample(unittest.TestCase):
    def test_every_value_of_each_axis_occurs(self):
        cases = sampling.sample(40, seed=3, max_flops=float("inf"))
        for axis, values in (("T_q", sampling.T), ("T_k", sampling.T), ("d_head", sampling.D_HEAD),
                             ("n_heads", sampling.HEADS), ("mode", MODES), ("B", sampling.BATCH)):
            self.assertEqual({getattr(case, axis) for case in cases}, set(values), axis)
        biases = [case.bias_heads for case in cases if case.mode == "bias"]
        self.assertTrue(1 in biases and max(biases) > 1)

    def test_follows_its_seed(self):
        self.assertEqual(sampling.sample(30, 1), sampling.sample(30, 1))
        self.assertNotEqual(sampling.sample(30, 1), sampling.sample(30, 2))

    def test_large_shapes_get_fewer_heads(self):
        for case in sampling.sample(200, 0, max_flops=1e9):
            work = 4 * case.B * case.n_heads * case.T_q * case.T_k * case.d_head
            self.assertTrue(work <= 1e9 or (case.B, case.n_heads) == (1, 1), case)
            self.assertIn(case.bias_heads, (1, case.n_heads))

    def test_small_shapes_keep_theirs(self):
        for before, after in zip(sampling.sample(200, 0, max_flops=float("inf")), sampling.sample(200, 0)):
            if 4 * before.B * before.n_heads * before.T_q * before.T_k * before.d_head <= 20e9:
                self.assertEqual(before, after)

    def test_the_whole_grid(self):
        cases = sampling.full("bf16")
        self.assertEqual(len(set(cases)), 10 * 10 * 8 * 10 * 5)
        self.assertEqual({case.dtype for case in cases}, {"bf16"})


if __name__ == "__main__":
    unittest.main()
