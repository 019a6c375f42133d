"""Draft trees: their tables, what is no tree, and the way to JSON and back."""

import json
import random

import numpy as np
import pytest

from mlx_rvqspec.spec_decode.tree import Tree

BUSH = Tree(((1,), (0,), (0, 2), (1, 0), (0, 0), (0, 0, 0)))


def grown(num_nodes: int, num_depths: int, num_candidates: int, seed: int) -> Tree:
    """A random tree: nodes are added under random nodes."""
    draw, nodes = random.Random(seed), list[tuple[int, ...]]([()])
    while len(nodes) < num_nodes:
        path = (*draw.choice(nodes), draw.randrange(num_candidates))
        if len(path) <= num_depths and path not in nodes:
            nodes.append(path)
    return Tree(tuple(nodes[1:]))


def test_nodes_come_in_order_of_depth_then_path():
    assert BUSH.paths == ((0,), (1,), (0, 0), (0, 2), (1, 0), (0, 0, 0))
    assert (BUSH.num_nodes, BUSH.num_depths, BUSH.num_candidates) == (7, 3, (2, 3, 1))
    assert BUSH.depth.tolist() == [0, 1, 1, 2, 2, 2, 3]
    assert BUSH.rank.tolist() == [0, 0, 1, 0, 2, 0, 0]
    assert BUSH.parent.tolist() == [0, 0, 0, 1, 1, 2, 3]
    assert BUSH.path_table[6].tolist() == [0, 1, 3, 6] and BUSH.path_table[2].tolist() == [0, 2, 0, 0]


def test_root_alone_is_a_tree():
    root = Tree(())
    assert (root.num_nodes, root.num_depths, root.num_candidates) == (1, 0, ())
    assert root.ancestors.tolist() == [[True]] and root.path_table.tolist() == [[0]]


@pytest.mark.parametrize("seed", range(20))
def test_tables_agree_with_the_paths(seed: int):
    tree = grown(2 + 3 * seed, 4, 5, seed)
    nodes = [(), *tree.paths]
    for i, path in enumerate(nodes):
        assert nodes[tree.parent[i]] == path[:-1]
        assert [nodes[j] for j in tree.path_table[i, : len(path) + 1]] == [path[:d] for d in range(len(path) + 1)]
        assert not tree.path_table[i, len(path) + 1 :].any()
        for j, other in enumerate(nodes):
            assert tree.ancestors[i, j] == (path[: len(other)] == other)
    assert (np.diff(tree.depth) >= 0).all()


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (((),), "empty"),
        (((0,), (0,)), "twice"),
        (((0,), (1, 0)), "no parent"),
        (((-1,),), "whole number"),
        (((0.0,),), "whole number"),
        (((True,),), "whole number"),
    ],
)
def test_what_is_no_tree_is_refused(paths, message: str):
    with pytest.raises(ValueError, match=message):
        Tree(paths)


def test_json_keeps_tree_and_provenance():
    tree = Tree(BUSH.paths, {"frames": 1500, "expected": 2.4})
    back = Tree.from_json(json.loads(json.dumps(tree.to_json())))
    assert back == tree == BUSH and hash(back) == hash(BUSH)
    assert back.provenance == tree.provenance


@pytest.mark.parametrize(
    "change", [{"version": 2}, {"num_nodes": 3}, {"paths": 5}, {"paths": [[0], [0, 0, 0]]}, {"provenance": None}]
)
def test_damaged_json_is_refused(change: dict):
    with pytest.raises(ValueError, match="tree"):
        Tree.from_json(BUSH.to_json() | change)


def test_incomplete_json_names_what_is_missing():
    data = BUSH.to_json()
    del data["paths"]
    with pytest.raises(ValueError, match="paths"):
        Tree.from_json(data)
