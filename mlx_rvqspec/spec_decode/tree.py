"""Static draft trees: which combinations of candidate ranks one round verifies. Pure numpy.

A node is a path of ranks from the root, e.g. (0, 2): the best candidate at depth 1, then the third best at depth 2.
Its code is ``candidates[depth - 1, rank]`` whatever its parent is. The root is the newest committed code.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

JSON_VERSION = 1


@dataclass(frozen=True)
class Tree:
    """A prefix-closed set of rank paths, the root left out, put in the order of depth, then path.

    Nodes are numbered in that order from the root, 0; ``num_nodes`` counts it, so ``Tree(())`` has one row and drafts
    nothing. provenance: what the tree was grown from, JSON-ready; two trees of equal paths are equal.
    Raises ValueError for a path that is empty, repeated, without its prefix, or not of whole numbers from 0.
    """

    paths: tuple[tuple[int, ...], ...]
    provenance: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for path in self.paths:
            if not path:
                raise ValueError("a tree path is empty; the root is implied")
            if not all(isinstance(rank, int) and not isinstance(rank, bool) and rank >= 0 for rank in path):
                raise ValueError(f"tree path {path} has a rank that is no whole number from 0")
        paths = tuple(sorted((tuple(path) for path in self.paths), key=lambda path: (len(path), path)))
        known = {(), *paths}
        if len(known) != 1 + len(paths):
            raise ValueError("a tree path occurs twice")
        for path in paths:
            if path[:-1] not in known:
                raise ValueError(f"tree path {path} has no parent {path[:-1]}")
        object.__setattr__(self, "paths", paths)

    @property
    def num_nodes(self) -> int:
        return 1 + len(self.paths)

    @property
    def num_depths(self) -> int:
        """K, the depth of the deepest node."""
        return len(self.paths[-1]) if self.paths else 0

    @property
    def is_chain(self) -> bool:
        """Whether every node has at most one child, so that node i is at depth i."""
        return self.num_nodes == self.num_depths + 1

    @cached_property
    def depth(self) -> np.ndarray:
        """[N] int32."""
        return np.array([0, *map(len, self.paths)], dtype=np.int32)

    @cached_property
    def rank(self) -> np.ndarray:
        """[N] int32, among the candidates of the node's depth; 0 for the root."""
        return np.array([0, *(path[-1] for path in self.paths)], dtype=np.int32)

    @cached_property
    def parent(self) -> np.ndarray:
        """[N] int32; the root is its own."""
        number = {path: i for i, path in enumerate(((), *self.paths))}
        return np.array([0, *(number[path[:-1]] for path in self.paths)], dtype=np.int32)

    @cached_property
    def path_table(self) -> np.ndarray:
        """[N, K+1] int32: the nodes from the root to each node, then zeros."""
        table = np.zeros((self.num_nodes, self.num_depths + 1), dtype=np.int32)
        for node in range(1, self.num_nodes):
            table[node] = table[self.parent[node]]
            table[node, self.depth[node]] = node
        return table

    @cached_property
    def ancestors(self) -> np.ndarray:
        """[N, N] bool: true where the column's node is the row's node or above it."""
        mask = np.eye(self.num_nodes, dtype=bool)
        np.put_along_axis(mask, self.path_table, True, axis=1)
        return mask

    @cached_property
    def num_candidates(self) -> tuple[int, ...]:
        """How many candidates a proposer must offer at each depth 1..K: the largest rank there, plus one."""
        return tuple(1 + int(self.rank[self.depth == depth].max()) for depth in range(1, self.num_depths + 1))

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready object that ``from_json`` reads."""
        return {
            "version": JSON_VERSION,
            "num_nodes": self.num_nodes,
            "paths": [list(path) for path in self.paths],
            "provenance": dict(self.provenance),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Tree":
        """The tree of a ``to_json`` object. Raises ValueError for another version, a missing key or a bad tree."""
        if not isinstance(data, Mapping) or data.get("version") != JSON_VERSION:
            raise ValueError(f"not a draft tree of version {JSON_VERSION}")
        try:
            tree = cls(tuple(tuple(path) for path in data["paths"]), dict(data["provenance"]))
            num_nodes = data["num_nodes"]
        except KeyError as error:
            raise ValueError(f"draft tree: missing {error.args[0]}") from None
        except TypeError:
            raise ValueError("draft tree: paths are not lists of ranks, or provenance is no object") from None
        if tree.num_nodes != num_nodes:
            raise ValueError(f"draft tree: num_nodes is {num_nodes}, its paths make {tree.num_nodes}")
        return tree
