"""The locks of the hosted install name every package with its hashes and agree with
requirements.txt.
"""

import re
import subprocess

import pytest

from tests.places import ROOT

LOCKS = sorted((ROOT / "deploy").glob("*.lock"))
ENTRY = re.compile(r"([A-Za-z0-9_.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n")
PINNED = dict(
    re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "requirements.txt").read_text(), re.MULTILINE),
)


def _plain(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def complaints(lock):
    """What is wrong with the text of a lock, in words."""
    body = re.sub(r"^#.*\n", "", lock, flags=re.MULTILINE)
    entries = {}
    for name, version, _ in ENTRY.findall(body):
        entries[_plain(name)] = version.partition("+")[0]
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
def test_a_lock_has_every_pinned_package_and_a_hash_of_each(lock):
    text = lock.read_text()
    assert complaints(text) == []
    assert len(ENTRY.findall(text)) > 2 * len(PINNED)
    # the twins: another version, no hash, an option that leads elsewhere
    assert complaints(text.replace("streamlit==1.67.0", "streamlit==1.0"))
    assert complaints(text + "left-pad==1.0\n")
    assert complaints("--index-url https://example.org\n" + text)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: path.name)
def test_an_image_without_captures_leaves_out_torch_and_what_it_brings(lock):
    order = re.search(r"sed -i -E '(.+?)' \$LOCK", (ROOT / "deploy" / "Dockerfile").read_text())
    assert order
    left = subprocess.run(
        ["sed", "-E", order[1], lock],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert {line for line in complaints(left) if "missing" not in line} == set()
    gone = {found[1] for found in ENTRY.finditer(lock.read_text())} - {
        found[1] for found in ENTRY.finditer(left)
    }
    assert {"torch", "transformers", "tokenizers"} <= gone
    assert all(
        name in PINNED or name == "triton" or name.startswith(("cuda-", "nvidia-")) for name in gone
    )
    assert "streamlit==" in left
