"""No file that others may have written is read by a program that runs what is in it.

Weights are safetensors, which hold numbers only. What torch and numpy call `load` unpickles, and so
runs code; `weights_only` has had holes of its own. With no such call any version of torch will do.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.tidy.test_tidy import PACKAGE, sources_in, text_of, tree_of, where

EXAMPLES = ROOT / "docs"
LOADS = re.compile(
    r"(torch|torch\.jit|torch\.package|torch\.hub|torch\.export|np|numpy|pickle|dill|cloudpickle|joblib"
    r"|marshal|pd|pandas)\.(load|loads|load_state_dict_from_url|read_pickle|Unpickler|PackageImporter)"
    r"|shelve\.open|pickle\..*|marshal\..*"
)
MODULES = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
# Between a worker and the processes that it has started, over their pipe.
OF_OWN_PROCESSES = {
    "swarmnode/worker/ranks/team.py": {"pickle.dumps"},
    "swarmnode/worker/ranks/follow.py": {"pickle.loads"},
}
WEIGHTS_OF_MODELS = re.compile(r"\b(Auto)?Model\w*\.from_pretrained$|\b\w+Model\.from_pretrained$")


def wrong_in(tree: ast.Module, allowed: set[str]) -> list[int]:
    """Return the lines that could run what is in a file."""
    found = []
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=func, args=args, keywords=keywords):
                called = ast.unparse(func)
                words = {word.arg: ast.unparse(word.value) for word in keywords}
                is_model = WEIGHTS_OF_MODELS.search(called) or (
                    args and ast.unparse(args[0]) == "'from_pretrained'"
                )
                if (LOADS.fullmatch(called) and called not in allowed) or (
                    is_model and words.get("use_safetensors") != "True"
                ):
                    found.append(node.lineno)
            case ast.Import(names=names):
                modules = {name.name.partition(".")[0] for name in names}
                if modules & MODULES and not allowed:
                    found.append(node.lineno)
            case ast.ImportFrom(module=str(module), names=names):
                is_load = module.split(".")[0] == "torch" and "load" in {n.name for n in names}
                if module.split(".")[0] in MODULES or is_load:
                    found.append(node.lineno)
    return found


def sources() -> list[Path]:
    return [*sources_in(PACKAGE), *sources_in(EXAMPLES)]


def test_nothing_unpickles_a_file() -> None:
    found = [
        where(path, line)
        for path in sources()
        for line in wrong_in(
            tree_of(path), OF_OWN_PROCESSES.get(path.relative_to(ROOT).as_posix(), set())
        )
    ]
    assert not found, "read safetensors; torch.load of any kind runs what a file says"


def test_what_own_processes_unpickle_comes_over_their_pipe() -> None:
    for name, allowed in OF_OWN_PROCESSES.items():
        calls = [
            node
            for node in ast.walk(tree_of(ROOT / name))
            if isinstance(node, ast.Call) and ast.unparse(node.func) in allowed
        ]
        assert calls, f"{name} needs no exception any more"
        for call in calls:
            if ast.unparse(call.func) == "pickle.loads":
                assert ast.unparse(call.args[0]) == "orders.recv_bytes()"


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch.load(path, weights_only=True)",
        "from torch import load",
        "import pickle",
        "from pickle import loads",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "model = AutoModelForCausalLM.from_pretrained(folder)",
        "self._asked('from_pretrained', folder)",
        "torch.hub.load('a/b', 'c')",
    ],
)
def test_what_is_refused(text: str) -> None:
    assert wrong_in(ast.parse(text), set())


@pytest.mark.parametrize(
    "text",
    [
        "model.load_state_dict(tensors)",
        "json.load(file)",
        "AutoTokenizer.from_pretrained(folder)",
        "AutoModel.from_pretrained(folder, use_safetensors=True)",
    ],
)
def test_what_is_read_is_not_refused(text: str) -> None:
    assert not wrong_in(ast.parse(text), set())


def test_the_threat_model_says_so() -> None:
    assert "snapshots are safetensors" in text_of(ROOT / "docs" / "threat-model.md")
