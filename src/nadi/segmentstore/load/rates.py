"""Exponentially weighted mean rates of many things at once, over several windows.

What was counted is folded in now and then. A mean is weighted over a thing's whole age and its weights add up to one,
so a constant rate is its own mean from the first fold on, at any distance between folds.

>>> rates = Rates()
>>> row = rates.begin(100.0)
>>> for second in range(101, 104):
...     _ = rates.fold(np.array([[50.0], [5000.0]]), second, 0.5)
>>> [round(float(mean), 6) for mean in rates.means[:, 0, row]]
[50.0, 5000.0]
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from nadi.model.load import WINDOWS_S

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
Mask: TypeAlias = np.ndarray[Any, np.dtype[np.bool_]]
_FEW = 16
_WINDOWS = np.array(WINDOWS_S)[:, np.newaxis]


class Rates:
    """Rows of means. All times are in seconds on one monotonic clock."""

    def __init__(self) -> None:
        self.count = 0
        self._means = np.zeros((2, len(WINDOWS_S), _FEW))
        self._times = np.zeros((3, _FEW))  # of each row: its start, its last fold, and the last that brought something

    @property
    def means(self) -> Numbers:
        """Per second: of events and bytes, for each window, of each row."""
        return self._means[:, :, : self.count]

    @property
    def ages_s(self) -> Numbers:
        """For how long each row had been counted at its last fold; 0 before the first."""
        began, folded, _ = self._times[:, : self.count]
        return np.asarray(folded - began)

    def idle_s(self, now_s: float) -> Numbers:
        """For how long nothing was counted for each row."""
        return np.asarray(now_s - self._times[2, : self.count])

    def begin(self, now_s: float) -> int:
        """Add a row; return its number."""
        row = self.count
        if row == self._times.shape[1]:
            self._means = np.concatenate([self._means, np.zeros_like(self._means)], axis=2)
            self._times = np.concatenate([self._times, np.zeros_like(self._times)], axis=1)
        self._means[:, :, row] = 0.0
        self._times[:, row] = now_s
        self.count += 1
        return row

    def end(self, row: int) -> None:
        """From now on the row has always been idle."""
        self._times[2, row] = -np.inf

    def fold(self, counted: Numbers, now_s: float, least_s: float) -> Mask:
        """Fold in what was counted for each row since its last fold, as if it had come evenly.

        counted: events and bytes, of each row. Returns which rows were folded: those whose last fold was at least
        `least_s` ago, so that a young row's first rate isn't that of a moment, and a clock set back changes nothing.
        """
        began, folded, active = self._times[:, : self.count]
        passed = now_s - folded
        due: Mask = passed >= least_s
        if not due.any():
            return due
        weight = np.expm1(-np.where(due, passed, 0.0) / _WINDOWS) / np.expm1(
            -np.where(due, now_s - began, 1.0) / _WINDOWS
        )
        rate = counted / np.where(due, passed, 1.0)
        means = self.means
        means += weight * (rate[:, np.newaxis, :] - means)
        folded[due] = now_s
        active[due & (counted > 0).any(axis=0)] = now_s
        return due

    def keep(self, kept: Mask) -> None:
        """Drop all other rows; the kept ones, at least one, are numbered anew, in the same order."""
        self._means, self._times = self.means[:, :, kept], self._times[:, : self.count][:, kept]
        self.count = self._times.shape[1]
