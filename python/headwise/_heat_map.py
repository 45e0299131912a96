"""Attention weights as a picture for notebooks, in the colours of `headwise see`."""
import html

import numpy as np

# The ramp of `headwise see`: dark violet to pale yellow, over the square root of the weight, rising in lightness.
_STOPS = np.array([(20, 11, 53), (101, 21, 110), (188, 55, 84), (249, 142, 9), (252, 255, 164)], dtype=float)
_STYLE = ("<style>.headwise{display:inline-block;margin:4px 12px 4px 0;vertical-align:top;font:12px sans-serif}"
          ".headwise table{border-collapse:collapse}.headwise td{width:1.4em;height:1.4em;padding:0;border:0}"
          ".headwise th{font-weight:normal;padding:0 4px;text-align:right}"
          ".headwise .k th{writing-mode:vertical-rl;text-align:left;padding:4px 0}</style>")
_MAX_CELLS = 64 * 64  # of one table; a notebook is no place for more


def _as_numpy(weights):
    if hasattr(weights, "detach"):  # torch's, with or without gradients
        weights = weights.detach().cpu().double()
    is_foreign = hasattr(weights, "__dlpack__") and not isinstance(weights, np.ndarray)
    array = (np.from_dlpack(weights) if is_foreign else np.asarray(weights)).astype(float)
    if not 2 <= array.ndim <= 4:
        raise ValueError(f"weights: found shape {array.shape}, expected (T_q, T_k), (n_heads, T_q, T_k) or "
                         "(B, n_heads, T_q, T_k)")
    return array


def _colour(weight):
    if not np.isfinite(weight):
        return "#888888"
    x = min(max(weight, 0.0), 1.0) ** 0.5 * (len(_STOPS) - 1)
    i = min(int(x), len(_STOPS) - 2)
    red, green, blue = (_STOPS[i] + (x - i) * (_STOPS[i + 1] - _STOPS[i])).round().astype(int)
    return f"#{red:02x}{green:02x}{blue:02x}"


class HeatMap:
    """Attention weights that a notebook shows as tables, one for each head: a row is a query, a column a key.

    weights          (T_q, T_k), (n_heads, T_q, T_k) or (B, n_heads, T_q, T_k): an array, or anything with DLPack
    queries, keys    what to call them: the tokens, say; keys default to queries when there are as many

    The last expression of a cell shows it. Large matrices show their first 64 rows and columns.
    """

    def __init__(self, weights, queries=None, keys=None):
        self.weights = _as_numpy(weights)
        T_q, T_k = self.weights.shape[-2:]
        if keys is None and queries is not None and T_q == T_k:
            keys = queries
        self.queries = self._names("queries", queries, T_q)
        self.keys = self._names("keys", keys, T_k)

    @staticmethod
    def _names(what, names, n):
        if names is None:
            return [str(i) for i in range(n)]
        names = [str(name) for name in names]
        if len(names) != n:
            raise ValueError(f"{what}: found {len(names)} names, expected {n}")
        return names

    def __repr__(self):
        return f"HeatMap({'x'.join(map(str, self.weights.shape))} weights)"

    def _table(self, weights, caption):
        side = int(_MAX_CELLS**0.5)
        keys = self.keys[:side]
        head = "".join(f"<th>{html.escape(key)}</th>" for key in keys)
        rows = []
        for query, row in zip(self.queries[:side], weights):
            cells = "".join(
                f'<td style="background:{_colour(w)}" title="{html.escape(f"{query} → {key}")}: {w:.4f}"></td>'
                for key, w in zip(keys, row))
            rows.append(f"<tr><th>{html.escape(query)}</th>{cells}</tr>")
        cut = "" if max(weights.shape) <= side else f" (first {side} of {weights.shape[0]} x {weights.shape[1]})"
        return (f'<div class="headwise">{html.escape(caption + cut)}<table><tr class="k"><th></th>{head}</tr>'
                f'{"".join(rows)}</table></div>')

    def _repr_html_(self):
        tables = []
        for place in np.ndindex(self.weights.shape[:-2]):
            names = ("batch", "head")[-len(place):] if place else ()
            tables.append(self._table(self.weights[place], ", ".join(f"{n} {i}" for n, i in zip(names, place))))
        return _STYLE + "".join(tables)
