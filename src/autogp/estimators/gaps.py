"""Values that a prediction lacks: missing ones, and categories that training never saw."""

import numpy as np
import torch
from torch import Tensor

from autogp.data import Source, TableEncoder
from autogp.data.sources import as_tensor
from autogp.model import Marginals, Predictor

__all__ = ["Filled", "Gaps"]

DRAWS = 32  # values that stand in for one that is lacking
REFERENCE_NUMBERS, FEWEST_ROWS, MOST_ROWS = 2**16, DRAWS, 512  # rows of training that are kept
CHUNK_NUMBERS = 2**24  # of distances between rows with gaps and rows of training


class Gaps:
    """What a model says of rows with gaps: the average over values that the gaps may have had.

    A value is drawn from the rows of training that are most like the row in its other columns, a category that training
    never saw from all categories of training. With m and v the mean and variance of q(f) at the row with each draw in
    place, the row's mean is E[m], and its variance E[v] + Var[m] (k + 1) / (k - 1), where k is the number of different
    draws: what is known of the spread of a population by k of it.

    Arguments:
        reference: Rows of training [R, C] without gaps.
        flagged: Of each column whether training had missing values: the model itself then knows what they mean.
        categories: Of each column the number of its categories; 0 for numbers.
    """

    def __init__(self, reference: np.ndarray, flagged: np.ndarray, categories: np.ndarray) -> None:
        self.reference, self.flagged, self.categories = reference, flagged, categories
        self.scale = np.where(categories > 0, 1.0, reference.std(0) + (reference.std(0) == 0))

    @classmethod
    def of(cls, source: Source, encoder: TableEncoder | None, seed: int) -> "Gaps":
        """From rows of training, each gap among them filled from another row."""
        random = np.random.default_rng(seed)
        width = source.rows(np.zeros(1, np.int64))[0].shape[1]
        count = int(np.clip(REFERENCE_NUMBERS // width, FEWEST_ROWS, MOST_ROWS))
        most = min(len(source), 10 * count)  # also for the gaps to be filled from
        x = np.asarray(source.rows(np.sort(random.choice(len(source), most, replace=False)))[0], np.float64)
        x = random.permutation(x)
        for column in np.flatnonzero(np.isnan(x).any(0)):
            absent = np.isnan(x[:, column])
            present = x[~absent, column]
            x[absent, column] = random.choice(present, absent.sum()) if len(present) else 0.0
        return cls.around(x[:count], encoder)

    @classmethod
    def around(cls, reference: np.ndarray, encoder: TableEncoder | None) -> "Gaps":
        """With these rows of training."""
        flagged, categories = np.zeros(reference.shape[1], bool), np.zeros(reference.shape[1], np.int64)
        for place, part in enumerate([] if encoder is None else encoder.used_parts):
            flagged[place] = part.missing > 0
            categories[place] = len(encoder.categories.get(part.name, ())) if encoder is not None else 0
        return cls(reference, flagged, categories)

    def strange(self, x: np.ndarray) -> np.ndarray:
        """Where rows [B, C] have what training never had."""
        if x.dtype.kind != "f":
            return np.zeros(x.shape, bool)
        return (np.isnan(x) & ~self.flagged) | ((x < 0) & (self.categories > 0))

    def filled(self, x: np.ndarray) -> np.ndarray:
        """Rows [B, C] with something that training knows wherever it never had what they have."""
        strange = self.strange(x)
        return np.where(strange, self.reference.mean(0) * (self.categories == 0), x) if strange.any() else x

    def marginals(self, predictor: Predictor, x: np.ndarray, one_noise: bool) -> Marginals:
        """q(f) at rows [B, C].

        With `one_noise` the spread of what might have stood there is also added where training had missing values: the
        likelihood has the same noise for all rows, and cannot know it.
        """
        strange = self.strange(x)
        known = predictor(as_tensor(self.filled(x)))
        gaps = strange | np.isnan(x) if one_noise and x.dtype.kind == "f" else strange
        rows = np.flatnonzero(gaps.any(1))
        step = max(1, predictor.chunk_rows // DRAWS, CHUNK_NUMBERS // self.reference.size // 8)
        for start in range(0, len(rows), step):
            _average(known, predictor, rows[start : start + step], *self._draws(x, gaps, rows[start : start + step]))
        return known

    def mean(self, predictor: Predictor, x: np.ndarray) -> Tensor:
        """E[f] at rows [B, C], [B, Q]."""
        if not self.strange(x).any():
            return predictor.mean(as_tensor(x))
        found = self.marginals(predictor, x, one_noise=False)
        return (found.log_weights.exp()[:, None, None] * found.mean).sum(0)

    def spread(self, predictor: Predictor, x: np.ndarray) -> Tensor:
        """Var[m] of rows [B, C] over what their gaps may have held, [B, Q]; 0 where they have none."""
        base = predictor(as_tensor(self.filled(x)))
        return self.marginals(predictor, x, one_noise=True).variance[0] - base.variance[0]

    def _draws(self, x: np.ndarray, gaps: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows with each of their draws [b, S, C], what Var[m] is multiplied by [b], and whether E[m] counts [b]."""
        x, gaps = x[rows].astype(np.float64), gaps[rows]
        near = np.argsort(self._distances(x, gaps), axis=1, kind="stable")[:, :DRAWS]  # [b, S]
        count = near.shape[1]
        drawn = np.where(gaps[:, None], self.reference[near], x[:, None])
        different = np.full(len(x), count)
        for column in np.flatnonzero(((x < 0) & (self.categories > 0)).any(0)):
            size = int(self.categories[column])
            codes = np.random.default_rng(column).permutation(size)[np.arange(count) % size]
            new = x[:, column] < 0
            drawn[new, :, column] = codes
            different[new] = np.minimum(different[new], min(size, count))
        different = np.maximum(different, 2)
        return drawn, (different + 1) / (different - 1), np.asarray(self.strange(x).any(1))

    def _distances(self, x: np.ndarray, gaps: np.ndarray) -> np.ndarray:
        """Squares of distances in the columns that a row has, [b, R]; categories are 0 or sqrt(2) apart."""
        x = np.where(gaps | np.isnan(x), np.nan, x)
        total = np.zeros((len(x), len(self.reference)))
        for column in range(x.shape[1]):
            apart = (x[:, column, None] - self.reference[:, column]) / self.scale[column]
            square = 2.0 * (apart != 0) if self.categories[column] else np.square(apart)
            total += np.where(np.isnan(apart), 0.0, square)
        return total


@torch.no_grad()
def _average(
    known: Marginals, predictor: Predictor, rows: np.ndarray, drawn: np.ndarray, factor: np.ndarray, strange: np.ndarray
) -> None:
    """Puts what the draws say in place of q(f) at these rows."""
    found = predictor(as_tensor(drawn.reshape(-1, drawn.shape[-1])))
    shape = (len(found.mean), *drawn.shape[:2], -1)  # [K, b, S, Q]
    mean, variance = found.mean.view(shape), found.variance.view(shape)
    between = mean.var(2, correction=0) * torch.from_numpy(factor).to(mean)[:, None]  # [K, b, Q]
    unknown, places = torch.from_numpy(strange)[:, None].to(mean.device), torch.from_numpy(rows).to(mean.device)
    known.mean[:, places] = torch.where(unknown, mean.mean(2), known.mean[:, places])
    known.variance[:, places] = torch.where(unknown, variance.mean(2), known.variance[:, places]) + between
    # No row of training has touched it, which is what leave-one-out takes the residual for.
    own = between.mean(0)
    known.residual[places] += own if own.shape[-1] == known.residual.shape[-1] else own.mean(-1, keepdim=True)


class Filled:
    """The rows of a source, with something that training knows in place of what it never had."""

    def __init__(self, source: Source, gaps: Gaps) -> None:
        self.source, self.gaps = source, gaps
        self.in_memory = getattr(source, "in_memory", False)

    def __len__(self) -> int:
        return len(self.source)

    def rows(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x, y = self.source.rows(indices)
        return self.gaps.filled(np.asarray(x)), y
