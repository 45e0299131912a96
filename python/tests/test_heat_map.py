"""HeatMap: what a notebook shows of weights."""
import unittest
from xml.etree import ElementTree

import numpy as np

import headwise


def parsed(heat_map):
    """The cells' titles and colours by table; the markup has to be well formed."""
    root = ElementTree.fromstring(f"<root>{heat_map._repr_html_()}</root>")
    return [[(cell.get("title"), cell.get("style")) for cell in div.iter("td")] for div in root.iter("div")]


class HeatMap(unittest.TestCase):
    def test_tables(self):
        module = headwise.MultiheadAttention(8, 2, batch_first=True).eval()
        x = headwise.randn(3, 4, 8)
        weights = module(x, x, x, average_attn_weights=False)[1]
        for shown, tables in ((weights, 6), (weights[0], 2), (weights[0, 0], 1)):
            cells = parsed(headwise.HeatMap(shown))
            self.assertEqual([len(table) for table in cells], [16] * tables)
            self.assertEqual(cells[0][1][0], f"0 → 1: {weights[0, 0, 0, 1]:.4f}")

    def test_names_are_escaped(self):
        cells = parsed(headwise.HeatMap(np.eye(2), ["<s>", 'a"&']))
        self.assertEqual(cells[0][1][0], '<s> → a"&: 0.0000')

    def test_colours(self):
        cells = parsed(headwise.HeatMap(np.array([[0, 1, np.nan, 2]])))
        self.assertEqual([style for _, style in cells[0]], ["background:#140b35", "background:#fcffa4",
                                                            "background:#888888", "background:#fcffa4"])

    def test_large(self):
        self.assertEqual(len(parsed(headwise.HeatMap(np.zeros((100, 70))))[0]), 64 * 64)

    def test_errors(self):
        with self.assertRaisesRegex(ValueError, "weights: found shape"):
            headwise.HeatMap(np.zeros(3))
        with self.assertRaisesRegex(ValueError, "keys: found 2 names, expected 3"):
            headwise.HeatMap(np.zeros((2, 3)), keys=["a", "b"])


if __name__ == "__main__":
    unittest.main()
