"""The locks of the hosted install name every package with its hashes, agree with requirements.txt, and what is said of
their advisories is what was found.
"""

from __future__ import annotations

import re
import subprocess
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
LOCKS = sorted((ROOT / "deploy").glob("*.lock"))
ENTRY = re.compile(r"([A-Za-z0-9_.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")
PINNED = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE))


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def complaints(lock: str) -> list[str]:
    """What is wrong with the text of a lock, in words."""
    body = re.sub(r"^#.*\n", "", lock, flags=re.MULTILINE)
    entries = {_plain(found[1]): found[2].partition("+")[0] for found in ENTRY.finditer(body)}
    left = ENTRY.sub("", body).split()
    return [
        *([f"no package with a hash: {left[0]}"] if left else []),
        *(
            f"{name} is {entries.get(_plain(name), 'missing')}, pinned as {version}"
            for name, version in PINNED.items()
            if entries.get(_plain(name)) != version
        ),
    ]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_a_lock_has_every_pinned_package_and_a_hash_of_each(lock: Path) -> None:
    text = lock.read_text()
    assert complaints(text) == []
    assert len(ENTRY.findall(text)) > 2 * len(PINNED)
    assert complaints(text.replace("streamlit==1.67.0", "streamlit==1.0"))
    assert complaints(text + "left-pad==1.0\n")
    assert complaints("--index-url https://example.org\n" + text)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_an_image_without_captures_leaves_out_torch_and_what_it_brings(lock: Path) -> None:
    order = re.search(r"sed -i -E '(.+?)' \$LOCK", (ROOT / "deploy" / "Dockerfile").read_text())
    assert order
    left = subprocess.run(["sed", "-E", order[1], lock], capture_output=True, text=True, check=True).stdout
    assert {line for line in complaints(left) if "missing" not in line} == set()
    gone = {found[1] for found in ENTRY.finditer(lock.read_text())} - {found[1] for found in ENTRY.finditer(left)}
    assert {"torch", "transformers", "tokenizers"} <= gone
    assert all(name in PINNED or name == "triton" or name.startswith(("cuda-", "nvidia-")) for name in gone)
    assert "streamlit==" in left


def _audit() -> ModuleType:
    loader = SourceFileLoader("audit_job", str(ROOT / ".ci" / "audit"))
    spec = spec_from_loader("audit_job", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


FINE, UNSEEN = {"name": "rich", "version": "1.0", "vulns": []}, {"name": "torch", "skip_reason": "not found"}
HIT = {"name": "idna", "version": "3.6", "vulns": [{"id": "PYSEC-2024-60", "fix_versions": ["3.7"]}]}


@pytest.mark.parametrize(
    ("packages", "code", "said"),
    [
        ([FINE], 0, "1 of 1 packages were looked up"),
        ([FINE, HIT], 1, "idna 3.6: PYSEC-2024-60, mended in 3.7"),
        ([HIT, UNSEEN], 1, "1 of 2 packages were looked up"),
        ([FINE, UNSEEN], 2, "1 of 2 packages were looked up"),
        ([], 2, "0 of 0 packages were looked up"),
    ],
)
def test_what_could_not_be_looked_up_is_no_clean_bill(packages: list[dict], code: int, said: str) -> None:
    found, lines = _audit().judged({"dependencies": packages})
    assert found == code
    assert said in lines
