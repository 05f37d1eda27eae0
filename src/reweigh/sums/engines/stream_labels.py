"""Labels as codes while a log streams: integers by their distance, texts as they come."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reweigh.log.states import Label, Labels, label_text
from reweigh.policy.table import TablePolicy

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass
class Integers:
    """Codes of integers in a known range: the distance from the smallest."""

    low: int
    size: int

    def codes(self, column: pa.ChunkedArray) -> Ints:
        if column.null_count:
            column = column.fill_null(self.low - 1)
        values = np.asarray(column.to_numpy()).astype(np.int64, copy=False)
        return values - self.low if self.low else values

    def label(self, code: int) -> Label:
        return self.low + code

    @property
    def known(self) -> int:
        return self.size


@dataclass
class Vocabulary:
    """Codes of texts in the order in which they come."""

    words: list[str] = field(default_factory=list)
    code_of: dict[str, int] = field(default_factory=dict)

    def codes(self, column: pa.ChunkedArray) -> Ints:
        if not pa.types.is_dictionary(column.type):
            column = pc.dictionary_encode(column)
        parts = [self._translate(chunk) for chunk in column.chunks]
        return np.concatenate(parts) if parts else np.zeros(0, np.int64)

    def _translate(self, chunk: pa.DictionaryArray) -> Ints:
        """Only words that occur get a code; -1 for none."""
        none = len(chunk.dictionary)
        place = np.asarray(chunk.indices.fill_null(none).to_numpy(zero_copy_only=False))
        occurs = np.zeros(none + 1, bool)
        occurs[place] = True
        known = np.flatnonzero(occurs[:none])
        code = np.full(none + 1, -1)
        code[known] = [self._code(w) for w in chunk.dictionary.take(pa.array(known)).to_pylist()]
        codes: Ints = code[place]
        return codes

    def _code(self, word: str | None) -> int:
        if word is None:
            return -1
        if word not in self.code_of:
            self.code_of[word] = len(self.words)
            self.words.append(word)
        return self.code_of[word]

    def label(self, code: int) -> Label:
        return self.words[code]

    @property
    def known(self) -> int:
        return len(self.words)


Coder = Integers | Vocabulary


def policy_steps(target: TablePolicy) -> int:
    """The steps that a table tells apart."""
    step = target._entries.step
    return 1 if step is None else int(step.max()) + 1


def dense_policy(
    target: TablePolicy, states: Coder, actions: Coder, shape: tuple[int, int]
) -> Floats:
    """(steps or 1, states, actions) π(a|s); NaN where the policy does not know the state."""
    entries, steps = target._entries, policy_steps(target)
    step = np.zeros(len(entries.prob), np.int64) if entries.step is None else entries.step
    of_state = _found(entries.states, states)[entries.state]
    of_action = _found(entries.actions, actions)[entries.action]
    dense = np.full((steps, *shape), np.nan)
    logged = of_state >= 0
    dense[step[logged], of_state[logged]] = 0.0
    both = logged & (of_action >= 0)
    dense[step[both], of_state[both], of_action[both]] = entries.prob[both]
    return dense


def _found(labels: Labels, coder: Coder) -> Ints:
    """The code of each of the policy's labels in the log, -1 where the log lacks it."""
    find = {label_text(coder.label(code)): code for code in range(coder.known)}
    return np.array([find.get(label_text(value), -1) for value in labels.values], np.int64)
