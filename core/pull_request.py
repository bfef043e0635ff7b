"""A gate's comment on a GitHub pull request: one for each gate, which later jobs update
(action.yml).
"""

import json
from collections.abc import Mapping
from itertools import count
from pathlib import Path

import httpx2 as httpx

from .errors import UlpscopeError
from .text import clean, slug

_MOST_CHARACTERS = 65_536  # of a comment
_A_PAGE = 100  # comments, the most that GitHub sends
_WRITERS = ("OWNER", "MEMBER", "COLLABORATOR")


class CommentError(UlpscopeError):
    """A comment that could not be written, in one sentence."""


def put_comment(job: Mapping[str, str], name: str, report: str, artifact: str = "") -> str | None:
    """Write a gate's report into its comment on a job's pull request, or into a new one; return the
    comment's address, None if the job is for another event.

    job: variables of a job of GitHub Actions; name: of the gate, of those of one pull request;
    artifact: address of its files.
    """
    try:
        event = json.loads(Path(job["GITHUB_EVENT_PATH"]).read_bytes())
        repository = job["GITHUB_REPOSITORY"]
        token = job["GITHUB_TOKEN"]
        page = f"{job['GITHUB_SERVER_URL']}/{repository}/actions/runs/{job['GITHUB_RUN_ID']}"
        issues = f"{job['GITHUB_API_URL']}/repos/{repository}/issues"
    except KeyError as error:
        raise CommentError(
            f"{error.args[0]} is not set; a comment needs the variables of GitHub Actions.",
        ) from error
    except (OSError, ValueError) as error:
        raise CommentError(
            f"GITHUB_EVENT_PATH: cannot be read as an event ({clean(error, 200)}).",
        ) from error
    if "pull_request" not in event:
        return None
    pull = event["pull_request"]
    marker = f"<!-- ulpscope gate: {slug(name)} -->\n"
    files = f" · [files, with a picture]({artifact})" if artifact else ""
    footer = f"Commit {pull['head']['sha']} · [job]({page}){files}"
    room = _MOST_CHARACTERS - len(marker) - len(footer) - 100
    if len(report) > room:
        report = report[:room].rpartition("\n")[0] + "\n\nThe job's summary has the rest.\n"
    body = {"body": f"{marker}{report}\n{footer}\n"}
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    try:
        with httpx.Client(headers=headers, timeout=30) as client:
            of_pull = f"{issues}/{pull['number']}/comments"
            comment = _find(client, of_pull, marker)
            if comment is None:
                answer = client.post(of_pull, json=body)
            else:
                answer = client.patch(f"{issues}/comments/{comment}", json=body)
            return str(answer.raise_for_status().json()["html_url"])
    except httpx.HTTPStatusError as error:
        code = error.response.status_code
        hint = ""
        if code in (401, 403, 404):
            hint = "; it needs `permissions: pull-requests: write`, which a fork's job never has"
        raise CommentError(f"GitHub refuses the token's comment ({code}){hint}.") from error
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise CommentError(
            f"no comment: {issues} does not answer as expected ({clean(error, 200)}).",
        ) from error


def _find(client: httpx.Client, address: str, marker: str) -> int | None:
    """Return the id of the comment that begins with a marker and that no stranger wrote, who could
    change it after the job: an app did, or who may write here.
    """
    for page in count(1):
        answer = client.get(address, params={"per_page": _A_PAGE, "page": page})
        comments = answer.raise_for_status().json()
        for comment in comments:
            is_app = (comment["user"] or {}).get("type") == "Bot"
            is_trusted = is_app or comment["author_association"] in _WRITERS
            if is_trusted and (comment["body"] or "").replace("\r", "").startswith(marker):
                return int(comment["id"])
        if len(comments) < _A_PAGE:
            break
    return None
